"""Stage 6: keep the accepted path's KV by moving its rows to the end of the prefix.

Examples
--------
>>> import numpy as np, kdtree_cupy as kd
>>> cache = np.arange(6, dtype=np.float32).reshape(1, 1, 6, 1)  # one layer, one request, rows 0..5
>>> kd.kv_commit(cache, np.int32([[0, 2, -1]]), np.int32([2]), np.int32([1])).lengths.tolist()
[3]
>>> cache.ravel().tolist()  # rows 0 and 2 of the tree, which began at row 1, are now rows 1 and 2
[0.0, 1.0, 3.0, 3.0, 4.0, 5.0]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from . import checks, kv_commit_launch, kv_positions, stage_run, stage_scratch
from .library.resolve import Run, resolve
from .limits import MAX_NODES
from .refs import kv_commit as reference

Array = Any
DYNAMIC_SHARED = {"kv_commit_v1": 32 * MAX_NODES}
"""Most dynamic shared memory of each kernel, in bytes."""

ROW_DTYPES = (*checks.FLOATS, "float8_e4m3fn", "float8_e5m2", "uint8")
"""Number types of rows that can be moved; uint8 rows are bytes of any format."""


class Committed(NamedTuple):
    """Result of :func:`kv_commit`."""

    lengths: Array
    status: Array


def kv_commit(
    caches: Array | Sequence[Array],
    path: Array,
    path_length: Array,
    lengths: Array,
    *,
    tree_kv: Array | Sequence[Array] | None = None,
    page_table: Array | None = None,
    library: Any = None,
    out: Committed | None = None,
    check: bool = False,
) -> Committed:
    """Move the KV rows of each accepted path to positions ``lengths[b], lengths[b] + 1, ...`` in place.

    Parameters
    ----------
    caches : array [L, b, S, E] or [L, pages, page_size, E], or list of L arrays without the first axis
        KV caches of all layers, written in place.  Paged when ``page_table`` is given.  Rows are moved as
        bytes, so E and the number type are free.
    path : int32 [b, P]
        Node indices of each path, root included.
    path_length : int32 [b]
        Nodes on each path; 0 moves nothing.
    lengths : int32 [b]
        Rows of each prefix before the commit.
    tree_kv : array [L, b, N, E] or list of L arrays [b, N, E], optional
        Where the nodes' rows are; None: node i lies in the cache at position ``lengths[b] + i``.
    page_table : int32 [b, max_pages], optional
        Page of each ``page_size`` positions; negative entries have no page.
    library, out, check
        As in :func:`~kdtree_cupy.tree_build.tree_build`.  ``out.lengths`` may be ``lengths`` itself.

    Returns
    -------
    lengths : int32 [b]
        ``lengths + path_length``, unchanged where bit 4 is set.  A new array unless ``out`` is given.
    status : int32 [b]
        Bit 4: a row has no place (full cache, missing page, node outside the tree, path_length outside
        0..P); nothing of that request has moved, in any layer.

    Raises
    ------
    TypeError, ValueError, BackendError
        As in :func:`~kdtree_cupy.tree_build.tree_build`.

    Notes
    -----
    Source and destination rows of one request may overlap.  Requests must not share the pages of the rows
    written.  Pages are neither allocated nor freed.
    """
    dims = checks.Dims()
    path = checks.array(path, "path", "int32", "b P", dims)
    path_length = checks.int_vector(path_length, "path_length", dims["b"])
    lengths = checks.int_vector(lengths, "lengths", dims["b"])
    if page_table is not None:
        page_table = checks.array(page_table, "page_table", "int32", "b max_pages", dims)
    layout = "b S E" if page_table is None else "pages page_size E"
    layers = check_layers(caches, "caches", ROW_DTYPES, layout, dims)
    kv_positions.check_pages(layers[0], "caches", page_table)
    if dims["E"] == 0:
        raise ValueError("caches: got rows of 0 numbers, wanted at least 1")
    sources = None
    if tree_kv is not None:
        sources = check_layers(tree_kv, "tree_kv", checks.dtype_name(layers[0]), "b N E", dims)
        if len(sources) != len(layers):
            raise ValueError(f"tree_kv: got {len(sources)} layers, wanted {len(layers)} as in caches")
    targets = None if out is None else check_out(out, dims["b"])
    given = {"path": path, "path_length": path_length, "lengths": lengths, "page_table": page_table}
    given |= {f"caches[{i}]": layer for i, layer in enumerate(layers)}
    given |= {f"tree_kv[{i}]": layer for i, layer in enumerate(sources or ())}
    if targets:  # lengths may be advanced in place
        read = {"path": path, "path_length": path_length, "page_table": page_table}
        checks.apart({"out.lengths": targets[0]}, read)
        checks.apart({"out.status": targets[1]}, read | {"lengths": lengths})
    run = resolve(
        library, stage_run.placed(given, ("path_length", "lengths"), targets, in_place=tuple(given))
    )
    for i, layer in enumerate(layers):
        if checks.kind(layer) == "numpy" and not layer.flags.writeable:
            raise ValueError(f"caches[{i}]: got a read-only array, wanted a writeable one")
    if run.backend == "numpy":
        host = [[run.numpy(layer) for layer in group] for group in (layers, sources or ())]
        vectors = (run.numpy(value) for value in (path, path_length, lengths))
        table = None if page_table is None else run.numpy(page_table)
        ref = reference.kv_commit(host[0], *vectors, tree_kv=host[1] or None, page_table=table)
        committed = Committed(*stage_run.deliver(run, targets, ref))
    else:
        checks.integer(dims["P"], "path: P", 0, MAX_NODES)
        path_length, lengths = (_here(run, value) for value in (path_length, lengths))
        committed = Committed(*(targets or (run.empty((dims["b"],), "int32") for _ in range(2))))
        stacked = tuple(one if checks.kind(one) is not None else None for one in (caches, tree_kv))
        vectors = (path, path_length, lengths, page_table)
        kv_commit_launch.launch(run, (layers, sources), stacked, vectors, committed)
    if check:
        checks.raise_on_status("kv_commit", committed.status)
    return committed


def _here(run: Run, value: Array) -> Array:
    """Return an int32 vector where the call runs; one given as a list or in numpy is copied to a device."""
    return run.array(value, "int32") if run.device is not None and checks.kind(value) == "numpy" else value


def check_layers(
    layers: Array | Sequence[Array], name: str, dtypes: str | tuple[str, ...], layout: str, dims: checks.Dims
) -> list[Array]:
    """Return one array per layer, all of one dtype and shape, from a stacked array or a sequence."""
    if checks.kind(layers) is not None:
        checks.array(layers, name, dtypes, f"L {layout}", dims)
    elif not isinstance(layers, list | tuple):
        raise TypeError(f"{name}: got {type(layers).__name__}, wanted an array or a list of arrays")
    if len(layers) == 0:
        raise ValueError(f"{name}: got no layers, wanted at least one")
    for i, layer in enumerate(layers):
        checks.array(layer, f"{name}[{i}]", dtypes, layout, dims)
        dtypes = checks.dtype_name(layer)
    return list(layers)


def check_out(out: Committed, batch: int) -> tuple[Array, ...]:
    """Return the two arrays of ``out``, or raise."""
    lengths, status = checks.output(out, Committed._fields)
    dims = checks.Dims(b=batch)
    return (
        checks.target(lengths, "out.lengths", "int32", "b", dims),
        checks.target(status, "out.status", "int32", "b", dims),
    )


def self_check(library: Any) -> None:
    """Raise ``ValueError`` unless the kernels move rows as the reference does, in place and from a tree.

    Parameters
    ----------
    library : KernelLibrary
        With backend "cuda" or "host".
    """
    rng = np.random.default_rng(0)
    plain = type(library)(backend="numpy")
    for width, paged, in_cache in ((3, False, True), (64, True, False), (656, True, True)):
        caches = rng.integers(0, 255, (2, 6, 8, width), np.uint8)
        table = rng.permutation(6).astype(np.int32).reshape(2, 3) if paged else None
        if not paged:
            caches = caches.reshape(2, 2, 24, width)
        tree = None if in_cache else rng.integers(0, 255, (2, 2, 9, width), np.uint8)
        path = np.int32([[0, 2, 3, 8], [0, 5, -1, -1]])
        results = []
        for one in (library, plain):
            moved = [
                None if a is None else stage_scratch.moved(a.copy(), one) for a in (caches, tree, table, path)
            ]
            vectors = (stage_scratch.moved(np.int32(v), one) for v in ((4, 2), (7, 23)))
            got = kv_commit(moved[0], moved[3], *vectors, tree_kv=moved[1], page_table=moved[2], library=one)
            results.append([checks.host(a) for a in (moved[0], *got)])
        for name, one, other in zip(("caches", "lengths", "status"), *results, strict=True):
            if not np.array_equal(one, other):
                raise ValueError(f"kv_commit: {name} is not what the reference gives")
