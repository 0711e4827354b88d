"""Where does the KV row of a position lie?  Contiguous caches and paged ones, one rule for all stages."""

from __future__ import annotations

import numpy as np


def locate(
    cache_shape: tuple[int, ...], page_table: np.ndarray | None, request: int, position: int
) -> tuple[int, int] | None:
    """Return the first two indices of a position's row in one layer's cache, or None if it has none.

    Contiguous caches are [b, S, E]: row (request, position).  Paged ones are [pages, page_size, E]: page
    ``page_table[request, position // page_size]``, slot ``position % page_size``.
    """
    if position < 0:
        return None
    if page_table is None:
        return (request, position) if position < cache_shape[1] else None
    pages, page_size = cache_shape[:2]
    column = position // page_size
    if column >= page_table.shape[1]:
        return None
    page = int(page_table[request, column])
    return (page, position % page_size) if 0 <= page < pages else None


def gather(cache: np.ndarray, page_table: np.ndarray | None, request: int, positions: range) -> np.ndarray:
    """Return the rows of ``positions``, [n, E]; raise ``ValueError`` for a position that has no row."""
    rows = np.empty((len(positions), *cache.shape[2:]), cache.dtype)
    for i, position in enumerate(positions):
        where = locate(cache.shape, page_table, request, position)
        if where is None:
            raise ValueError(f"request {request}: position {position} has no row in the cache")
        rows[i] = cache[where]
    return rows
