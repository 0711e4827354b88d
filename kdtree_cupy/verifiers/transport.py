"""Optimal transport between k iid drafts and the target's token: linear program and subset formula."""

from __future__ import annotations

import itertools
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from ..errors import BackendError
from .toy import check_pair

_LARGEST = 20_000  # variables of the linear program


class Coupling(NamedTuple):
    """An optimal plan: ``taken[drafts]`` mass by token [V], and its sum over drafts, ``emitted`` [V]."""

    taken: dict[tuple[int, ...], np.ndarray]
    emitted: np.ndarray


@lru_cache(maxsize=256)
def coupling(p: tuple[float, ...], q: tuple[float, ...], k: int) -> Coupling:
    """Return a plan with the most mass on "the emitted token is one of the drafts" (scipy's linear programs).

    Raises
    ------
    BackendError
        scipy is missing: ``pip install 'kdtree-cupy[lab]'``.
    ValueError
        Too many tuples of drafts: the program grows as V ** k.
    """
    try:
        from scipy.optimize import linprog
        from scipy.sparse import csr_matrix
    except ImportError as error:
        raise BackendError(
            "the linear program of optimal transport needs scipy: pip install 'kdtree-cupy[lab]'"
        ) from error
    vocab = len(p)
    if vocab**k * min(k, vocab) > _LARGEST:
        raise ValueError(f"vocabulary {vocab}, k {k}: {vocab**k} tuples of drafts are too many to enumerate")
    tuples = list(itertools.product(range(vocab), repeat=k))
    pairs = [(i, x) for i, drafts in enumerate(tuples) for x in sorted(set(drafts))]
    column = np.arange(len(pairs))
    rows = np.array([[i for i, _ in pairs], [len(tuples) + x for _, x in pairs]])
    limits = [float(np.prod([q[x] for x in drafts])) for drafts in tuples] + list(p)
    matrix = csr_matrix(
        (np.ones(2 * column.size), (rows.ravel(), np.tile(column, 2))), shape=(len(limits), column.size)
    )
    solved = linprog(-np.ones(column.size), A_ub=matrix, b_ub=limits, bounds=(0, None), method="highs")
    if not solved.success:
        raise ValueError(f"optimal transport: the linear program failed: {solved.message}")
    taken = {drafts: np.zeros(vocab) for drafts in tuples}
    for (i, x), mass in zip(pairs, solved.x, strict=True):
        taken[tuples[i]][x] += max(0.0, mass)
    return Coupling(taken, np.sum(list(taken.values()), axis=0))


def optimal_transport(p: np.ndarray, q: np.ndarray, k: int) -> float:
    """Return the largest acceptance that any lossless rule reaches with k iid drafts, by linear program."""
    p, q = check_pair(p, q, k)
    return float(coupling(tuple(p.tolist()), tuple(q.tolist()), int(k)).emitted.sum())


def subset_formula(p: np.ndarray, q: np.ndarray, k: int) -> np.ndarray:
    """Return the same acceptance from its dual, 1 + min over sets H of p(H) - q(H)^k, float64 [...].

    Parameters
    ----------
    p, q : float [..., V]
    k : int

    Notes
    -----
    Formula: Towards Optimal Multi-draft Speculative Decoding (arXiv 2502.18779).  Some best H is a set
    {p < c q}: p(H) - q(H)^k is at most its tangent in q(H), which is a sum over tokens.  So V + 1 sets in
    order of p / q are enough, O(V log V); it needs no program and takes whole arrays.
    """
    p, q = check_pair(p, q, k)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(q > 0, p / np.where(q > 0, q, 1.0), np.inf)
    order = np.argsort(ratio, axis=-1)
    p_set = np.cumsum(np.take_along_axis(p, order, -1), axis=-1)
    q_set = np.minimum(np.cumsum(np.take_along_axis(q, order, -1), axis=-1), 1.0)
    return np.clip(1.0 + np.minimum((p_set - q_set**k).min(-1), 0.0), 0.0, 1.0)
