"""Monte Carlo on a recorded trace: what a rule for sampled drafts accepts along the recorded text.

The recorded tokens follow the target, and a lossless rule emits tokens that follow the target.  So they can
be coupled: given that the token y came out, it was an accepted draft with probability (accepted mass of y) /
p(y).  Rounds then jump as in any replay.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..replay import Rounds, jump
from ..trace import Trace
from .node import kseq_rho, normalised
from .toy import check_pair, tempered

RULES = ("match", "match_iid", "rrs", "kseq")


def accepted_mass(rule: str, p: np.ndarray, q: np.ndarray, k: int) -> np.ndarray:
    """Return the probability that each token is emitted as an accepted draft, float64 [..., V].

    Parameters
    ----------
    rule : str
        One of :data:`RULES`: those whose acceptance does not depend on which drafts were rejected.
    p, q : float [..., V]
    k : int
        Drafts per node.
    """
    if rule not in RULES:
        raise ValueError(f"rule: got {rule!r}, wanted one of {', '.join(RULES)}")
    p, q = check_pair(p, q, k)
    if rule == "match":
        place = np.argsort(np.argsort(-q, axis=-1, kind="stable"), axis=-1, kind="stable")
        return np.where(place < k, p, 0.0)
    if rule == "match_iid":
        return p * (1.0 - (1.0 - np.minimum(q, 1.0)) ** k)
    if rule == "kseq":
        share = np.minimum(p / kseq_rho(p, q, k)[..., None], q)
        b = np.minimum(share.sum(-1, keepdims=True), 1.0)
        return share * np.where(b > 0, (1.0 - (1.0 - b) ** k) / np.where(b > 0, b, 1.0), 0.0)
    taken, residual, left = np.zeros_like(p), p, np.ones((*p.shape[:-1], 1))
    for _ in range(k):
        both = np.minimum(residual, q)
        taken = taken + left * both
        left = left * np.maximum(0.0, 1.0 - both.sum(-1, keepdims=True))
        residual = normalised(np.maximum(residual - q, 0.0))
    return taken


def node_distributions(trace: Trace, at: np.ndarray, depth: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return target and drafter at ``depth`` of rounds at ``at``, [n, V'], and the true token's column or -1.

    Over the tokens that either side recorded, each normalised: the tails are not in the trace.  The
    target's is that after the *recorded* text, so at depths above 1 it is right on the recorded path only.
    """
    target = np.asarray(trace.extra["target_ids"][at + depth], np.int64)
    drafted = np.asarray(trace.draft_ids[at, depth - 1], np.int64)
    same = target[:, :, None] == drafted[:, None, :]  # a token of both sides goes to the target's column
    mass = np.exp(trace.draft_logprobs[at, depth - 1].astype(np.float64))
    p = np.zeros((at.size, target.shape[1] + drafted.shape[1]))
    p[:, : target.shape[1]] = np.exp(np.asarray(trace.extra["target_logprobs"][at + depth], np.float64))
    q = np.concatenate([(same * mass[:, None, :]).sum(2), np.where(same.any(1), 0.0, mass)], axis=1)
    hit = target == trace.tokens[at + depth][:, None]
    return normalised(p), normalised(q), np.where(hit.any(1), hit.argmax(1), -1)


class OnTrace(NamedTuple):
    """Rounds of one draw, and the share of looked-up tokens that are not among the target's recorded best."""

    rounds: Rounds
    missing_share: float


def replay_rule(trace: Trace, rule: str, k: int, *, seed: int = 0) -> OnTrace:
    """Replay k drafts at every node of the path, verified by ``rule``, on a trace with target log-probs.

    Parameters
    ----------
    trace : Trace
        With ``target_ids`` and ``target_logprobs``; its header's ``temperature`` is the target's.
    rule : str
        One of :data:`RULES`.
    k : int
        Drafts per node; the drafter's rows are used as they are, at temperature 1.
    seed : int
        Of the coupling.

    Raises
    ------
    ValueError
        An unknown rule, k < 1, or a trace without the target's log-probs or temperature.
    """
    if not {"target_ids", "target_logprobs"} <= set(trace.extra):
        raise ValueError(f"{trace.name}: no target_ids and target_logprobs recorded")
    heat = trace.header.get("temperature")
    if heat is None:
        raise ValueError(f"{trace.name}: the header has no temperature")
    rng = np.random.default_rng(seed)
    total = trace.tokens.size
    end = np.repeat(trace.sequence_offsets[1:].astype(np.int64), trace.lengths)
    accepted, alive = np.zeros(total, np.int64), np.ones(total, bool)
    looked, missing = 0, 0
    for depth in range(1, trace.depth + 1):
        at = np.flatnonzero(alive & (np.arange(total) + depth < end))
        alive[:] = False
        if at.size == 0:
            break
        p, q, column = node_distributions(trace, at, depth)
        p = tempered(p, float(heat))
        pick = np.maximum(column, 0)[:, None]
        mass = np.take_along_axis(accepted_mass(rule, p, q, k), pick, 1)[:, 0]
        chance = np.take_along_axis(p, pick, 1)[:, 0]
        won = (column >= 0) & (rng.random(at.size) * chance < mass)
        looked, missing = looked + at.size, missing + int((column < 0).sum())
        accepted[at[won]] += 1
        alive[at[won]] = True
    return OnTrace(jump(trace, accepted), missing / max(1, looked))
