"""JetSpec's rule: take the heaviest node and give it all its children at once."""

from __future__ import annotations

import numpy as np

from .. import checks
from ..tree import DraftTree
from .common import requests, row_faults
from .select import select, usable_rows


def accum_logp(
    ids: np.ndarray,
    logprobs: np.ndarray,
    root_tokens: np.ndarray,
    budget: int | np.ndarray,
    *,
    width: int = 7,
    num_nodes: int | None = None,
    max_depth: int | np.ndarray | None = None,
    max_rank: int | np.ndarray | None = None,
) -> DraftTree:
    """Expand the node of largest score by its ``width`` best children, in rank order, until B nodes stand.

    Source: JetSpec (arXiv 2606.18394), builder ``accum_logp``; its budgets include the root, ours do not.
    The last children of an expansion are in the tree although better nodes elsewhere are not: it is not the
    best tree of its size, least so for small budgets and peaked rows.

    Parameters
    ----------
    width : int
        Children per expansion, at least 1 (theirs: 7).  Other parameters as :func:`ddtree`.

    Notes
    -----
    Equal scores: the node that was added first.  Node order is the order of addition.
    """
    request = requests(ids, logprobs, root_tokens, budget, num_nodes, max_depth, max_rank)
    width = checks.integer(width, "width", 1, checks.INT32[1])
    status, usable = row_faults(request.logprobs)
    rows = usable_rows(request, usable)[:, :, :width]
    batch, depth, fan = rows.shape
    b = np.arange(batch)
    most = int(max(0, request.budgets.max(initial=0)))
    size = 1 + fan * (most + 1)
    score = np.full((batch, size), -np.inf)
    score[:, 0] = 0.0
    parents, depths, ranks = (np.zeros((batch, size), np.int64) for _ in range(3))
    open_ = score.copy()  # scores of nodes not expanded yet
    done = 1
    while done < size and (np.isfinite(score[:, 1:done]).sum(1) < request.budgets).any():
        at = open_[:, :done].argmax(1)
        alive = np.isfinite(open_[b, at]) & (depths[b, at] < depth)
        deep = np.minimum(depths[b, at], depth - 1)
        new = slice(done, done + fan)
        grown = np.where(alive[:, None], score[b, at][:, None] + rows[b, deep], -np.inf)
        score[:, new] = open_[:, new] = grown
        parents[:, new], depths[:, new], ranks[:, new] = at[:, None], (deep + 1)[:, None], np.arange(fan)
        open_[b, at] = -np.inf
        if not np.isfinite(open_[:, : done + fan]).any():
            break
        done += fan
    part = slice(1, min(done + fan, size))
    lists = (parents[:, part] - 1, depths[:, part], ranks[:, part], score[:, part])
    return select(request, status, *lists, lists[3] > -np.inf)


accum_logp.nested = True
