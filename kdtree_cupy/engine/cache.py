"""The paged KV cache: pages per layer, a page table per request, pages handed out as texts grow."""

from __future__ import annotations

from copy import copy
from typing import Any

import numpy as np

Array = Any


class PagedCache:
    """KV rows of a batch in pages; the same page number holds a position in every layer.

    Parameters
    ----------
    layers, row_size : int
        Layers, and numbers of a row.
    batch : int
        Requests b.
    capacity : int
        Most rows that a request can have.
    page_size : int
        Rows of a page; 1 makes the page table a token table.
    dtype : dtype
        Of the rows.
    xp : module
        ``numpy`` or ``cupy``.

    Attributes
    ----------
    layers : [L, pages, page_size, row_size]
    page_table : int32 [b, max_pages]; -1 where a request has no page yet.
    lengths : int32 [b] rows of each prefix.
    """

    def __init__(
        self,
        layers: int,
        row_size: int,
        batch: int,
        capacity: int,
        *,
        page_size: int = 16,
        dtype: Any = np.float32,
        xp: Any = np,
    ) -> None:
        if page_size < 1:
            raise ValueError(f"page_size: got {page_size}, wanted at least 1")
        per_request = -(-capacity // page_size)
        self.xp, self.page_size = xp, page_size
        pages = batch * per_request
        self.layers = xp.zeros((layers, pages, page_size, row_size), dtype)
        self._free = list(range(pages))  # requests grow in turns, so their pages interleave
        self._table = np.full((batch, per_request), -1, np.int32)
        self._held = np.zeros(batch, np.int64)
        self.page_table = xp.asarray(self._table)
        self.lengths = xp.zeros(batch, np.int32)

    def reserve(self, request: int, rows: int) -> None:
        """Give ``request`` pages for ``rows`` rows in all.

        Raises
        ------
        ValueError
            More rows than the capacity.
        """
        wanted = -(-rows // self.page_size)
        if wanted > self._table.shape[1]:
            room = self._table.shape[1] * self.page_size
            raise ValueError(f"request {request}: {rows} rows do not fit its capacity of {room}")
        if wanted <= self._held[request]:
            return
        while self._held[request] < wanted:
            self._table[request, self._held[request]] = self._free.pop()
            self._held[request] += 1
        self.page_table[request] = self.xp.asarray(self._table[request])

    def release(self, request: int) -> None:
        """Take back all pages of a request that has ended."""
        count = int(self._held[request])
        self._free.extend(self._table[request, :count].tolist())
        self._table[request], self._held[request] = -1, 0
        self.page_table[request] = -1
        self.lengths[request] = 0

    def view(self, request: int) -> PagedCache:
        """Return the cache of one request alone, as a batch of one over the same memory."""
        one = copy(self)
        at = slice(request, request + 1)
        one._table, one.page_table, one.lengths = self._table[at], self.page_table[at], self.lengths[at]
        return one

    def prefixes(self, layer: int) -> Array:
        """Return all places of all requests, [b, max_pages * page_size, row_size] (a copy).

        Places that a request has no page for hold rows of some other page.
        """
        found = self.layers[layer][self.page_table]
        return found.reshape(len(found), -1, found.shape[-1])

    def rows(self, layer: int, request: int, length: int) -> Array:
        """Return the first ``length`` rows of a request, [length, row_size] (a copy)."""
        pages = self._table[request, : -(-length // self.page_size)]
        found = self.layers[layer][self.xp.asarray(pages)]
        return found.reshape(-1, found.shape[-1])[:length]
