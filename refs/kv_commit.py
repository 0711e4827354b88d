"""Keep the KV of the accepted path: move its rows from tree slots to the end of the prefix.

Row j of the path goes to position ``lengths[b] + j``, in every layer.  All rows of a request are read before
any is written, so overlapping source and destination do no harm.  Should one row have no place (a full
cache, a missing page, a node outside the tree) nothing of that request moves and bit 4 is set.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from .kv_rows import locate
from .status import CAPACITY


class Committed(NamedTuple):
    """lengths int32 [b] after the commit and status int32 [b]."""

    lengths: np.ndarray
    status: np.ndarray


def kv_commit(
    caches: np.ndarray | Sequence[np.ndarray],
    path: np.ndarray,
    path_length: np.ndarray,
    lengths: np.ndarray,
    *,
    tree_kv: np.ndarray | Sequence[np.ndarray] | None = None,
    page_table: np.ndarray | None = None,
) -> Committed:
    """Move the rows of ``path`` [b, P] into the prefix, in place in ``caches``; return the new lengths.

    ``caches`` is [L, b, S, E] or a sequence of L arrays [b, S, E]; with ``page_table`` [b, max_pages] each
    layer is [pages, page_size, E].  Rows come from ``tree_kv`` (L times [b, N, E]), or, if that is None,
    from cache positions ``lengths[b] + path[b, j]``.
    """
    new_lengths = lengths.copy()
    status = np.zeros(len(lengths), np.int32)
    for b in range(len(lengths)):
        sources, targets = moves(caches, path, path_length, lengths, tree_kv, page_table, b)
        if None in sources or None in targets:
            status[b] |= CAPACITY
            continue
        for layer, cache in enumerate(caches):
            origin = cache if tree_kv is None else tree_kv[layer]
            rows = [origin[source].copy() for source in sources]
            for target, row in zip(targets, rows, strict=True):
                cache[target] = row
        new_lengths[b] += len(targets)
    return Committed(new_lengths, status)


def moves(
    caches: np.ndarray | Sequence[np.ndarray],
    path: np.ndarray,
    path_length: np.ndarray,
    lengths: np.ndarray,
    tree_kv: np.ndarray | Sequence[np.ndarray] | None,
    page_table: np.ndarray | None,
    b: int,
) -> tuple[list[tuple[int, int] | None], list[tuple[int, int] | None]]:
    """Return where the rows of request ``b`` come from and go to; None stands for a row with no place."""
    if not 0 <= path_length[b] <= path.shape[1]:
        return [None], [None]
    shape, length = caches[0].shape, int(lengths[b])
    nodes = [int(node) for node in path[b, : path_length[b]]]
    targets = [locate(shape, page_table, b, length + j) for j in range(len(nodes))]
    if tree_kv is None:
        sources = [locate(shape, page_table, b, length + node) if node >= 0 else None for node in nodes]
    else:
        sources = [(b, node) if 0 <= node < tree_kv[0].shape[1] else None for node in nodes]
    return sources, targets
