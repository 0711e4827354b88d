"""Make trees from lists of candidates: keep some, cut at the budget, number them anew."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..best_first import BestFirst
from ..tree import DraftTree
from .common import Requests, assemble

Array = np.ndarray


def select(
    request: Requests, status: Array, parents: Array, depths: Array, ranks: Array, scores: Array, keep: Array
) -> DraftTree:
    """Return the trees of the kept candidates, in their order, at most ``budget`` each.

    Parameters
    ----------
    request, status
        From :mod:`.common`.
    parents : int [b, M]
        Index of each candidate's parent among the candidates, earlier than itself; -1 for the root.
    depths, ranks : int [b, M]
        Depths from 1.
    scores : float64 [b, M]
    keep : bool [b, M]
        A candidate whose parent is not kept, or cut by the budget, must not be kept: parents come first, so
        only ``keep`` has to see to it.
    """
    batch, slots = request.budgets.size, request.num_nodes
    place = np.cumsum(keep, axis=1)
    keep = keep & (place <= np.maximum(request.budgets, 0)[:, None])
    rows, column = np.nonzero(keep)
    at = place[rows, column]
    out = BestFirst(
        parents=np.full((batch, slots), -1, np.int32),
        depths=np.zeros((batch, slots), np.int32),
        ranks=np.full((batch, slots), -1, np.int32),
        scores=np.full((batch, slots), -np.inf),
        counts=(keep.sum(1) + 1).astype(np.int32),
    )
    out.scores[:, 0] = 0.0
    above = parents[rows, column]
    out.parents[rows, at] = np.where(above < 0, 0, place[rows, np.maximum(above, 0)])
    out.depths[rows, at] = depths[rows, column]
    out.ranks[rows, at] = ranks[rows, column]
    out.scores[rows, at] = scores[rows, column]
    return assemble(out, request, status)


def path_scores(nodes: BestFirst, rows: Array) -> Array:
    """Return the sum of log-probs along every node's path, float64 [b, N]; -inf in padding."""
    b = np.arange(nodes.parents.shape[0])[:, None]
    out = np.full(nodes.parents.shape, -np.inf)
    out[:, 0] = 0.0
    for d in range(1, rows.shape[1] + 1):
        level = nodes.depths == d
        added = rows[b, d - 1, np.maximum(nodes.ranks, 0)]
        out = np.where(level, out[b, np.maximum(nodes.parents, 0)] + added, out)
    return out


def usable_rows(request: Requests, usable: Array) -> Array:
    """Return the log-probs with -inf from the first broken row on, float64 [b, D, K]."""
    depth = request.logprobs.shape[1]
    open_ = np.arange(depth) < usable[:, None]
    return np.where(open_[:, :, None], request.logprobs, -np.inf).astype(np.float64)


def fixed_shape(request: Requests, status: Array, rows: Array, paths: Sequence[tuple[int, ...]]) -> DraftTree:
    """Return the trees of one list of rank paths, parents first; nodes that are not on offer are left out.

    Parameters
    ----------
    request, status
        From :mod:`.common`.
    rows : float64 [b, D, K]
        From :func:`usable_rows`; scores are sums of them.
    paths : sequence of rank tuples
    """
    batch, depth, width = rows.shape
    fits = [path for path in paths if len(path) <= depth and max(path) < width]
    where = {path: i for i, path in enumerate(fits)}
    shape = (batch, len(fits))
    parents = np.array([where.get(path[:-1], -1) for path in fits], np.int64)
    depths, ranks = np.array([len(p) for p in fits], int), np.array([p[-1] for p in fits], int)
    scores = np.full(shape, -np.inf)
    for d in range(1, int(depths.max(initial=0)) + 1):
        level = np.flatnonzero(depths == d)
        above = scores[:, parents[level]] if d > 1 else 0.0
        scores[:, level] = above + rows[:, d - 1, ranks[level]]
    wide = [np.broadcast_to(x, shape) for x in (parents, depths, ranks)]
    return select(request, status, *wide, scores, scores > -np.inf)


def table_rows(
    table: Array, table_index: Array | None, name: str, shape: tuple[int, ...], batch: int
) -> Array:
    """Return the table of every request, [b, *shape], from one table or from ``table_index`` into several.

    Raises
    ------
    ValueError
        Another shape, or an index out of range.
    """
    tables = np.asarray(table, np.float64)
    tables = tables[None] if tables.ndim == len(shape) else tables
    if tables.shape[1:] != shape or tables.shape[0] == 0:
        raise ValueError(
            f"{name}: got shape {np.shape(table)}, wanted {list(shape)} or [tables, *{list(shape)}]"
        )
    which = np.zeros(batch, np.int64) if table_index is None else np.asarray(table_index, np.int64)
    if which.shape != (batch,) or ((which < 0) | (which >= len(tables))).any():
        raise ValueError(f"table_index: wanted {batch} values in 0..{len(tables) - 1}")
    return tables[which]


def truncate(tree: DraftTree, nodes: Array) -> DraftTree:
    """Return the trees cut to their first ``nodes`` [b] drafted nodes; padding is cleared."""
    counts = np.where(tree.counts > 0, np.minimum(tree.counts, nodes + 1), 0).astype(np.int32)
    gone = np.arange(tree.num_nodes) >= counts[:, None]
    blank = ((tree.tokens, 0), (tree.parents, -1), (tree.depths, 0), (tree.ranks, -1), (tree.scores, -np.inf))
    arrays = [np.where(gone, np.asarray(value, array.dtype), array) for array, value in blank]
    return DraftTree(*arrays, counts, tree.status)
