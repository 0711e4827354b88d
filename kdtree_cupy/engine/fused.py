"""Steps between matrix products: one kernel each on CuPy arrays, plain array code elsewhere.

A pass over a small model is bound by launches; written as array expressions these steps would take 20 each.
Sums of squares are float64 on both sides, so that they hardly depend on their order.
"""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np

Array = Any


def on_cupy(xp: Any) -> bool:
    """Return whether ``xp`` is CuPy."""
    return xp.__name__ == "cupy"


def rms_norm(x: Array, weight: Array, eps: float, xp: Any) -> Array:
    """Return ``x / rms(x) * weight`` along the last axis, in float32 inside and in the type of ``x``."""
    if on_cupy(xp):
        total = _kernels().squares(x, axis=-1, keepdims=True)
        return _kernels().scaled(x, total, weight, 1.0 / x.shape[-1], eps)
    wide = x.astype(np.float32, copy=False)
    mean = (wide * wide).mean(axis=-1, keepdims=True, dtype=np.float64)
    return (wide / xp.sqrt(mean + eps).astype(np.float32) * weight).astype(x.dtype, copy=False)


def silu(x: Array, xp: Any) -> Array:
    """Return ``x * sigmoid(x)``."""
    with np.errstate(over="ignore"):  # exp(-x) = inf gives the right limit, -0
        return x / (1 + xp.exp(-x))


def gated(gate: Array, up: Array, xp: Any) -> Array:
    """Return ``silu(gate) * up``."""
    return _kernels().gated(gate, up) if on_cupy(xp) else silu(gate, xp) * up


def rotate(x: Array, positions: Array, cos: Array, sin: Array, *, interleaved: bool, xp: Any) -> Array:
    """Return ``x`` [b, n, heads, size] with its pairs turned.

    Parameters
    ----------
    x : [b, n, heads, size]
    positions : int [b, n]
    cos, sin : float32 [most positions, size/2]
    interleaved : bool
        Pairs are (2i, 2i+1), else (i, i + size/2).
    xp : module
    """
    half, out = x.shape[-1] // 2, xp.empty_like(x)
    one, other = (slice(0, None, 2), slice(1, None, 2)) if interleaved else (slice(half), slice(half, None))
    a, b = x[..., one], x[..., other]
    if on_cupy(xp):
        places = positions[:, :, None, None]
        _kernels().rotate(a, b, places, cos, sin, half, out[..., one], out[..., other])
        return out
    cos, sin = cos[positions][:, :, None], sin[positions][:, :, None]
    out[..., one] = a * cos - b * sin
    out[..., other] = b * cos + a * sin
    return out


@cache
def _kernels() -> SimpleNamespace:
    import cupy

    return SimpleNamespace(
        squares=cupy.ReductionKernel(
            "T x", "float64 y", "(double)(float)x * (double)(float)x", "a + b", "y = a", "0",
            "kd_squares", reduce_type="double",
        ),
        scaled=cupy.ElementwiseKernel(
            "T x, float64 total, T weight, float64 share, float64 eps", "T y",
            "y = (T)((float)x / (float)sqrt(total * share + eps) * (float)weight)", "kd_scaled",
        ),
        gated=cupy.ElementwiseKernel(
            "T gate, T up", "T y", "float g = (float)gate; y = (T)(g / (1.0f + expf(-g)) * (float)up)",
            "kd_gated",
        ),
        rotate=cupy.ElementwiseKernel(
            "T a, T b, I place, raw float32 cos, raw float32 sin, int32 size", "T x, T y",
            """
            const ptrdiff_t at = (ptrdiff_t)place * size + i % size;
            const float p = (float)a, q = (float)b, c = cos[at], s = sin[at];
            x = (T)(p * c - q * s);
            y = (T)(q * c + p * s);
            """, "kd_rotate",
        ),
    )  # fmt: skip
