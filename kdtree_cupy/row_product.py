"""Products of a few rows with a matrix of weights in float32: ``x @ weight^T``, the same bits for any rows.

A decoding pass has as many rows as trees have nodes.  BLAS libraries choose another kernel, and so another
order of sums, for other numbers of rows, and are slow at 2 to 16 of them; here a row's result depends on
that row and the weights only.

Examples
--------
>>> import numpy as np
>>> x, weight = np.float32([[1, 2, 3, 4], [0, 1, 0, -1]]), np.float32([[1, 1, 1, 1], [2, 0, 0, 1]])
>>> row_product(x, weight).tolist()
[[10.0, 6.0], [0.0, -1.0]]
"""

from __future__ import annotations

from typing import Any

import numpy as np

from . import checks, stage_run
from .library import arrays
from .library.resolve import resolve
from .refs import row_product as reference

Array = Any
TILES = (1, 2, 4, 8, 16)
"""Rows that a block of each kernel makes."""
_COLUMNS, _THREADS = 8, 128  # KD_PRODUCT_COLUMNS * KD_PRODUCT_WARPS and threads of row_product.cu


def row_product(x: Array, weight: Array, *, library: Any = None, out: Array | None = None) -> Array:
    """Return ``x @ weight^T``, every row with the same bits whatever the other rows are.

    Parameters
    ----------
    x : float32 [m, k]
        k a multiple of 4.
    weight : float32 [n, k]
    library : KernelLibrary, optional
        Where kernels come from; None follows the kind of the arrays.
    out : float32 [m, n], optional
        To write into.

    Returns
    -------
    float32 [m, n]
        Sums in float32; the reference adds up in float64.

    Raises
    ------
    TypeError, ValueError, BackendError
        As in :func:`~kdtree_cupy.tree_build.tree_build`; k is no multiple of 4.

    Notes
    -----
    Meant for up to some dozens of rows: weights are read once for every 16 of them.
    """
    dims = checks.Dims()
    x = checks.array(x, "x", "float32", "m k", dims)
    weight = checks.array(weight, "weight", "float32", "n k", dims)
    if dims["k"] % 4 or not dims["k"]:
        raise ValueError(f"x: got rows of {dims['k']} numbers, wanted a multiple of 4")
    if out is not None:
        out = checks.target(out, "out", "float32", "m n", dims)
        checks.apart({"out": out}, {"x": x, "weight": weight})
    run = resolve(library, {"x": x, "weight": weight, "out": out})
    if run.backend == "numpy":
        found = reference.row_product(run.numpy(x), run.numpy(weight))
        return stage_run.deliver(run, None if out is None else [out], [found])[0]
    for name, array in {"x": x, "weight": weight}.items():  # kernels read four numbers at once
        if arrays.handle(array).pointer % 16:
            raise ValueError(f"{name}: got an array off 16-byte addresses, wanted one on them (make a copy)")
    rows, columns = dims["m"], dims["n"]
    out = run.empty((rows, columns), "float32") if out is None else out
    if rows and columns:
        tile = next((one for one in TILES if rows <= one), TILES[-1])
        grid = (-(-rows // tile), -(-columns // _COLUMNS))
        sizes = map(np.int32, (rows, columns, dims["k"]))
        run.launch("row_product.cu", f"row_product_{tile}", grid, _THREADS, [x, weight, out, *sizes])
    return out


def self_check(library: Any) -> None:
    """Raise ``ValueError`` unless the kernels agree with the reference, and with each other bit for bit.

    Parameters
    ----------
    library : KernelLibrary
        With backend "cuda" or "host".
    """
    from .stage_scratch import moved

    rng = np.random.default_rng(0)
    for rows, columns, size in ((1, 1, 4), (7, 19, 132), (21, 9, 576)):
        x, weight = (rng.standard_normal((n, size), dtype=np.float32) for n in (rows, columns))
        wanted = reference.row_product(x, weight)
        both = []
        for part in (x, x[:1].copy()):
            got = row_product(moved(part, library), moved(weight, library), library=library)
            both.append(checks.host(got))
        if np.abs(both[0] - wanted).max() > 1e-5 * size**0.5:
            raise ValueError("row_product: products are not those of the reference")
        if not np.array_equal(both[0][:1], both[1]):
            raise ValueError("row_product: a row's bits depend on the rows beside it")
