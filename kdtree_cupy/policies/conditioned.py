"""Prefix-conditioned estimates: off the drafter's first choices a marginal is worth less."""

from __future__ import annotations

import numpy as np

from ..tree import DraftTree
from .common import assemble, requests, row_faults
from .frontier import grow
from .select import table_rows, usable_rows

CLASSES = 4


def rank_class(rank: np.ndarray) -> np.ndarray:
    """Return the class of a parent: 0 the root or a first choice, 1 rank 1, 2 ranks 2-3, 3 the others."""
    return np.digitize(rank, [1, 2, 4])


def conditioned(
    ids: np.ndarray,
    logprobs: np.ndarray,
    root_tokens: np.ndarray,
    budget: int | np.ndarray,
    *,
    gains: np.ndarray,
    table_index: np.ndarray | None = None,
    num_nodes: int | None = None,
    max_depth: int | np.ndarray | None = None,
    max_rank: int | np.ndarray | None = None,
) -> DraftTree:
    """Best-first search with log-probs corrected by depth and by the parent's rank.

    Own rule, in the spirit of TAPS (arXiv 2606.00487), whose estimator is not public in detail: a block
    drafter's marginal at depth d averages over all prefixes; given a prefix it is better or worse.  The child
    of rank r at depth d scores lp + log g[d, class of the parent's rank], with g = accepted / predicted on
    recorded paths (:func:`kdtree_cupy.policy_fit.fit_gains`), cut so that a row's mass stays at most 1.
    Gains of 1 give :func:`ddtree` (equal scores may come in another order).

    Parameters
    ----------
    gains : float [D, 4] or [S, D, 4]
        Positive, by depth and :func:`rank_class`.
    table_index : int [b], optional
        Which of the S tables each request uses.  Other parameters as :func:`ddtree`.
    """
    request = requests(ids, logprobs, root_tokens, budget, num_nodes, max_depth, max_rank)
    status, usable = row_faults(request.logprobs)
    rows = usable_rows(request, usable)
    batch, depth, _ = rows.shape
    table = table_rows(gains, table_index, "gains", (depth, CLASSES), batch)
    if not (np.isfinite(table) & (table > 0)).all():
        raise ValueError("gains: wanted finite numbers > 0")
    mass = np.maximum(np.exp(np.minimum(rows, 0.0)).sum(2), 1e-30)
    correction = np.log(np.minimum(table, np.maximum(1.0 / mass, 1.0)[:, :, None]))
    correction = np.minimum(correction, np.where(np.isfinite(rows[:, :, :1]), -rows[:, :, :1], 0.0))

    def step(b: np.ndarray, d: np.ndarray, r: np.ndarray, up: np.ndarray) -> np.ndarray:
        return rows[b, d, r] + correction[b, d, rank_class(up)]

    nodes = grow(rows.shape, step, np.maximum(request.budgets, 0), request.num_nodes)
    return assemble(nodes, request, status)


conditioned.nested = True
