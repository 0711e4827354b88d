"""How far does the target agree with the draft tree?  A walk from the root.

At the current node the target has chosen a token.  If a child holds it, step to that child (the lowest node
index, should several hold it) and repeat; otherwise that token is the round's bonus and the next root.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from . import masks
from .status import BAD_TARGET, CAPACITY

MAX_DEPTH = 32  # as kdtree_cupy.limits


class Accepted(NamedTuple):
    """Path int32 [b, max_depth + 1] padded with -1, its length, the next root and the status, int32 [b]."""

    path: np.ndarray
    path_length: np.ndarray
    next_token: np.ndarray
    status: np.ndarray


def tree_accept(
    tree: masks.AnyTree,
    target_tokens: np.ndarray,
    *,
    max_depth: int | None = None,
    vocab_size: int | None = None,
) -> Accepted:
    """Return the longest path of each request's tree that ``target_tokens`` [b, N] agrees with.

    The path holds node indices, root included.  It stops at ``max_depth`` drafted nodes (default N - 1, at
    most 32) even when the target agrees further, which stays lossless: the next round starts there.  A
    node with a bad parent sets bit 2 and is never stepped to; a target token that is negative, or not below
    ``vocab_size``, at a visited node ends the walk with next_token -1 and bit 3; counts above N are cut
    to N and set bit 4.
    """
    batch, slots = tree.tokens.shape
    max_depth = min(slots - 1, MAX_DEPTH) if max_depth is None else max_depth
    path = np.full((batch, max_depth + 1), -1, np.int32)
    path_length = np.zeros(batch, np.int32)
    next_token = np.full(batch, -1, np.int32)
    status = masks.parent_status(tree)
    for b in range(batch):
        if tree.counts[b] > slots:
            status[b] |= CAPACITY
        if tree.counts[b] <= 0:
            continue
        node, length = 0, 0
        while True:
            path[b, length] = node
            length += 1
            target = int(target_tokens[b, node])
            if target < 0 or (vocab_size is not None and target >= vocab_size):
                status[b] |= BAD_TARGET
                break
            next_token[b] = target
            child = find_child(tree, b, node, target)
            if child is None or length > max_depth:
                break
            node = child
        if status[b] & BAD_TARGET:
            next_token[b] = -1
        path_length[b] = length
    return Accepted(path, path_length, next_token, status)


def find_child(tree: masks.AnyTree, b: int, node: int, token: int) -> int | None:
    """Return the lowest child of ``node`` that holds ``token``, or None."""
    parents, count = tree.parents[b], min(tree.counts[b], len(tree.parents[b]))
    for child in range(node + 1, count):
        linked = masks.has_parent(parents, count, child) and parents[child] == node
        if linked and tree.tokens[b, child] == token:
            return child
    return None
