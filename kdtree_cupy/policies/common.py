"""What every policy shares: argument checks and the assembly of a :class:`~kdtree_cupy.tree.DraftTree`."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .. import checks
from ..best_first import BestFirst
from ..limits import MAX_BUDGET, MAX_DEPTH, MAX_NODES, MAX_WIDTH, STATUS_NON_FINITE, STATUS_UNSORTED
from ..tree import DraftTree


class Requests(NamedTuple):
    """Checked arguments of a policy.

    Attributes
    ----------
    ids : int [b, D, K]
    logprobs : float32 [b, D, K]
    roots, budgets : int32 [b]
        A budget of -1 marks an idle slot.
    num_nodes : int
        Slots N of the result.
    """

    ids: np.ndarray
    logprobs: np.ndarray
    roots: np.ndarray
    budgets: np.ndarray
    num_nodes: int


def requests(
    ids: np.ndarray,
    logprobs: np.ndarray,
    root_tokens: np.ndarray,
    budget: int | np.ndarray,
    num_nodes: int | None = None,
    max_depth: int | np.ndarray | None = None,
    max_rank: int | np.ndarray | None = None,
) -> Requests:
    """Check the arguments that all policies take; ranks and depths that are ruled out get log-prob -inf.

    Raises
    ------
    TypeError
        An array of the wrong kind.
    ValueError
        A shape or a range that does not fit; the message names the argument, what came and what was wanted.
    """
    ids, logprobs = np.asarray(ids), np.asarray(logprobs)
    if ids.dtype.kind not in "iu":
        raise TypeError(f"ids: got dtype {ids.dtype}, wanted integers")
    if logprobs.dtype != np.float32:
        raise TypeError(f"logprobs: got dtype {logprobs.dtype}, wanted float32")
    if logprobs.ndim != 3 or ids.shape != logprobs.shape:
        raise ValueError(
            f"ids {ids.shape} and logprobs {logprobs.shape}: wanted one shape [batch, depth, width]"
        )
    batch, depth, width = logprobs.shape
    if not 1 <= depth <= MAX_DEPTH or not 1 <= width <= MAX_WIDTH:
        raise ValueError(f"logprobs: depth {depth}, width {width}; wanted 1..{MAX_DEPTH} and 1..{MAX_WIDTH}")
    roots = checks.per_request(root_tokens, "root_tokens", batch, *checks.INT32)
    budgets = checks.per_request(budget, "budget", batch, -1, MAX_BUDGET)
    largest = max(0, int(budgets.max(initial=0)))
    if num_nodes is None:
        num_nodes = largest + 1
    num_nodes = checks.integer(num_nodes, "num_nodes", largest + 1, MAX_NODES)
    usable = np.ones((batch, depth, width), bool)
    for name, value, places in (
        ("max_depth", max_depth, np.arange(depth)[:, None]),
        ("max_rank", max_rank, np.arange(width)),
    ):
        if value is not None:
            limit = checks.per_request(value, name, batch, 0, checks.INT32[1])
            usable &= places < limit[:, None, None]
    if not usable.all():
        logprobs = np.where(usable, logprobs, np.float32(-np.inf))
    return Requests(ids, logprobs, roots, budgets, num_nodes)


def row_faults(logprobs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (status word [b], usable depths [b]); the same rules as the reference tree build.

    Rows from the first one with NaN or +inf on are never used (bit 0); an unsorted row or a log-prob above 0
    before it sets bit 1 but does not end the tree.
    """
    broken = (np.isnan(logprobs) | (logprobs == np.inf)).any(2)
    usable = np.where(broken.any(1), broken.argmax(1), logprobs.shape[1])
    with np.errstate(invalid="ignore"):
        unsorted = (logprobs[:, :, 1:] > logprobs[:, :, :-1]).any(2) | (logprobs > 0).any(2)
    unsorted &= np.arange(logprobs.shape[1]) < usable[:, None]
    status = np.where(broken.any(1), STATUS_NON_FINITE, 0) | np.where(unsorted.any(1), STATUS_UNSORTED, 0)
    return status.astype(np.int32), usable


def assemble(nodes: BestFirst, request: Requests, status: np.ndarray) -> DraftTree:
    """Return the record: tokens looked up in ``ids``, idle slots emptied."""
    b = np.arange(nodes.parents.shape[0])[:, None]
    real = (np.arange(nodes.parents.shape[1]) < nodes.counts[:, None]) & (nodes.ranks >= 0)
    tokens = np.where(real, request.ids[b, np.maximum(nodes.depths - 1, 0), np.maximum(nodes.ranks, 0)], 0)
    tokens = tokens.astype(np.int32)
    idle = request.budgets < 0
    tokens[:, 0] = np.where(idle, 0, request.roots)
    nodes.scores[idle, 0] = -np.inf
    counts = np.where(idle, 0, nodes.counts).astype(np.int32)
    status = np.where(request.budgets > 0, status, 0).astype(np.int32)
    return DraftTree(tokens, nodes.parents, nodes.depths, nodes.ranks, nodes.scores, counts, status)
