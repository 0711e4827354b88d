"""What is derived from a tree: ancestor masks, positions and linked lists.

A node sees itself and its ancestors.  A node whose parent is not an *earlier* node has a bad parent
(status bit 2): it sees itself only and is nobody's child, so a cycle or an index into a neighbour's tree
can neither hang nor leak.  Padding slots (``counts[b]..N-1``) see themselves only.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .status import BAD_PARENT

AnyTree = Any  # a record with the arrays of kdtree_cupy.tree.DraftTree: refs.tree_build.Tree or DraftTree


class Retrieve(NamedTuple):
    """Linked lists in the layout of SGLang's EAGLE kernels, each int64 [b, N]; -1 means none.

    ``retrieve_index`` is the row in the flattened batch, ``b * N + i``; the other two are node indices
    inside the request.
    """

    retrieve_index: np.ndarray
    retrieve_next_token: np.ndarray
    retrieve_next_sibling: np.ndarray


def has_parent(parents: np.ndarray, count: int, node: int) -> bool:
    """Return whether ``node`` is a real drafted node whose parent is an earlier node."""
    return 0 < node < count and 0 <= parents[node] < node


def parent_status(tree: AnyTree) -> np.ndarray:
    """Return int32 [b]: bit 2 where some real node's parent is not an earlier node."""
    parents, counts = tree.parents, tree.counts
    batch, slots = parents.shape
    status = np.zeros(batch, np.int32)
    for b in range(batch):
        for node in range(1, min(int(counts[b]), slots)):
            if not has_parent(parents[b], counts[b], node):
                status[b] |= BAD_PARENT
    return status


def bool_mask(tree: AnyTree) -> np.ndarray:
    """Return bool [b, N, N]: row i is True at i and at its ancestors."""
    parents, counts = tree.parents, tree.counts
    batch, slots = parents.shape
    visible = np.zeros((batch, slots, slots), bool)
    for b in range(batch):
        for node in range(slots):
            if has_parent(parents[b], counts[b], node):
                visible[b, node] = visible[b, parents[b, node]]
            visible[b, node, node] = True
    return visible


def pack_mask(visible: np.ndarray) -> np.ndarray:
    """Pack bool [..., N] into uint32 [..., ceil(N/32)]: bit j is word j >> 5, bit j & 31."""
    slots = visible.shape[-1]
    words = np.zeros((*visible.shape[:-1], -(-slots // 32)), np.uint32)
    for j in range(slots):
        words[..., j >> 5] |= visible[..., j].astype(np.uint32) << np.uint32(j & 31)
    return words


def unpack_mask(words: np.ndarray, num_nodes: int) -> np.ndarray:
    """Unpack uint32 [..., W] into bool [..., num_nodes]; higher bits are dropped."""
    bits = [(words[..., j >> 5] >> np.uint32(j & 31)) & np.uint32(1) for j in range(num_nodes)]
    return np.stack(bits, axis=-1).astype(bool) if bits else np.zeros((*words.shape[:-1], 0), bool)


def packed_mask(tree: AnyTree) -> np.ndarray:
    """Return uint32 [b, N, ceil(N/32)]: :func:`bool_mask`, packed."""
    return pack_mask(bool_mask(tree))


def additive_mask_zero_is_visible(tree: AnyTree, dtype: np.dtype, hidden: float) -> np.ndarray:
    """Return [b, N, N] of ``dtype`` to add to attention scores: 0 where visible, ``hidden`` elsewhere."""
    return np.where(bool_mask(tree), 0.0, hidden).astype(dtype)


def positions(tree: AnyTree, lengths: np.ndarray) -> np.ndarray:
    """Return int32 [b, N]: position of every slot, length + depth (padding has depth 0)."""
    return (lengths[:, None] + tree.depths).astype(np.int32)


def retrieve(tree: AnyTree) -> Retrieve:
    """Return the first-child / next-sibling lists; siblings stand in node order."""
    parents, counts = tree.parents, tree.counts
    batch, slots = parents.shape
    index = np.arange(batch * slots, dtype=np.int64).reshape(batch, slots)
    next_token = np.full((batch, slots), -1, np.int64)
    next_sibling = np.full((batch, slots), -1, np.int64)
    for b in range(batch):
        youngest: dict[int, int] = {}  # parent -> its last child so far
        for node in range(slots):
            if not has_parent(parents[b], counts[b], node):
                continue
            parent = int(parents[b, node])
            if parent in youngest:
                next_sibling[b, youngest[parent]] = node
            else:
                next_token[b, parent] = node
            youngest[parent] = node
    return Retrieve(index, next_token, next_sibling)
