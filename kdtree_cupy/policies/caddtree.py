"""CaDDTree: stop adding nodes when the round's own tokens per time would fall."""

from __future__ import annotations

import numpy as np

from ..cost import CostTable, load_cost, round_in_ar_steps
from ..tree import DraftTree
from .ddtree import ddtree
from .select import truncate


def expected_by_budget(tree: DraftTree) -> np.ndarray:
    """Return Phi(n), the summed probability of the first n drafted nodes, float64 [b, N]; Phi(0) = 0."""
    real = (np.arange(tree.num_nodes) < tree.counts[:, None]) & (tree.depths > 0)
    return np.cumsum(np.exp(np.where(real, tree.scores, -np.inf)), axis=1)


def round_costs(cost: str | CostTable, nodes: int, context: float | None) -> np.ndarray:
    """Return the cost of a round of 0..nodes draft nodes in autoregressive steps, float64 [nodes + 1]."""
    table = load_cost(cost) if isinstance(cost, str) else cost
    return round_in_ar_steps(table, np.arange(nodes + 1.0), context=context)


def caddtree(
    ids: np.ndarray,
    logprobs: np.ndarray,
    root_tokens: np.ndarray,
    budget: int | np.ndarray,
    *,
    cost: str | CostTable = "caddtree-a800-8b",
    context: float | None = None,
    num_nodes: int | None = None,
    max_depth: int | np.ndarray | None = None,
    max_rank: int | np.ndarray | None = None,
) -> DraftTree:
    """Cut the :func:`ddtree` tree at the first n with theta(n + 1) <= theta(n), theta = (1 + Phi(n)) / C(n).

    Source: CaDDTree (arXiv 2606.01813).  ``budget`` is a cap.  For convex costs theta has one peak and the
    stop finds it; a cost with steps can stop it short (:func:`longrun` scans all n).  Each round maximises
    its own ratio, which is not the ratio of sums that throughput is.

    Parameters
    ----------
    cost : str or CostTable
        Cost of a round by nodes; a name as in ``kdtree study --cost list``.
    context : float, optional
        Prefix length for the table (default: its own).  Other parameters as :func:`ddtree`.
    """
    tree = ddtree(
        ids, logprobs, root_tokens, budget, num_nodes=num_nodes, max_depth=max_depth, max_rank=max_rank
    )
    theta = (1.0 + expected_by_budget(tree)) / round_costs(cost, tree.num_nodes - 1, context)
    end = np.ones((tree.batch, 1), bool)
    falls = np.concatenate([theta[:, 1:] <= theta[:, :-1], end], axis=1)
    return truncate(tree, falls.argmax(1))


caddtree.nested = True
caddtree.adaptive = True
