"""OPT-Tree: the best B nodes, but no deeper than each further layer pays for."""

from __future__ import annotations

import numpy as np

from ..tree import DraftTree
from .common import requests
from .ddtree import ddtree


def opt_tree(
    ids: np.ndarray,
    logprobs: np.ndarray,
    root_tokens: np.ndarray,
    budget: int | np.ndarray,
    *,
    threshold: float = 0.5,
    num_nodes: int | None = None,
    max_depth: int | np.ndarray | None = None,
    max_rank: int | np.ndarray | None = None,
) -> DraftTree:
    """Add layers while the best B nodes' expected acceptance grows by at least ``threshold`` tokens.

    Source: OPT-Tree (arXiv 2406.17276): E(A) = sum of path probabilities, drafted layer by layer with an
    autoregressive drafter, for which a layer costs a pass; hence the stop.  A block drafter gets all layers
    in one pass, so here the stop only loses: ``threshold=0`` is :func:`ddtree`.

    Parameters
    ----------
    threshold : float
        Least gain in expected tokens of a layer (theirs: 0.5), >= 0; the layer that gains less is drafted
        already and stays.  Other parameters as :func:`ddtree`.
    """
    if not (np.isfinite(threshold) and threshold >= 0):
        raise ValueError(f"threshold: got {threshold}, wanted a finite number >= 0")
    request = requests(ids, logprobs, root_tokens, budget, num_nodes, max_depth, max_rank)
    batch, depth, _ = request.logprobs.shape
    arrays = (request.ids, request.logprobs, request.roots, request.budgets)
    layers = np.full(batch, depth)
    before = np.zeros(batch)
    active = np.flatnonzero(request.budgets > 0) if threshold > 0 else np.zeros(0, np.int64)
    for d in range(1, depth):
        if active.size == 0:
            break
        part = ddtree(*(a[active] for a in arrays), num_nodes=request.num_nodes, max_depth=d)
        real = np.arange(part.num_nodes) < part.counts[:, None]
        real[:, 0] = False
        now = np.exp(np.where(real, part.scores, -np.inf)).sum(1)
        stop = now - before[active] < threshold
        layers[active[stop]] = d
        before[active] = now
        active = active[~stop]
    return ddtree(*arrays, num_nodes=request.num_nodes, max_depth=layers.astype(np.int32))
