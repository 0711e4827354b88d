"""TensorRT-Edge-LLM's rule: best-first in float32, at most 8 ranks and 128 rows."""

from __future__ import annotations

import numpy as np

from ..tree import DraftTree
from .common import assemble, requests, row_faults
from .frontier import grow
from .select import usable_rows

MAX_BUDGET, MAX_RANKS = 127, 8


def edge(
    ids: np.ndarray,
    logprobs: np.ndarray,
    root_tokens: np.ndarray,
    budget: int | np.ndarray,
    *,
    num_nodes: int | None = None,
    max_depth: int | np.ndarray | None = None,
    max_rank: int | np.ndarray | None = None,
) -> DraftTree:
    """Build the best-first tree of the 8 best ranks with float32 scores; parameters as :func:`ddtree`.

    Source: TensorRT-Edge-LLM's tree kernel: K <= 8, at most 128 nodes with the root, score of a child =
    float32 sum of its parent's score and its log-prob, equal scores by the smaller parent index, then the
    smaller slot.

    Raises
    ------
    ValueError
        A budget above 127.
    """
    request = requests(ids, logprobs, root_tokens, budget, num_nodes, max_depth, max_rank)
    if (request.budgets > MAX_BUDGET).any():
        raise ValueError(
            f"budget: got {int(request.budgets.max())}, wanted at most {MAX_BUDGET} (policy edge)"
        )
    status, usable = row_faults(request.logprobs)
    rows = usable_rows(request, usable)[:, :, :MAX_RANKS].astype(np.float32)
    nodes = grow(
        rows.shape, lambda b, d, r, up: rows[b, d, r], request.budgets, request.num_nodes, dtype=np.float32
    )
    return assemble(nodes, request, status)


edge.nested = True
edge.max_budget = MAX_BUDGET
