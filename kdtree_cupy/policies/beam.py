"""EAGLE-2/3: a beam of the best nodes of each depth, then the best B of all candidates."""

from __future__ import annotations

import numpy as np

from .. import checks
from ..tree import DraftTree
from .common import requests, row_faults
from .select import select, usable_rows


def beam(
    ids: np.ndarray,
    logprobs: np.ndarray,
    root_tokens: np.ndarray,
    budget: int | np.ndarray,
    *,
    top_k: int = 10,
    num_nodes: int | None = None,
    max_depth: int | np.ndarray | None = None,
    max_rank: int | np.ndarray | None = None,
) -> DraftTree:
    """Grow ``top_k`` children of each of the ``top_k`` best nodes per depth; keep the best B candidates.

    Source: EAGLE-2 (arXiv 2406.16858) and EAGLE-3.  Made for a drafter that runs once per depth; on marginals
    it is :func:`ddtree` except for nodes that the beam cut, which matters for budgets far above ``top_k``.

    Parameters
    ----------
    top_k : int
        Beam width and ranks per node (theirs: 10).  Other parameters as :func:`ddtree`.

    Notes
    -----
    Equal scores: shallower first, then by beam position and rank.  Node order is by score (theirs is by
    level); the set of nodes is the same.
    """
    request = requests(ids, logprobs, root_tokens, budget, num_nodes, max_depth, max_rank)
    top_k = checks.integer(top_k, "top_k", 1, checks.INT32[1])
    status, usable = row_faults(request.logprobs)
    rows = usable_rows(request, usable)[:, :, :top_k]
    batch, depth, fan = rows.shape
    b = np.arange(batch)[:, None]
    above, node = np.zeros((batch, 1)), np.full((batch, 1), -1)
    parts: list[tuple[np.ndarray, ...]] = []
    offset = 0
    for d in range(depth):
        grown = (above[:, :, None] + rows[:, d, None, :]).reshape(batch, above.shape[1] * fan)
        parent = np.repeat(node, fan, axis=1)
        rank = np.broadcast_to(np.tile(np.arange(fan), node.shape[1]), grown.shape)
        parts.append((parent, np.full(grown.shape, d + 1), rank, grown))
        kept = np.argsort(-grown, axis=1, kind="stable")[:, :top_k]
        above, node = grown[b, kept], offset + kept
        offset += grown.shape[1]
    parents, depths, ranks, scores = (np.concatenate(column, axis=1) for column in zip(*parts, strict=True))
    order = np.argsort(-scores, axis=1, kind="stable")[:, : request.num_nodes]
    place = np.full(scores.shape, -1)
    np.put_along_axis(place, order, np.arange(order.shape[1])[None], axis=1)
    up = parents[b, order]
    up = np.where(up < 0, -1, place[b, np.maximum(up, 0)])
    chosen = scores[b, order]
    return select(request, status, up, depths[b, order], ranks[b, order], chosen, chosen > -np.inf)


beam.nested = True
