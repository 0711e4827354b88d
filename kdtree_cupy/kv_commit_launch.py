"""How kv_commit runs on a device or on the host: one launch for all layers, stacked or a list of arrays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from . import stage_scratch
from .library import arrays

if TYPE_CHECKING:
    from .library import Run

Array = Any
FILE = "kv_commit.cu"
_THREADS, _HELD, _ROWS = 256, 6, 8  # KD_COMMIT_* of kv_commit.cu
_MOST_TABLES = 64
_BLOCKS = 4
"""Blocks per multiprocessor that a large commit is divided into: as many as run at once."""
_LEAST_COLUMNS = 64
"""Fewest pieces that are worth a block."""

_tables: dict[tuple[Any, ...], Array] = {}


def launch(
    run: Run,
    layers: tuple[Sequence[Array], Sequence[Array] | None],
    stacked: tuple[Array | None, Array | None],
    vectors: tuple[Array, Array, Array, Array | None],
    results: Sequence[Array],
    *,
    version: int = 2,
) -> None:
    """Run kernel ``kv_commit_v<version>`` on checked arguments.

    Parameters
    ----------
    run : Run
        The call's place.
    layers : (caches, tree_kv or None)
        One array a layer.
    stacked : (array or None, array or None)
        The same as one array each, where the caller gave it so.
    vectors : (path, path_length, lengths, page_table or None)
        Arrays of the call's place.
    results : (lengths, status)
        Arrays to write.
    """
    caches, tree_kv = layers
    path, _, _, page_table = vectors
    batch, width = path.shape
    pages, page_size, _ = caches[0].shape
    found = arrays.handle(caches[0])
    row_bytes = int(caches[0].shape[2]) * arrays.numpy_dtype(found.dtype).itemsize
    columns_of = [_pointers(run, group, one) for group, one in zip(layers, stacked, strict=True)]
    nodes = -1 if tree_kv is None else int(tree_kv[0].shape[1])
    places = [array for start, table, _ in columns_of for array in (start, table)]
    strides = [np.int64(pages * page_size * row_bytes), np.int64(batch * max(nodes, 0) * row_bytes)]
    max_pages = 0 if page_table is None else int(page_table.shape[1])
    sizes = (*strides, len(caches), width, nodes, pages, page_size, max_pages, row_bytes)
    if batch == 0:
        return
    if version == 1:
        run.launch(
            FILE, "kv_commit_v1", batch, 32, (*places, *vectors, *results, *sizes), shared_bytes=32 * width
        )
        return
    unit = math.gcd(16, row_bytes, *(address for _, _, addresses in columns_of for address in addresses))
    pieces = max(len(caches) * (row_bytes // unit), 1)
    blocks = _BLOCKS * stage_scratch.multiprocessors(run.device)
    columns = max(-(-batch * pieces // blocks), _LEAST_COLUMNS)
    if columns > _THREADS // 2:
        columns = -(-columns // _THREADS) * _THREADS  # a thread a column: no idle ones
    columns = min(columns, pieces)
    stream = stage_scratch.current_stream(run, path)
    tickets = stage_scratch.take(run, stream, "commit_tickets", batch, "uint32", zeros=True)
    run.launch(
        FILE, "kv_commit_v2", batch * -(-pieces // columns), _THREADS,
        (*places, *vectors, *results, tickets, *sizes, unit, columns),
    )  # fmt: skip


def _pointers(
    run: Run, group: Sequence[Array] | None, stacked: Array | None
) -> tuple[Array | None, Array | None, list[int]]:
    """Return (the stacked array, None), or (None, table of the layers' addresses), and the addresses."""
    if group is None:
        return None, None, []
    addresses = [arrays.handle(layer).pointer for layer in group]
    if stacked is not None:
        return stacked, None, addresses
    return None, _table(run, tuple(addresses)), addresses


def _table(run: Run, addresses: tuple[int, ...]) -> Array:
    """Return addresses in the memory that the kernel reads; copied to a device once, not at every call."""
    if run.device is None:
        return np.array(addresses, np.int64) if run.kind == "numpy" else run.array(addresses, "int64")
    key = (run.kind, run.device, addresses)
    if key not in _tables:
        if len(_tables) >= _MOST_TABLES:
            del _tables[next(iter(_tables))]
        _tables[key] = run.array(addresses, "int64")
    return _tables[key]
