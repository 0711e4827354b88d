"""One node, exactly: for k drafted tokens, with what probability is each accepted, and what else comes out?

A *law* takes the target's distribution p, the drafter's q and the drafts in order, and returns the
probability that each draft is accepted and the mass of every token that is emitted instead.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from .toy import check_pair
from .transport import coupling

Law = Callable[[np.ndarray, np.ndarray, tuple[int, ...]], tuple[np.ndarray, np.ndarray]]


class Rule(NamedTuple):
    """A verifier of one node: how drafts are made ("best", "iid" or "without"), and its law."""

    name: str
    proposal: str
    law: Law


class NodeLaw(NamedTuple):
    """Probability that some draft is accepted, and the distribution of the emitted token, float64 [V]."""

    acceptance: float
    output: np.ndarray


def normalised(mass: np.ndarray) -> np.ndarray:
    """Return ``mass`` [..., V] divided by its sum; rows without mass become uniform (they are never used)."""
    total = mass.sum(-1, keepdims=True)
    return np.where(total > 0, mass / np.where(total > 0, total, 1.0), 1.0 / mass.shape[-1])


def without(q: np.ndarray, token: np.ndarray) -> np.ndarray:
    """Return q [..., V] without ``token`` [...], normalised; rows that held nothing else become all zero."""
    rest = np.where(np.arange(q.shape[-1]) == np.asarray(token)[..., None], 0.0, q)
    total = rest.sum(-1, keepdims=True)
    return np.where(total > 0, rest / np.where(total > 0, total, 1.0), 0.0)


def match_law(p: np.ndarray, q: np.ndarray, drafts: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Emit the target's own sample; it is accepted if it was drafted."""
    first = [drafts.index(x) == j for j, x in enumerate(drafts)]
    accept = np.where(first, p[list(drafts)], 0.0)
    rest = p.copy()
    rest[list(drafts)] = 0.0
    return accept, rest


def _rejection(p: np.ndarray, q: np.ndarray, drafts: tuple[int, ...], *, replace: bool) -> tuple:
    residual, proposal, left = p, q, 1.0
    accept = np.zeros(len(drafts))
    for j, x in enumerate(drafts):
        ratio = min(1.0, residual[x] / proposal[x]) if proposal[x] > 0 else 0.0
        accept[j] = left * ratio
        left *= 1.0 - ratio
        residual = normalised(np.maximum(residual - proposal, 0.0))
        if not replace:
            proposal = without(proposal, np.array(x))
    return accept, left * residual


def rrs_law(p: np.ndarray, q: np.ndarray, drafts: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Accept with min(1, r / q); a rejection turns r into norm((r - q)+).  Iid drafts."""
    return _rejection(p, q, drafts, replace=True)


def rrs_without_law(p: np.ndarray, q: np.ndarray, drafts: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """As :func:`rrs_law`, but a rejected token leaves q as well.  Drafts without replacement."""
    return _rejection(p, q, drafts, replace=False)


def kseq_rho(p: np.ndarray, q: np.ndarray, k: int) -> np.ndarray:
    """Return K-SEQ's rho, [...]: smallest solution of 1 - (1 - b)^k = rho b with b = sum min(p / rho, q)."""
    low, high = np.ones(p.shape[:-1]), np.full(p.shape[:-1], float(k))
    for _ in range(50):  # rho b grows with rho, the left side falls: bisection
        rho = 0.5 * (low + high)
        b = np.minimum(p / rho[..., None], q).sum(-1)
        enough = rho * b >= -np.expm1(k * np.log1p(-np.minimum(b, 1.0 - 1e-16)))
        low, high = np.where(enough, low, rho), np.where(enough, rho, high)
    return high


def kseq_law(p: np.ndarray, q: np.ndarray, drafts: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Accept each draft in turn with min(1, p / (rho q)); what remains of p is emitted after k rejections."""
    k = len(drafts)
    rho = float(kseq_rho(p, q, k))
    share = np.minimum(p / rho, q)
    b = share.sum()
    ratio = np.array([share[x] / q[x] if q[x] > 0 else 0.0 for x in drafts])
    left = np.concatenate([[1.0], np.cumprod(1.0 - ratio)])
    taken = share * (-np.expm1(k * np.log1p(-b)) / b if 0 < b < 1 else 1.0)
    return left[:-1] * ratio, left[-1] * normalised(np.maximum(p - taken, 0.0))


def transport_law(p: np.ndarray, q: np.ndarray, drafts: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Accept along an optimal coupling of iid drafts and p (linear program)."""
    plan = coupling(tuple(p), tuple(q), len(drafts))
    mass = float(np.prod(q[list(drafts)]))
    accept = np.zeros(len(drafts))
    if mass > 0:
        for j, x in enumerate(drafts):
            if drafts.index(x) == j:
                accept[j] = plan.taken[drafts][x] / mass
    rest = normalised(np.maximum(p - plan.emitted, 0.0))
    return accept, max(0.0, 1.0 - accept.sum()) * rest


RULES = {
    rule.name: rule
    for rule in (
        Rule("match", "best", match_law),
        Rule("match_iid", "iid", match_law),
        Rule("rrs", "iid", rrs_law),
        Rule("rrs_without", "without", rrs_without_law),
        Rule("kseq", "iid", kseq_law),
        Rule("transport", "iid", transport_law),
    )
}
"""Rules of one node by name."""


def proposals(proposal: str, q: np.ndarray, k: int) -> Iterator[tuple[tuple[int, ...], float]]:
    """Yield every tuple of drafts with its probability."""
    if proposal == "best":  # ties go to the lower id
        yield tuple(np.argsort(-q, kind="stable")[:k].tolist()), 1.0
        return
    distinct = proposal == "without"
    for drafts in itertools.product(range(q.size), repeat=min(k, int((q > 0).sum())) if distinct else k):
        chance, left = 1.0, 1.0
        for j, x in enumerate(drafts):
            if distinct and x in drafts[:j]:
                chance = 0.0
                break
            chance *= q[x] / left if left > 0 else 0.0
            left -= q[x] if distinct else 0.0
        if chance > 0:
            yield drafts, chance


def exact_node(rule: str | Rule, p: np.ndarray, q: np.ndarray, k: int) -> NodeLaw:
    """Return acceptance and output of one node by enumerating all tuples of drafts.

    Parameters
    ----------
    rule : str or Rule
        Name in :data:`RULES`, or your own.
    p, q : float [V]
        Target and drafter.
    k : int
        Drafts; without replacement at most V.

    Raises
    ------
    ValueError
        p or q is no distribution, k < 1, or an unknown rule.

    Examples
    --------
    >>> law = exact_node("rrs", [0.5, 0.3, 0.2], [0.2, 0.3, 0.5], 2)
    >>> round(float(law.acceptance), 4), law.output.round(4).tolist()
    (0.76, [0.5, 0.3, 0.2])
    """
    if isinstance(rule, str):
        if rule not in RULES:
            raise ValueError(f"rule: got {rule!r}, wanted one of {', '.join(RULES)}")
        rule = RULES[rule]
    p, q = check_pair(p, q, k)
    if p.ndim != 1:
        raise ValueError(f"p: got shape {p.shape}, wanted one distribution [V]")
    acceptance, output = 0.0, np.zeros(p.size)
    for drafts, chance in proposals(rule.proposal, q, k):
        accept, rest = rule.law(p, q, drafts)
        acceptance += chance * float(accept.sum())
        output += chance * rest
        np.add.at(output, list(drafts), chance * accept)
    return NodeLaw(acceptance, output)
