"""A complete tree of fixed fan-out, level by level: the shape people try first."""

from __future__ import annotations

import numpy as np

from .. import checks
from ..tree import DraftTree
from .common import requests, row_faults
from .select import fixed_shape, usable_rows


def kary(
    ids: np.ndarray,
    logprobs: np.ndarray,
    root_tokens: np.ndarray,
    budget: int | np.ndarray,
    *,
    fan_out: int = 2,
    num_nodes: int | None = None,
    max_depth: int | np.ndarray | None = None,
    max_rank: int | np.ndarray | None = None,
) -> DraftTree:
    """Give every node its ``fan_out`` best children, breadth first, until the budget is spent.

    Source: the k-ary trees of SpecInfer (arXiv 2305.09781) with one expansion number for all levels.  Looks
    at no log-prob, so it spends half of its nodes on the deepest, least likely level.  ``fan_out=1`` is the
    chain.

    Parameters
    ----------
    fan_out : int
        Children per node, at least 1.  Other parameters as :func:`ddtree`.
    """
    request = requests(ids, logprobs, root_tokens, budget, num_nodes, max_depth, max_rank)
    fan_out = checks.integer(fan_out, "fan_out", 1, checks.INT32[1])
    status, usable = row_faults(request.logprobs)
    depth, width = request.logprobs.shape[1:]
    k = min(fan_out, width)
    paths: list[tuple[int, ...]] = [()]
    wanted = 4 * request.num_nodes + 64  # some may not be on offer
    i = 0
    while len(paths) <= wanted and i < len(paths) and len(paths[i]) < depth:
        paths += [(*paths[i], r) for r in range(k)]
        i += 1
    return fixed_shape(request, status, usable_rows(request, usable), paths[1:])


kary.nested = True
