"""Matrix products of the engine: BLAS through numpy, cuBLAS for CuPy arrays, also while a graph is captured.

CuPy refuses its own products during a capture, so cuBLAS is called here directly, on a handle of its own
whose workspace never changes.  Products of few rows with weights in float32 go through
:mod:`kdtree_cupy.row_product`: cuBLAS is slow at 2 to 16 rows, and its order of sums depends on their count.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import numpy as np

from ..errors import BackendError
from ..row_product import row_product
from .fused import on_cupy

Array = Any
WORKSPACE = 32 << 20
"""Bytes that cuBLAS may use for partial sums: what it takes by itself on Hopper."""
FEW_ROWS, FEW_RESULTS = 64, 1 << 18
"""Most rows, and most numbers of a result, of a float32 product with weights that is not cuBLAS's."""
_TYPES = {"float32": 0, "float64": 1, "float16": 2}  # cudaDataType
_COMPUTE = {"float32": 68, "float64": 70, "float16": 68}  # cublasComputeType: float16 adds up in float32
_NO, _YES = 0, 1  # cublasOperation


def product(a: Array, b: Array, xp: Any, *, transposed: bool = False, out: Array | None = None) -> Array:
    """Return ``a @ b``, or ``a @ b^T`` if ``transposed``, for stacks of matrices.

    Parameters
    ----------
    a : [s, m, k]
    b : [s, k, n], or [s, n, k] if transposed
        Views will do, if numbers of a row lie side by side.
    xp : module
        ``numpy`` or ``cupy``.
    transposed : bool
    out : [s, m, n], optional
        A view will do; default: a new array in the type of ``a``.  float32 takes products of float16.
    """
    rows, columns = a.shape[1], b.shape[1 if transposed else 2]
    if out is None:
        out = xp.empty((len(a), rows, columns), a.dtype)
    if not on_cupy(xp):
        out[...] = a @ (b.swapaxes(1, 2) if transposed else b)
    elif out.size:
        _cublas(_compact(a, xp), _compact(b, xp), transposed, out)
    return out


def linear(x: Array, weight: Array, xp: Any, dtype: Any = None) -> Array:
    """Return ``x @ weight^T`` for ``x`` [..., k] and ``weight`` [n, k], in ``dtype`` or the type of ``x``."""
    if not on_cupy(xp):
        y = x.reshape(-1, x.shape[-1]) @ weight.T
        return y.reshape(*x.shape[:-1], len(weight)).astype(dtype or x.dtype, copy=False)
    out = xp.empty((*x.shape[:-1], len(weight)), dtype or x.dtype)
    flat, rows = out.reshape(-1, len(weight)), x.reshape(-1, x.shape[-1])
    few = len(rows) <= FEW_ROWS and flat.size <= FEW_RESULTS and x.shape[-1] % 4 == 0
    if few and x.dtype == out.dtype == np.float32:
        row_product(xp.ascontiguousarray(rows), weight, out=flat)
    else:
        product(rows[None], weight[None], xp, transposed=True, out=flat[None])
    return out


def by_head(x: Array, weight: Array, xp: Any, out: Array | None = None) -> Array:
    """Return ``x[:, h] @ weight[h]`` for every head h: [m, H, n] from [m, H, k] and [H, k, n]."""
    if out is None:
        out = xp.empty((len(x), x.shape[1], weight.shape[2]), x.dtype)
    product(x.transpose(1, 0, 2), weight, xp, out=out.transpose(1, 0, 2))
    return out


def _compact(a: Array, xp: Any) -> Array:
    """Return ``a`` if numbers of a row lie side by side, else a copy."""
    return a if a.strides[2] == a.itemsize or a.shape[2] == 1 else xp.ascontiguousarray(a)


def _cublas(a: Array, b: Array, transposed: bool, out: Array) -> None:
    """Write stacked products into ``out``; cuBLAS counts columns first, so the factors change places."""
    library, handle = _handle(out.device.id)
    _set_stream(library, handle, out.device.id)
    kind = a.dtype.name
    one, nothing = (_scalar(value, kind) for value in (1.0, 0.0))
    sizes = map(ctypes.c_int, (out.shape[2], out.shape[1], a.shape[2]))
    _check(
        library.cublasGemmStridedBatchedEx(
            handle, _YES if transposed else _NO, _NO, *sizes, ctypes.byref(one), *_operand(b), *_operand(a),
            ctypes.byref(nothing), *_operand(out),
            ctypes.c_int(len(out)), _COMPUTE[kind], -1,
        )
    )  # fmt: skip


def _operand(a: Array) -> tuple[Any, ...]:
    """Return pointer, type, distance of rows and distance of matrices."""
    row = a.strides[1] // a.itemsize if a.shape[1] > 1 else a.shape[2]
    step = a.strides[0] // a.itemsize if len(a) > 1 else 0
    return ctypes.c_void_p(a.data.ptr), _TYPES[a.dtype.name], ctypes.c_int(row), ctypes.c_longlong(step)


def _scalar(value: float, kind: str) -> Any:
    return ctypes.c_double(value) if kind == "float64" else ctypes.c_float(value)


_STREAMS: dict[int, int] = {}


def _set_stream(library: Any, handle: Any, device: int) -> None:
    """Send what follows to CuPy's current stream; cuBLAS forgets its workspace when that changes."""
    import cupy

    stream = cupy.cuda.get_current_stream().ptr
    if _STREAMS.get(device) != stream:
        workspace = _workspace(device)
        _check(library.cublasSetStream_v2(handle, ctypes.c_void_p(stream)))
        _check(
            library.cublasSetWorkspace_v2(
                handle, ctypes.c_void_p(workspace.data.ptr), ctypes.c_size_t(workspace.nbytes)
            )
        )
        _STREAMS[device] = stream


@cache
def _workspace(device: int) -> Array:
    import cupy

    return cupy.empty(WORKSPACE, np.uint8)


@cache
def _handle(device: int) -> tuple[Any, Any]:
    """Return the library that CuPy uses, and a handle of our own on ``device``."""
    import cupy

    cupy.cuda.device.get_cublas_handle()  # loads the library; from then on its short name will do
    name = f"libcublas.so.{cupy.cuda.runtime.runtimeGetVersion() // 1000}"
    try:
        library = ctypes.CDLL(name)
    except OSError as error:
        raise BackendError(f"{name}, which CuPy has loaded, cannot be opened by name: {error}") from error
    handle = ctypes.c_void_p()
    _check(library.cublasCreate_v2(ctypes.byref(handle)))
    return library, handle


def _check(status: int) -> None:
    if status:
        raise BackendError(f"cuBLAS: status {status}")
