"""Fan-out caps: no more ranks at a depth than a profile found useful there."""

from __future__ import annotations

import numpy as np

from ..tree import DraftTree
from .common import requests
from .ddtree import ddtree
from .select import table_rows


def fan_out(
    ids: np.ndarray,
    logprobs: np.ndarray,
    root_tokens: np.ndarray,
    budget: int | np.ndarray,
    *,
    caps: np.ndarray,
    table_index: np.ndarray | None = None,
    num_nodes: int | None = None,
    max_depth: int | np.ndarray | None = None,
    max_rank: int | np.ndarray | None = None,
) -> DraftTree:
    """Build the :func:`ddtree` tree from ranks below ``caps[d]`` at depth d.

    Source: JetSpec's (arXiv 2606.18394) builder ``depth_rank_histogram``: the cap of a depth is the number of
    ranks whose profiled acceptance reaches a threshold (:func:`fan_out_caps`).

    Parameters
    ----------
    caps : int [D] or [S, D]
        Ranks allowed per depth; 0 ends the tree there.
    table_index : int [b], optional
        Which of the S rows each request uses.  Other parameters as :func:`ddtree`.
    """
    request = requests(ids, logprobs, root_tokens, budget, num_nodes, max_depth, max_rank)
    batch, depth, width = request.logprobs.shape
    limits = table_rows(caps, table_index, "caps", (depth,), batch)
    if not (limits >= 0).all():
        raise ValueError("caps: wanted numbers of ranks, at least 0")
    rows = np.where(np.arange(width) < limits[:, :, None], request.logprobs, np.float32(-np.inf))
    rows = np.where(np.isnan(request.logprobs), request.logprobs, rows)  # a broken row stays a broken row
    return ddtree(request.ids, rows, request.roots, request.budgets, num_nodes=request.num_nodes)


fan_out.nested = True


def fan_out_caps(table: np.ndarray, threshold: float = 0.01) -> np.ndarray:
    """Return how many leading ranks have an acceptance of at least ``threshold``, int64 [..., D]; at least 1.

    Parameters
    ----------
    table : float [..., D, K]
        Acceptance by depth and rank, for example
        :func:`kdtree_cupy.acceptance.path_conditional_table`.
    """
    if not 0 <= threshold <= 1:
        raise ValueError(f"threshold: got {threshold}, wanted 0..1")
    useful = np.asarray(table, np.float64) >= threshold
    return np.maximum(np.logical_and.accumulate(useful, axis=-1).sum(-1), 1)
