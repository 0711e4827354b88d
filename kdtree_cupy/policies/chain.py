"""The chain baseline: the drafter's first choice at every position (plain block speculative decoding)."""

from __future__ import annotations

import numpy as np

from ..best_first import BestFirst
from ..tree import DraftTree
from .common import assemble, requests, row_faults


def chain(
    ids: np.ndarray,
    logprobs: np.ndarray,
    root_tokens: np.ndarray,
    budget: int | np.ndarray,
    *,
    num_nodes: int | None = None,
    max_depth: int | np.ndarray | None = None,
    max_rank: int | np.ndarray | None = None,
) -> DraftTree:
    """Return one path of ``min(budget, D)`` rank-0 nodes per request; parameters as :func:`ddtree`."""
    request = requests(ids, logprobs, root_tokens, budget, num_nodes, max_depth, max_rank)
    status, usable = row_faults(request.logprobs)
    best = request.logprobs[:, :, 0].astype(np.float64)
    batch, depth = best.shape
    finite = np.logical_and.accumulate(best > -np.inf, axis=1).sum(1)
    length = np.minimum(np.minimum(usable, finite), np.maximum(request.budgets, 0))
    steps = np.arange(request.num_nodes)
    on_chain = steps <= np.minimum(length, depth)[:, None]
    drafted = on_chain & (steps > 0)
    totals = np.full((batch, request.num_nodes), -np.inf)
    totals[:, 0] = 0.0
    reach = min(depth, request.num_nodes - 1)
    with np.errstate(invalid="ignore"):  # rows that are not used may hold anything
        totals[:, 1 : reach + 1] = np.cumsum(best[:, :reach], axis=1) + 0.0  # sums start from the root's 0.0
    nodes = BestFirst(
        parents=np.where(drafted, steps - 1, -1).astype(np.int32),
        depths=np.where(drafted, steps, 0).astype(np.int32),
        ranks=np.where(drafted, 0, -1).astype(np.int32),
        scores=np.where(on_chain, totals, -np.inf),
        counts=(length + 1).astype(np.int32),
    )
    return assemble(nodes, request, status)


chain.nested = True
