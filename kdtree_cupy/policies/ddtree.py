"""DDTree: the B heaviest prefixes under the drafter's marginals (arXiv 2604.12989, algorithm 1)."""

from __future__ import annotations

import numpy as np

from ..best_first import best_first
from ..refs.tree_build import tree_build as reference_tree_build
from ..tree import DraftTree
from .common import assemble, requests, row_faults


def ddtree(
    ids: np.ndarray,
    logprobs: np.ndarray,
    root_tokens: np.ndarray,
    budget: int | np.ndarray,
    *,
    num_nodes: int | None = None,
    max_depth: int | np.ndarray | None = None,
    max_rank: int | np.ndarray | None = None,
) -> DraftTree:
    """Build the best-first tree of every request; equals :func:`kdtree_cupy.tree_build` bit for bit.

    Trees are nested: the tree of budget B is the first B nodes of any larger one.

    Parameters
    ----------
    ids : int [b, D, K]
        Drafter tokens, best first.
    logprobs : float32 [b, D, K]
        Their log-probs, descending and <= 0.
    root_tokens : int [b]
        Last committed token of each request.
    budget : int or int [b]
        Draft nodes B, root excluded; 0 gives the root only, -1 an idle slot.
    num_nodes : int, optional
        Slots N per request (default: largest budget + 1).
    max_depth, max_rank : int or int [b], optional
        Deepest level and number of ranks that may be used.

    Returns
    -------
    DraftTree
        With status bits for NaN rows (bit 0) and for unsorted or positive rows (bit 1).
    """
    request = requests(ids, logprobs, root_tokens, budget, num_nodes, max_depth, max_rank)
    status, _ = row_faults(request.logprobs)
    clean = status == 0
    # Rows that break the sorting contract have no "B best": what the heap pops is the definition then.
    nodes = best_first(
        np.where(clean[:, None, None], request.logprobs, np.float32(-np.inf)),
        np.maximum(request.budgets, 0),
        request.num_nodes,
    )
    tree = assemble(nodes, request, status)
    for b in np.flatnonzero(~clean & (request.budgets > 0)):
        one, _, _ = reference_tree_build(
            request.ids[b : b + 1].astype(np.int32),
            request.logprobs[b : b + 1],
            request.roots[b : b + 1],
            request.budgets[b : b + 1],
            num_nodes=request.num_nodes,
        )
        for name in ("tokens", "parents", "depths", "ranks", "scores", "counts", "status"):
            getattr(tree, name)[b] = getattr(one, name)[0]
    return tree


ddtree.nested = True
ddtree.exact = True
