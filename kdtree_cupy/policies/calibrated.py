"""Per-depth temperatures: the drafter's numbers made honest before the tree is built."""

from __future__ import annotations

import numpy as np

from ..tree import DraftTree
from .common import requests
from .ddtree import ddtree
from .select import table_rows


def tempered_rows(logprobs: np.ndarray, temperatures: np.ndarray) -> np.ndarray:
    """Return log-probs [..., D, K] at a temperature per row, float32; order and sign are kept.

    p ** (1 / T), normalised over the kept ranks and the rest of the vocabulary, whose mass is taken to lie on
    tokens as likely as the last kept one: the whole row is not recorded.
    """
    rows = np.asarray(logprobs, np.float64)
    inverse = 1.0 / np.asarray(temperatures, np.float64)[..., None]
    with np.errstate(invalid="ignore", over="ignore"):
        rest = np.maximum(1.0 - np.exp(rows).sum(-1, keepdims=True), 0.0)
        scaled = rows * inverse
        last = np.where(np.isfinite(rows[..., -1:]), rows[..., -1:], 0.0)
        total = np.exp(scaled).sum(-1, keepdims=True) + rest * np.exp(last * (inverse - 1.0))
        out = scaled - np.log(total)
    out = np.where(np.isneginf(rows), -np.inf, np.minimum(out, 0.0))
    return np.where(inverse == 1.0, rows, out).astype(np.float32)


def calibrated(
    ids: np.ndarray,
    logprobs: np.ndarray,
    root_tokens: np.ndarray,
    budget: int | np.ndarray,
    *,
    temperatures: np.ndarray,
    table_index: np.ndarray | None = None,
    num_nodes: int | None = None,
    max_depth: int | np.ndarray | None = None,
    max_rank: int | np.ndarray | None = None,
) -> DraftTree:
    """Build the :func:`ddtree` tree from log-probs at a fitted temperature per depth.

    Own rule: an overconfident drafter (temperature above 1 fits) puts too many nodes deep under its first
    choices; see :func:`kdtree_cupy.policy_fit.fit_temperatures`.  Temperature 1 is :func:`ddtree` bit for
    bit.

    Parameters
    ----------
    temperatures : float [D] or [S, D]
        Positive.
    table_index : int [b], optional
        Which of the S rows each request uses.  Other parameters as :func:`ddtree`.
    """
    request = requests(ids, logprobs, root_tokens, budget, num_nodes, max_depth, max_rank)
    batch, depth, _ = request.logprobs.shape
    table = table_rows(temperatures, table_index, "temperatures", (depth,), batch)
    if not (np.isfinite(table) & (table > 0)).all():
        raise ValueError("temperatures: wanted finite numbers > 0")
    rows = tempered_rows(request.logprobs, table)
    broken = np.isnan(request.logprobs) | (request.logprobs > 0)  # faults stay visible to ddtree
    rows = np.where(broken.any(2, keepdims=True), request.logprobs, rows)
    return ddtree(request.ids, rows, request.roots, request.budgets, num_nodes=request.num_nodes)


calibrated.nested = True
