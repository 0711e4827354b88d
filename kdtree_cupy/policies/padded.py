"""Leftover rows: a tree that stays below its budget is filled with further children of the root."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..tree import DraftTree
from .common import requests, row_faults
from .depth_bonus import depth_bonus
from .select import select, usable_rows


def padded(
    ids: np.ndarray,
    logprobs: np.ndarray,
    root_tokens: np.ndarray,
    budget: int | np.ndarray,
    *,
    base: Callable[..., DraftTree] = depth_bonus,
    num_nodes: int | None = None,
    max_depth: int | np.ndarray | None = None,
    max_rank: int | np.ndarray | None = None,
    **options: Any,
) -> DraftTree:
    """Build the tree of ``base`` and add the best unused tokens of depth 1 until B nodes stand.

    Source: the padding rule of DDTree builders in serving engines.  Rows that are verified anyway (fixed
    batch shapes) then hold a candidate instead of nothing: lossless, and acceptance can only rise.  It
    differs from :func:`ddtree` as its base does: :func:`depth_bonus`, which leaves rows over.

    Parameters
    ----------
    base : callable
        A policy; ``options`` go to it.  Other parameters as :func:`ddtree`.
    """
    request = requests(ids, logprobs, root_tokens, budget, num_nodes, max_depth, max_rank)
    status, usable = row_faults(request.logprobs)
    rows = usable_rows(request, usable)
    arrays = (request.ids, request.logprobs, request.roots, request.budgets)
    tree = base(*arrays, num_nodes=request.num_nodes, **options)
    width = rows.shape[2]
    drafted = np.arange(tree.num_nodes) < tree.counts[:, None]
    used = np.zeros((tree.batch, width), bool)
    b, node = np.nonzero(drafted & (tree.depths == 1))
    used[b, tree.ranks[b, node]] = True
    extra = np.broadcast_to(np.arange(width), used.shape)
    join = np.concatenate
    return select(
        request,
        status,
        join([tree.parents - 1, np.full_like(extra, -1)], axis=1)[:, 1:],
        join([tree.depths, np.ones_like(extra)], axis=1)[:, 1:],
        join([tree.ranks, extra], axis=1)[:, 1:],
        join([tree.scores, rows[:, 0]], axis=1)[:, 1:],
        join([drafted, ~used & (rows[:, 0] > -np.inf)], axis=1)[:, 1:],
    )
