"""Sequoia: the best fixed shape for an acceptance vector by rank (dynamic program)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np

from ..positional import Path, best_tree, depth_table, hardware_optimum
from ..tree import DraftTree
from .common import requests, row_faults
from .select import fixed_shape, table_rows, usable_rows


@lru_cache(maxsize=64)
def _shape(
    vector: tuple[float, ...],
    nodes: int,
    levels: int,
    times: tuple[tuple[int, float], ...],
    draft_time: float,
) -> list[Path]:
    table = depth_table(np.array(vector), nodes, levels)
    if times:
        best = hardware_optimum(table, {n: t for n, t in times if n <= nodes}, draft_time)
        return best_tree(table, best.nodes, best.levels)
    while not np.isfinite(table.tokens[levels, nodes]):
        nodes -= 1  # more nodes than this vector and depth can hold
    return best_tree(table, nodes, levels)


def sequoia(
    ids: np.ndarray,
    logprobs: np.ndarray,
    root_tokens: np.ndarray,
    budget: int | np.ndarray,
    *,
    vector: np.ndarray,
    table_index: np.ndarray | None = None,
    levels: int | None = None,
    target_time: Mapping[int, float] | None = None,
    draft_time: float = 0.0,
    num_nodes: int | None = None,
    max_depth: int | np.ndarray | None = None,
    max_rank: int | np.ndarray | None = None,
) -> DraftTree:
    """Use the fixed tree that maximises expected tokens for ``vector``, the same vector at every depth.

    Source: Sequoia (arXiv 2402.12374): dynamic program over child sizes with a depth cap, and the choice of
    size and depth by measured times.  Looks at no log-prob of the round; unlike ``static`` it knows no depth,
    and it may skip over a dip of the vector that best-first growth stops at.

    Parameters
    ----------
    vector : float [K] or [S, K]
        Probability that the child of rank r is the accepted one, given its parent.
    table_index : int [b], optional
        Which of the S vectors each request uses.
    levels : int, optional
        Levels with the root (default: all drafted positions + 1).
    target_time, draft_time : mapping of nodes (root included) to time, float
        If given, a budget is a cap: size and depth are those with the least time per token.
    """
    request = requests(ids, logprobs, root_tokens, budget, num_nodes, max_depth, max_rank)
    status, usable = row_faults(request.logprobs)
    batch, depth, width = request.logprobs.shape
    vectors = table_rows(vector, table_index, "vector", (width,), batch)
    if not ((vectors >= 0) & (vectors <= 1)).all():
        raise ValueError("vector: got values outside [0, 1], wanted acceptance probabilities")
    if levels is not None and levels < 1:
        raise ValueError(f"levels: got {levels}, wanted at least 1")
    deepest = depth + 1 if levels is None else min(levels, depth + 1)
    times = tuple(sorted((target_time or {}).items()))
    rows = usable_rows(request, usable)
    out = fixed_shape(request, status, rows, [])
    keys = np.concatenate([vectors, np.maximum(request.budgets, 0)[:, None]], axis=1)
    kinds, group = np.unique(keys, axis=0, return_inverse=True)
    for g, kind in enumerate(kinds):
        mine = np.flatnonzero(group.reshape(-1) == g)
        paths = _shape(tuple(kind[:-1].tolist()), int(kind[-1]) + 1, deepest, times, draft_time)
        arrays = (request.ids[mine], request.logprobs[mine], request.roots[mine], request.budgets[mine])
        part = fixed_shape(type(request)(*arrays, request.num_nodes), status[mine], rows[mine], paths)
        for name in ("tokens", "parents", "depths", "ranks", "scores", "counts"):
            getattr(out, name)[mine] = getattr(part, name)
    return out
