"""Does every position that a call reads have a row in the cache?"""

from __future__ import annotations

from typing import Any

import numpy as np

from . import checks

Array = Any


def check_pages(cache: Array, name: str, page_table: Array | None) -> None:
    """Raise ``ValueError`` if a paged cache [pages, page_size, ..] has pages without rows."""
    if page_table is not None and cache.shape[1] == 0:
        raise ValueError(f"{name}: got pages of 0 rows, wanted at least 1")


def check_positions(
    lengths: Array,
    counts: Array | None,
    nodes: int,
    in_cache: bool,
    cache_shape: tuple[int, ...],
    page_table: Array | None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Raise ``ValueError`` unless all rows of prefixes, and of nodes if they are there, lie in the cache.

    Waits for the device.

    Parameters
    ----------
    lengths, counts : int32 [b]
        Rows of each prefix; real nodes, None for all ``nodes``.
    nodes : int
        Slots N of each tree.
    in_cache : bool
        Whether node i lies in the cache at position ``lengths[b] + i``.
    cache_shape : tuple of int
        (b, S, ..), or (pages, page_size, ..) with ``page_table``.
    page_table : int32 [b, max_pages], optional
        Page of each ``page_size`` positions; what no position needs is not looked at.

    Returns
    -------
    lengths, counts, page_table
        In host memory.
    """
    rows = checks.per_request(checks.host(lengths), "lengths", len(lengths), 0, checks.INT32[1]).astype(
        np.int64
    )
    real = np.full(len(rows), nodes, np.int64)
    if counts is not None:
        real[:] = checks.per_request(checks.host(counts), "counts", len(rows), 0, nodes)
    needed = rows + real if in_cache else rows
    table = None if page_table is None else checks.host(page_table)
    room = cache_shape[1] * (1 if table is None else table.shape[1])
    for b in np.flatnonzero(needed > room):
        and_nodes = f" and {real[b]} nodes behind it" if in_cache else ""
        raise ValueError(
            f"lengths[{b}]: got {rows[b]}{and_nodes}, but the cache has {room} rows for a request"
        )
    if table is None or not table.size:
        return rows, real, table
    used = np.arange(table.shape[1]) * cache_shape[1] < needed[:, None]
    for b, j in np.argwhere(used & ((table < 0) | (table >= cache_shape[0]))):
        raise ValueError(
            f"page_table[{b}, {j}]: got {table[b, j]}, wanted 0..{cache_shape[0] - 1}: "
            f"request {b} has {needed[b]} rows in the cache"
        )
    return rows, real, table
