"""Walk a tree of sampled drafts with a node rule, for many requests at once (Monte Carlo)."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from .node import RULES, kseq_rho, normalised, proposals, without
from .toy import ToyModel

Verify = Callable[
    [np.random.Generator, np.ndarray, np.ndarray, np.ndarray, int], tuple[np.ndarray, np.ndarray]
]
"""(rng, p [G, V], q [G, V], row [n], k) -> token [n], accepted [n]; request i has row ``row[i]`` of p, q."""


class Walked(NamedTuple):
    """Emitted tokens int64 [n, depth + 1], and how many of the first ones were accepted drafts, int64 [n]."""

    tokens: np.ndarray
    accepted: np.ndarray


def draw(rng: np.random.Generator, p: np.ndarray) -> np.ndarray:
    """Return one token of each distribution [n, V]; tokens without mass never come."""
    edges = np.cumsum(p, axis=-1)
    token = (edges <= rng.random(p.shape[0])[:, None] * edges[:, -1:]).sum(-1)
    return np.minimum(token, (p > 0).shape[1] - 1 - (p > 0)[:, ::-1].argmax(1))


def pick(p: np.ndarray, token: np.ndarray) -> np.ndarray:
    """Return p[i, token[i]]."""
    return np.take_along_axis(p, token[:, None], 1)[:, 0]


def verify_match(rng: np.random.Generator, p: np.ndarray, q: np.ndarray, row: np.ndarray, k: int) -> tuple:
    """Sample the target's token; accepted if it is among the best k of q."""
    token = draw(rng, p[row])
    best = np.argsort(-q, axis=1, kind="stable")[row, :k]
    return token, (best == token[:, None]).any(1)


def verify_match_iid(
    rng: np.random.Generator, p: np.ndarray, q: np.ndarray, row: np.ndarray, k: int
) -> tuple:
    """Sample the target's token; accepted if one of k iid drafts is it."""
    token = draw(rng, p[row])
    drafts = np.stack([draw(rng, q[row]) for _ in range(k)], axis=1)
    return token, (drafts == token[:, None]).any(1)


def _verify_rejection(rng: np.random.Generator, p: np.ndarray, q: np.ndarray, k: int, replace: bool) -> tuple:
    n, vocab = p.shape
    residual, proposal = p, q
    token, accepted = np.zeros(n, np.int64), np.zeros(n, bool)
    for _ in range(k if replace else min(k, vocab)):
        drafted = draw(rng, proposal)
        mass = pick(proposal, drafted)
        take = ~accepted & (rng.random(n) * mass < pick(residual, drafted)) & (mass > 0)
        token, accepted = np.where(take, drafted, token), accepted | take
        residual = normalised(np.maximum(residual - proposal, 0.0))
        if not replace:
            proposal = without(proposal, drafted)
    return np.where(accepted, token, draw(rng, residual)), accepted


def verify_rrs(rng: np.random.Generator, p: np.ndarray, q: np.ndarray, row: np.ndarray, k: int) -> tuple:
    """Recursive rejection sampling of iid drafts."""
    return _verify_rejection(rng, p[row], q[row], k, True)


def verify_rrs_without(
    rng: np.random.Generator, p: np.ndarray, q: np.ndarray, row: np.ndarray, k: int
) -> tuple:
    """Recursive rejection sampling of drafts without replacement."""
    return _verify_rejection(rng, p[row], q[row], k, False)


def verify_kseq(rng: np.random.Generator, p: np.ndarray, q: np.ndarray, row: np.ndarray, k: int) -> tuple:
    """K-SEQ: the same acceptance probability for every draft in turn."""
    share = np.minimum(p / kseq_rho(p, q, k)[:, None], q)
    b = share.sum(1, keepdims=True)
    factor = np.where(b > 0, (1.0 - (1.0 - np.minimum(b, 1.0)) ** k) / np.where(b > 0, b, 1.0), 1.0)
    rest = normalised(np.maximum(p - share * factor, 0.0))[row]
    proposal, share = q[row], share[row]
    token, accepted = np.zeros(row.size, np.int64), np.zeros(row.size, bool)
    for _ in range(k):
        drafted = draw(rng, proposal)
        take = ~accepted & (rng.random(row.size) * pick(proposal, drafted) < pick(share, drafted))
        token, accepted = np.where(take, drafted, token), accepted | take
    return np.where(accepted, token, draw(rng, rest)), accepted


def verify_transport(
    rng: np.random.Generator, p: np.ndarray, q: np.ndarray, row: np.ndarray, k: int
) -> tuple:
    """Optimal coupling: one linear program per row of p and q; for small vocabularies."""
    token, accepted = np.zeros(row.size, np.int64), np.zeros(row.size, bool)
    for g in np.unique(row):
        mine = np.flatnonzero(row == g)
        one_p, one_q = p[g], q[g]
        drafts, chance = zip(*proposals("iid", one_q, k), strict=True)
        laws = [RULES["transport"].law(one_p, one_q, d) for d in drafts]
        outcome = np.array([np.concatenate([accept, rest]) for accept, rest in laws])
        which = draw(rng, np.broadcast_to(np.array(chance), (mine.size, len(chance))))
        got = draw(rng, outcome[which])
        token[mine] = np.where(got < k, np.array(drafts)[which, np.minimum(got, k - 1)], got - k)
        accepted[mine] = got < k
    return token, accepted


VERIFY: dict[str, Verify] = {
    "match": verify_match, "match_iid": verify_match_iid, "rrs": verify_rrs,
    "rrs_without": verify_rrs_without, "kseq": verify_kseq, "transport": verify_transport,
}  # fmt: skip
"""Vectorised verifiers of one node by name."""


def walk(
    rule: str | Verify, model: ToyModel, k: int, draws: int, *, depth: int | None = None, seed: int = 0
) -> Walked:
    """Decode ``draws`` rounds: k drafts at every node of the accepted path, down to ``depth`` levels.

    Parameters
    ----------
    rule : str or callable
        Name in :data:`VERIFY`, or a function like its values.
    model : ToyModel
    k, draws : int
    depth : int, optional
        Drafted levels (default: the model's depth - 1, so that the bonus token has a table).
    seed : int

    Returns
    -------
    Walked
        After the first token that is no draft, tokens are plain samples of the target.

    Raises
    ------
    ValueError
        An unknown rule, k or draws below 1, or more levels than the model has tables for.
    """
    levels = model.depth - 1 if depth is None else depth
    if isinstance(rule, str) and rule not in VERIFY:
        raise ValueError(f"rule: got {rule!r}, wanted one of {', '.join(VERIFY)}, or a function")
    if k < 1 or draws < 1 or not 0 <= levels < model.depth:
        raise ValueError(
            f"got k {k}, draws {draws}, depth {levels}; wanted k, draws >= 1, depth in 0..{model.depth - 1}"
        )
    verify = VERIFY[rule] if isinstance(rule, str) else rule
    rng = np.random.default_rng(seed)
    tokens = np.zeros((draws, levels + 1), np.int64)
    accepted, prefix, alive = np.zeros(draws, np.int64), np.zeros(draws, np.int64), np.ones(draws, bool)
    for d in range(levels + 1):
        p = model.target[d][prefix]
        tokens[:, d] = draw(rng, p)
        if d < levels and alive.any():
            token, took = verify(rng, model.target[d], model.drafter[d], prefix[alive], k)
            tokens[alive, d] = token
            accepted[alive] += took
            alive[alive] = took
        prefix = prefix * model.vocab + tokens[:, d]
    return Walked(tokens, accepted)
