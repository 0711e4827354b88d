"""Best-first search with scores of any kind, step by step for many requests at once.

Slower than :func:`kdtree_cupy.best_first.best_first`, which wants sums of sorted rows; this one takes scores
that depend on the parent or that rise on the way down.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..best_first import BestFirst

Step = Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray], np.ndarray]
"""(request, depth index, rank, rank of the parent or -1) -> score added by that node; all [b]."""


def grow(
    shape: tuple[int, int, int],
    step: Step,
    budgets: np.ndarray,
    num_nodes: int,
    *,
    floor: np.ndarray | None = None,
    dtype: type = np.float64,
) -> BestFirst:
    """Pop the best open candidate, open its next sibling and its first child, until the budget is spent.

    Parameters
    ----------
    shape : (b, D, K)
    step : callable
        See :data:`Step`; -inf closes a candidate.
    budgets : int [b]
    num_nodes : int
        Slots N of the result.
    floor : float [b], optional
        Candidates below it are never opened, except on the path of first choices.
    dtype : type
        Number type in which scores are added.

    Notes
    -----
    Equal scores: the smaller parent index first, then the smaller rank.
    """
    batch, depth, width = shape
    row = np.arange(batch)
    most = int(max(0, budgets.max(initial=0)))
    out = BestFirst(
        *(np.full((batch, num_nodes), v, np.int32) for v in (-1, 0, -1)),
        np.full((batch, num_nodes), -np.inf),
        np.ones(batch, np.int32),
    )
    out.scores[:, 0] = 0.0
    score = np.full((batch, most + 2), -np.inf, dtype)
    parent, level, rank = (np.zeros((batch, most + 2), np.int64) for _ in range(3))
    above = np.full((batch, most + 2), -1, np.int64)  # rank of the parent; -1 at the root
    spine = np.zeros((batch, most + 2), bool)
    total = np.zeros((batch, most + 2), dtype)  # scores of the parents
    lowest = np.full(batch, -np.inf) if floor is None else floor

    def open_slot(at: np.ndarray, value: tuple, first: np.ndarray) -> None:
        node, deep, r, up, base = value
        fits = (deep < depth) & (r < width)
        added = step(row, np.minimum(deep, depth - 1), np.minimum(r, width - 1), up)
        new = np.where(fits, base + added.astype(dtype), -np.inf).astype(dtype)
        new = np.where((new >= lowest) | first, new, -np.inf)
        for array, v in ((score, new), (parent, node), (level, deep), (rank, r), (above, up), (total, base)):
            array[row, at] = v
        spine[row, at] = first

    zero = np.zeros(batch, np.int64)
    open_slot(zero, (zero, zero, zero, zero - 1, np.zeros(batch, dtype)), np.ones(batch, bool))
    for i in range(1, most + 1):
        now = score[:, :i]
        best = now.max(1)
        key = np.where(
            now == best[:, None], parent[:, :i] * (width + 1) + rank[:, :i], np.iinfo(np.int64).max
        )
        at = key.argmin(1)
        live = (best > -np.inf) & (i <= budgets)
        if not live.any():
            break
        chosen = tuple(a[row, at] for a in (parent, level, rank, above, total, spine))
        node, deep, r, up, base, first = chosen
        out.parents[live, i], out.depths[live, i] = node[live], deep[live] + 1
        out.ranks[live, i], out.scores[live, i] = r[live], best[live]
        out.counts[live] = i + 1
        open_slot(at, (node, deep, r + 1, up, base), np.zeros(batch, bool))
        open_slot(np.full(batch, i), (np.full(batch, i), deep + 1, zero, r, best), first)
    return out
