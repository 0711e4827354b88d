"""SGLang's rule: few ranks, a bonus for depth, and a floor under which nothing is drafted."""

from __future__ import annotations

import numpy as np

from ..tree import DraftTree
from .chain import chain
from .common import assemble, requests, row_faults
from .frontier import grow
from .select import path_scores, usable_rows


def depth_bonus(
    ids: np.ndarray,
    logprobs: np.ndarray,
    root_tokens: np.ndarray,
    budget: int | np.ndarray,
    *,
    bonus: float = 0.2,
    most_ranks: int = 6,
    num_nodes: int | None = None,
    max_depth: int | np.ndarray | None = None,
    max_rank: int | np.ndarray | None = None,
) -> DraftTree:
    """Best-first with ``bonus`` nats added per step below depth 1, and unlikely branches left out.

    Source: the DDTree pull request of SGLang, as described in its code.  Three rules differ from
    :func:`ddtree`: K = min(max(B // D + 1, 2), ``most_ranks``) ranks; a child scores its parent + log-prob +
    bonus; candidates off the path of first choices with a score under lp[0, 0] - ln B - 1 are dropped with
    all below them, so trees may stay smaller than B.  A budget of exactly D gives the chain.

    Parameters
    ----------
    bonus : float
        Nats per level, >= 0.
    most_ranks : int
        Cap on K.  Other parameters as :func:`ddtree`.

    Notes
    -----
    Node order is the order of selection (theirs is breadth first); the node set is what counts.  Scores in
    the tree are plain sums of log-probs, without the bonus.
    """
    if not (np.isfinite(bonus) and bonus >= 0):
        raise ValueError(f"bonus: got {bonus}, wanted a finite number >= 0")
    if most_ranks < 1:
        raise ValueError(f"most_ranks: got {most_ranks}, wanted at least 1")
    request = requests(ids, logprobs, root_tokens, budget, num_nodes, max_depth, max_rank)
    status, usable = row_faults(request.logprobs)
    rows = usable_rows(request, usable)
    depth, width = rows.shape[1:]
    budgets = np.maximum(request.budgets, 0)
    ranks = np.minimum(np.maximum(budgets // depth + 1, 2), min(most_ranks, width))
    ranks = np.where(budgets == depth, 1, ranks)  # the chain
    rows = np.where(np.arange(width) < ranks[:, None, None], rows, -np.inf)
    floor = rows[:, 0, 0] - np.log(np.maximum(budgets, 1)) - 1.0
    nodes = grow(
        rows.shape,
        lambda b, d, r, up: rows[b, d, r] + bonus * (d > 0),
        budgets,
        request.num_nodes,
        floor=floor,
    )
    return assemble(nodes._replace(scores=path_scores(nodes, rows)), request, status)


depth_bonus.baseline = chain  # what a budget of D gives
