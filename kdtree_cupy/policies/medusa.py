"""Medusa: a published list of rank paths, or one grown greedily from accuracies by depth and rank."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..positional import closed, grow_greedily
from ..published import medusa_choices
from ..tree import DraftTree
from .common import requests, row_faults
from .select import fixed_shape, usable_rows


def medusa(
    ids: np.ndarray,
    logprobs: np.ndarray,
    root_tokens: np.ndarray,
    budget: int | np.ndarray,
    *,
    choices: str | Sequence[Sequence[int]] = "mc_sim_7b_63",
    accuracy: np.ndarray | None = None,
    num_nodes: int | None = None,
    max_depth: int | np.ndarray | None = None,
    max_rank: int | np.ndarray | None = None,
) -> DraftTree:
    """Use the first B nodes of a fixed list; a budget beyond its length gives the whole list.

    Source: Medusa (arXiv 2401.10774): 63 nodes in order of insertion.  The list was made for other heads; it
    ignores the round's log-probs, and its depth ends at 4.

    Parameters
    ----------
    choices : str or sequence of rank paths
        A published name (:func:`kdtree_cupy.published.medusa_choices`), or paths with parents first.
    accuracy : float [D, K], optional
        Grow the list from this table instead (largest product first).  Other parameters as :func:`ddtree`.
    """
    request = requests(ids, logprobs, root_tokens, budget, num_nodes, max_depth, max_rank)
    status, usable = row_faults(request.logprobs)
    if accuracy is not None:
        paths = grow_greedily(accuracy, request.num_nodes - 1)
    elif isinstance(choices, str):
        paths = medusa_choices(choices)
    else:
        paths = [tuple(int(rank) for rank in path) for path in choices]
    if not closed(paths):
        raise ValueError("choices: wanted each path once, after its parent and its elder siblings")
    return fixed_shape(request, status, usable_rows(request, usable), paths)


medusa.nested = True
