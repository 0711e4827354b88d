"""The walk of ``tree_accept`` on first-child and next-sibling lists, as SGLang's EAGLE workers keep trees."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class ListAccepted(NamedTuple):
    """predicts int32 [rows], accept_index int32 [b, width] padded with -1, accepted drafts int32 [b]."""

    predicts: np.ndarray
    accept_index: np.ndarray
    accepted: np.ndarray


def tree_accept_lists(
    candidates: np.ndarray,
    index: np.ndarray,
    next_token: np.ndarray,
    next_sibling: np.ndarray,
    targets: np.ndarray,
    predicts: np.ndarray,
    width: int,
) -> ListAccepted:
    """Return what the walk of each request writes; ``predicts`` gives the values it leaves alone.

    ``targets`` [rows] is read, and ``predicts`` written, at ``index`` of the nodes on the path.  A link out
    of range ends a list, and N nodes are looked at in the siblings' lists at most.
    """
    batch, nodes = candidates.shape
    out = ListAccepted(predicts.copy(), np.full((batch, width), -1, np.int32), np.zeros(batch, np.int32))
    for b in range(batch):
        node, length, looked = 0, 0, 0
        while length < width and 0 <= node < nodes:
            row = int(index[b, node])
            if not 0 <= row < targets.size:
                break
            out.accept_index[b, length] = row
            length += 1
            target = int(targets[row])
            out.predicts[row] = target
            node = int(next_token[b, node])
            while 0 < node < nodes and candidates[b, node] != target:
                looked += 1
                node = int(next_sibling[b, node]) if looked < nodes else -1
            if node == 0:
                break
        out.accepted[b] = max(length - 1, 0)
    return out
