"""Spine first: the path of first choices is always whole, the rest of the budget goes best-first."""

from __future__ import annotations

import numpy as np

from ..tree import DraftTree
from .common import requests, row_faults
from .ddtree import ddtree
from .select import select, usable_rows


def spine(
    ids: np.ndarray,
    logprobs: np.ndarray,
    root_tokens: np.ndarray,
    budget: int | np.ndarray,
    *,
    num_nodes: int | None = None,
    max_depth: int | np.ndarray | None = None,
    max_rank: int | np.ndarray | None = None,
) -> DraftTree:
    """Put the chain in first, then the best nodes off it; parameters as :func:`ddtree`.

    Source: the spine-first option of DDTree builders in serving engines.  Budgets up to D give the chain, so
    no budget accepts fewer drafts than the chain of min(B, D); above that it trades the last nodes of the
    :func:`ddtree` tree for the unlikely end of the spine.
    """
    request = requests(ids, logprobs, root_tokens, budget, num_nodes, max_depth, max_rank)
    status, usable = row_faults(request.logprobs)
    rows = usable_rows(request, usable)
    batch, depth, _ = rows.shape
    tree = ddtree(request.ids, request.logprobs, request.roots, request.budgets, num_nodes=request.num_nodes)
    on_spine = np.zeros(tree.tokens.shape, bool)
    on_spine[:, 0] = True
    b = np.arange(batch)[:, None]
    up = np.maximum(tree.parents, 0)
    for _ in range(depth):
        on_spine[:, 1:] = on_spine[b, up][:, 1:] & (tree.ranks[:, 1:] == 0)
    # Candidates: the spine at 0..D-1, then every node of the tree (root at D) in its order.
    parent_on_spine = on_spine[b, up] & (up > 0)
    above = np.where(up == 0, -1, np.where(parent_on_spine, tree.depths[b, up] - 1, depth + up))
    chain_score = np.cumsum(rows[:, :, 0], axis=1)
    steps = np.broadcast_to(np.arange(depth), (batch, depth))
    off = (tree.ranks >= 0) & ~on_spine
    join = np.concatenate
    return select(
        request,
        status,
        join([steps - 1, above], axis=1),
        join([steps + 1, tree.depths], axis=1),
        join([np.zeros_like(steps), tree.ranks], axis=1),
        join([chain_score, tree.scores], axis=1),
        join([chain_score > -np.inf, off], axis=1),
    )


spine.nested = True
