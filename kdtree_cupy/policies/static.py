"""One fixed tree shape for every round, from a table of acceptance by (depth, rank) (Medusa, Sequoia)."""

from __future__ import annotations

import numpy as np

from ..best_first import BestFirst, best_first
from ..tree import DraftTree
from .common import assemble, requests, row_faults


def static(
    ids: np.ndarray,
    logprobs: np.ndarray,
    root_tokens: np.ndarray,
    budget: int | np.ndarray,
    *,
    table: np.ndarray,
    table_index: np.ndarray | None = None,
    num_nodes: int | None = None,
    max_depth: int | np.ndarray | None = None,
    max_rank: int | np.ndarray | None = None,
) -> DraftTree:
    """Grow the tree best-first on a positional table instead of on the drafter's log-probs.

    The shape depends on the table only, so it is built once per table and reused.  Node scores are sums of
    the table's log-acceptances.  Other parameters as :func:`ddtree`.

    Parameters
    ----------
    table : float [S, D, K] or [D, K]
        Acceptance of rank r at depth d given that the path above was accepted, in [0, 1]; see
        :func:`kdtree_cupy.acceptance.path_conditional_table`.  Need not fall with the rank.
    table_index : int [b], optional
        Which of the S tables each request uses (default: the first).

    Raises
    ------
    ValueError
        A table of another shape than the rows, or with values outside [0, 1].
    """
    request = requests(ids, logprobs, root_tokens, budget, num_nodes, max_depth, max_rank)
    tables = np.asarray(table, np.float64)
    tables = tables[None] if tables.ndim == 2 else tables
    batch, depth, width = request.logprobs.shape
    if tables.ndim != 3 or tables.shape[1:] != (depth, width):
        raise ValueError(f"table: got shape {tables.shape}, wanted [tables, {depth}, {width}]")
    if not ((tables >= 0) & (tables <= 1)).all():
        raise ValueError("table: got values outside [0, 1], wanted acceptance probabilities")
    which = np.zeros(batch, np.int64) if table_index is None else np.asarray(table_index, np.int64)
    if which.shape != (batch,) or ((which < 0) | (which >= len(tables))).any():
        raise ValueError(f"table_index: wanted {batch} values in 0..{len(tables) - 1}")
    status, usable = row_faults(request.logprobs)
    # Ranks that the drafter cannot offer (-inf, beyond max_depth or max_rank, after a NaN row) are ruled out.
    offered = np.isfinite(request.logprobs) & (np.arange(depth)[None, :, None] < usable[:, None, None])
    bits = np.packbits(offered.reshape(batch, depth * width), axis=1)
    shapes = np.concatenate([which[:, None], request.budgets[:, None], bits], axis=1)
    _, first, group = np.unique(shapes, axis=0, return_index=True, return_inverse=True)
    with np.errstate(divide="ignore"):
        logs = np.log(np.where(offered[first], tables[which[first]], 0.0)).astype(np.float32)
    by_value = np.argsort(-logs, axis=2, kind="stable")  # the best-first rule wants descending rows
    nodes = best_first(
        np.take_along_axis(logs, by_value, axis=2), np.maximum(request.budgets[first], 0), request.num_nodes
    )
    drafted = nodes.ranks >= 0
    g = np.arange(len(first))[:, None]
    ranks = by_value[g, np.maximum(nodes.depths - 1, 0), np.maximum(nodes.ranks, 0)]
    nodes = nodes._replace(ranks=np.where(drafted, ranks, -1).astype(np.int32))
    return assemble(BestFirst(*(part[group.reshape(-1)] for part in nodes)), request, status)


static.nested = True
