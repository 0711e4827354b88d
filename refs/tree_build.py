"""Which B candidate continuations are the most probable?  Best-first search with a heap.

A node is a rank tuple (r1, ..., rd): rank r1 at depth 1, and so on.  Its score is the float64 sum of the
float32 log-probs, added from the root to the node.  Among the frontier the largest score is popped first;
equal scores go by the lexicographically smaller rank tuple, so a prefix comes before its extensions.  A pop
exposes the next sibling and the first child.  For rows that are descending and <= 0 this is the same as
sorting the whole trie by (-score, rank tuple) and keeping the first B.
"""

from __future__ import annotations

import heapq
from typing import NamedTuple

import numpy as np

from . import masks
from .status import CAPACITY, NON_FINITE, UNSORTED


class Tree(NamedTuple):
    """Arrays of ``kdtree_cupy.tree.DraftTree``, same names."""

    tokens: np.ndarray
    parents: np.ndarray
    depths: np.ndarray
    ranks: np.ndarray
    scores: np.ndarray
    counts: np.ndarray
    status: np.ndarray


class TreeBuild(NamedTuple):
    """Tree, packed ancestor mask uint32 [b, N, ceil(N/32)] and positions int32 [b, N]."""

    tree: Tree
    mask: np.ndarray
    positions: np.ndarray


def path_score(logprobs: np.ndarray, ranks: tuple[int, ...]) -> float:
    """Return the float64 sum of one path's float32 log-probs, root to node."""
    score = 0.0
    for d, rank in enumerate(ranks):
        score = score + float(logprobs[d, rank])
    return score


def best_paths(logprobs: np.ndarray, budget: int) -> list[tuple[int, ...]]:
    """Return the rank tuples that best-first search pops from [D, K] log-probs, at most ``budget``."""
    depth, width = logprobs.shape
    frontier: list[tuple[float, tuple[int, ...]]] = []
    popped: list[tuple[int, ...]] = []

    def expose(ranks: tuple[int, ...]) -> None:
        d, rank = len(ranks), ranks[-1]
        if d <= depth and rank < width and logprobs[d - 1, rank] != -np.inf:
            heapq.heappush(frontier, (-path_score(logprobs, ranks), ranks))

    expose((0,))
    while frontier and len(popped) < budget:
        _, ranks = heapq.heappop(frontier)
        popped.append(ranks)
        expose((*ranks[:-1], ranks[-1] + 1))  # next sibling
        expose((*ranks, 0))  # first child
    return popped


def usable_depth(logprobs: np.ndarray) -> tuple[int, int]:
    """Return how many leading rows of [D, K] hold no NaN or +inf, and the status word they give."""
    status = 0
    for d, row in enumerate(logprobs):
        if np.isnan(row).any() or (row == np.inf).any():
            return d, status | NON_FINITE
        if (row > 0).any() or (row[1:] > row[:-1]).any():
            status |= UNSORTED
    return len(logprobs), status


def tree_build(
    ids: np.ndarray,
    logprobs: np.ndarray,
    root_tokens: np.ndarray,
    budget: np.ndarray | int,
    *,
    lengths: np.ndarray | None = None,
    num_nodes: int | None = None,
    max_depth: np.ndarray | int | None = None,
    max_rank: np.ndarray | int | None = None,
) -> TreeBuild:
    """Build one draft tree per request.

    ``budget``, ``max_depth`` and ``max_rank`` are scalars or int [b].  Only depths 1..max_depth and ranks
    0..max_rank-1 are looked at, and nothing at all for a budget of 0 (root only) or -1 (idle slot).  A row
    with NaN or +inf ends the tree before its depth (bit 0); a row that ascends or exceeds 0 sets bit 1; a
    budget that does not fit ``num_nodes - 1`` is cut and sets bit 4.
    """
    batch, depth, width = ids.shape
    budgets = np.broadcast_to(np.asarray(budget), (batch,))
    depth_caps = np.broadcast_to(np.asarray(depth if max_depth is None else max_depth), (batch,))
    rank_caps = np.broadcast_to(np.asarray(width if max_rank is None else max_rank), (batch,))
    slots = num_nodes if num_nodes is not None else max(1, int(np.max(budgets, initial=0)) + 1)
    tree = empty_tree(batch, slots)
    for b in range(batch):
        if budgets[b] < 0:
            continue
        tree.tokens[b, 0], tree.scores[b, 0], tree.counts[b] = root_tokens[b], 0.0, 1
        if budgets[b] == 0:
            continue
        if budgets[b] > slots - 1:
            tree.status[b] |= CAPACITY
        table = logprobs[b, : depth_caps[b], : rank_caps[b]]
        rows, status = usable_depth(table)
        tree.status[b] |= status
        place_nodes(tree, b, best_paths(table[:rows], min(budgets[b], slots - 1)), ids[b], table)
    starts = np.zeros(batch, np.int32) if lengths is None else lengths
    return TreeBuild(tree, masks.packed_mask(tree), masks.positions(tree, starts))


def empty_tree(batch: int, slots: int) -> Tree:
    """Return a tree of padding only: token 0, parent -1, depth 0, rank -1, score -inf, counts 0."""
    shape = (batch, slots)
    return Tree(
        tokens=np.zeros(shape, np.int32),
        parents=np.full(shape, -1, np.int32),
        depths=np.zeros(shape, np.int32),
        ranks=np.full(shape, -1, np.int32),
        scores=np.full(shape, -np.inf, np.float64),
        counts=np.zeros(batch, np.int32),
        status=np.zeros(batch, np.int32),
    )


def place_nodes(
    tree: Tree, b: int, paths: list[tuple[int, ...]], ids: np.ndarray, logprobs: np.ndarray
) -> None:
    """Write ``paths`` into slots 1, 2, ... of request ``b``, in the order given."""
    node_of: dict[tuple[int, ...], int] = {(): 0}
    for node, ranks in enumerate(paths, start=1):
        node_of[ranks] = node
        d, rank = len(ranks), ranks[-1]
        tree.tokens[b, node] = ids[d - 1, rank]
        tree.parents[b, node] = node_of[ranks[:-1]]
        tree.depths[b, node] = d
        tree.ranks[b, node] = rank
        tree.scores[b, node] = path_score(logprobs, ranks)
    tree.counts[b] = 1 + len(paths)
