"""The long-run budget: one price of time for all rounds."""

from __future__ import annotations

import numpy as np

from ..cost import CostTable
from ..tree import DraftTree
from .caddtree import expected_by_budget, round_costs
from .ddtree import ddtree
from .select import truncate


def longrun(
    ids: np.ndarray,
    logprobs: np.ndarray,
    root_tokens: np.ndarray,
    budget: int | np.ndarray,
    *,
    rate: float,
    cost: str | CostTable = "caddtree-a800-8b",
    context: float | None = None,
    num_nodes: int | None = None,
    max_depth: int | np.ndarray | None = None,
    max_rank: int | np.ndarray | None = None,
) -> DraftTree:
    """Cut the :func:`ddtree` tree at the n that maximises (1 + Phi(n)) - rate * C(n).

    Own rule, from Dinkelbach's method for ratios: tokens per time over many rounds is E[1 + Phi] / E[C], and
    the best n of each round is the argmax above with ``rate`` = that throughput (:func:`long_run_rate`).
    Easy rounds go on where :func:`caddtree` stops, hard ones stop earlier.

    Parameters
    ----------
    rate : float
        Tokens per autoregressive step's time, > 0.
    cost, context
        As :func:`caddtree`.  Other parameters as :func:`ddtree`.

    Notes
    -----
    A full scan, so steps in the cost do no harm; the smallest of equal n.  Not nested: a larger cap may find
    a better n beyond a step.
    """
    if not (np.isfinite(rate) and rate > 0):
        raise ValueError(f"rate: got {rate}, wanted a finite number > 0")
    tree = ddtree(
        ids, logprobs, root_tokens, budget, num_nodes=num_nodes, max_depth=max_depth, max_rank=max_rank
    )
    value = expected_by_budget(tree) - rate * round_costs(cost, tree.num_nodes - 1, context)
    value = np.where(np.arange(tree.num_nodes) < np.maximum(tree.counts, 1)[:, None], value, -np.inf)
    return truncate(tree, value.argmax(1))


longrun.adaptive = True


def long_run_rate(phi: np.ndarray, costs: np.ndarray, *, rounds: int = 50) -> float:
    """Return the largest ratio of sums, sum(1 + Phi) / sum(C), over one n per row, by Dinkelbach's iteration.

    Parameters
    ----------
    phi : float [R, n]
        Expected accepted drafts of each round by number of nodes 0..n-1.
    costs : float [n]
        Cost of a round by number of nodes.

    Examples
    --------
    >>> phi = np.array([[0.0, 0.5, 0.6], [0.0, 0.9, 1.7]])
    >>> round(long_run_rate(phi, np.array([1.0, 1.1, 1.3])), 4)
    1.75
    """
    phi, costs = np.asarray(phi, np.float64), np.asarray(costs, np.float64)
    if phi.ndim != 2 or phi.size == 0 or costs.shape != phi.shape[1:] or not (costs > 0).all():
        raise ValueError(f"phi {phi.shape}, costs {costs.shape}: wanted [rounds, n] and [n] with costs > 0")
    rate = 0.0
    for _ in range(rounds):
        best = (phi - rate * costs).argmax(1)
        new = (1.0 + phi[np.arange(len(phi)), best]).sum() / costs[best].sum()
        if new <= rate * (1 + 1e-12):
            break
        rate = float(new)
    return rate
