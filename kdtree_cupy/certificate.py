"""When is a tree grown from K ranks provably the tree of the whole vocabulary?"""

from __future__ import annotations

import numpy as np

from .tree import DraftTree

PRECISION = 2.0**-21
"""Error that a stored float32 log-prob may have, relative to max(1, abs(value))."""


def outside_bound(
    logprobs: np.ndarray, next_logprob: np.ndarray | None = None, precision: float = PRECISION
) -> np.ndarray:
    """Return the best score that a node with a rank beyond K could have, float64 [b].

    The heaviest such node follows the first choices down to some depth and leaves the kept ranks there.  The
    log-prob of the first rank left out is ``next_logprob`` if recorded; else it is at most the last kept one,
    and at most the whole mass that the kept ranks leave.

    Parameters
    ----------
    logprobs : float32 [b, D, K]
    next_logprob : float32 [b, D], optional
    precision : float
        Error of the stored log-probs.  Peaked rows leave a mass of the order of their rounding: without
        this allowance a certificate could be wrong.
    """
    rows = logprobs.astype(np.float64)
    if next_logprob is None:
        kept = np.exp(rows)
        slack = precision * (kept * np.maximum(1.0, -np.maximum(rows, -1e4))).sum(2)
        left = 1.0 - kept.sum(2) + slack
        # Rows whose mass exceeds 1 are no log-probs over a vocabulary: their mass bounds nothing.
        tail = np.where(left > 0, np.log(np.where(left > 0, left, 1.0)), np.inf)
        beyond = np.minimum(rows[:, :, -1], tail)
    else:
        beyond = next_logprob.astype(np.float64)
    above = np.concatenate([np.zeros((rows.shape[0], 1)), np.cumsum(rows[:, :-1, 0], axis=1)], axis=1)
    return (above + beyond).max(1)


def certified_exact(
    tree: DraftTree,
    logprobs: np.ndarray,
    budget: int,
    vocab_size: int | None = None,
    next_logprob: np.ndarray | None = None,
    precision: float = PRECISION,
    bound: np.ndarray | None = None,
) -> np.ndarray:
    """Return whose tree of ``budget`` nodes is the exact top-B tree of the whole vocabulary, bool [b].

    Parameters
    ----------
    tree : DraftTree
        Best-first trees of at least ``budget`` nodes where so many are reachable.
    logprobs : float32 [b, D, K]
        The rows they were grown from.
    budget : int
        Draft nodes B.
    vocab_size : int, optional
        V; K >= min(B, V) needs no certificate (a node of rank r drags r earlier siblings in).
    next_logprob : float32 [b, D], optional
        Log-prob of the first rank left out.
    precision : float
        As for :func:`outside_bound`.
    bound : float64 [b], optional
        Result of :func:`outside_bound`, when it is known already.

    Notes
    -----
    Float64, strict: a score equal to the bound is not certified.
    """
    width = logprobs.shape[2]
    if width >= budget or (vocab_size is not None and width >= vocab_size):
        return np.ones(logprobs.shape[0], bool)
    if bound is None:
        bound = outside_bound(logprobs, next_logprob, precision)
    full = tree.counts > budget
    last = tree.scores[:, budget] if tree.num_nodes > budget else np.full(tree.batch, -np.inf)
    return full & (last > bound)


def rows_used(
    logprobs: np.ndarray,
    next_logprob: np.ndarray | None = None,
    max_depth: int | None = None,
    max_rank: int | None = None,
) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the rows that a policy under these limits sees, and the log-prob of the first rank left out."""
    kept = logprobs[:, :max_depth, :max_rank]
    rest = next_logprob if kept.shape[2] == logprobs.shape[2] else logprobs[:, :, kept.shape[2]]
    return kept, None if rest is None else rest[:, :max_depth]
