"""KV rows of 8-bit floats (e4m3): their formats, numbers to rows and rows to numbers.

Examples
--------
>>> import numpy as np
>>> rows = quantize_mla_rows(np.full((1, 576), 3.0, np.float32))
>>> rows.shape, rows.dtype.name, float(dequantize_mla_rows(rows)[0, 0])
((1, 656), 'uint8', 3.0)
>>> quantize_mla_rows(np.full((1, 576), 3.0, np.float32), kv_scale=2.0)[0, :2].tolist()
[60, 60]
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from . import checks

Array = Any
LATENT, ROPE, GROUP, WIDTH = 512, 64, 128, 576
LARGEST = 448.0
"""Largest e4m3 number."""
SMALLEST_SCALE = 2.0**-126
"""Smallest normal float32: a smaller scale would lose digits."""
LARGEST_SCALE = 2.0**90
"""Kernels add up to 2^20 numbers below 448 times that, with weights up to 2^8, in float32."""
DTYPES = ("uint8", "float8_e4m3fn")
"""Number types of arrays that hold such rows; CuPy has the first only."""


class Rows(NamedTuple):
    """A format of KV rows: its name in kernels' names, bytes of a row, and whether rows have scales."""

    name: str
    bytes: int
    scaled: bool


SCALED = Rows("scaled", LATENT + 4 * (LATENT // GROUP) + 2 * ROPE, True)
PLAIN = Rows("plain", WIDTH, False)


def quantize_mla_rows(rows: Array, *, kv_scale: float | None = None, power_of_two: bool = False) -> Array:
    """Return KV rows in 8-bit floats, rounded to nearest even and saturated at 448.

    Parameters
    ----------
    rows : float array [..., 576]
        numpy or CuPy; 512 latent numbers, then 64 rotary ones.
    kv_scale : float, optional
        One scale for all numbers: the result is their quotients, 576 bytes a row.  Default: a scale for each
        128 latent numbers, their largest magnitude over 448, stored in the row of 656 bytes.
    power_of_two : bool
        Round those scales up to powers of two.

    Returns
    -------
    uint8 [..., 656] or [..., 576]
        Rows of 656 bytes: 512 e4m3 latent numbers, 4 float32 scales, 64 bfloat16 rotary numbers.  Rows of 576
        bytes: 576 e4m3 numbers; ``.view(ml_dtypes.float8_e4m3fn)`` names the type.  NaN stays NaN;
        infinity becomes 448, or NaN like all numbers whose scale it sets.

    Raises
    ------
    TypeError, ValueError
        ``rows`` is no such array; ``kv_scale`` is not a positive finite number, or given with
        ``power_of_two``.

    Notes
    -----
    The row of 656 bytes is the one of DeepSeek-V3.2 in FlashMLA, with any float32 scales.
    """
    rows = checks.array(rows, "rows", (*checks.FLOATS, "float64"), _spec(rows), checks.Dims())
    if not isinstance(power_of_two, bool):
        raise TypeError(f"power_of_two: got {type(power_of_two).__name__}, wanted a bool")
    with np.errstate(over="ignore"):
        numbers = rows.astype(np.float32)
    if kv_scale is not None:
        if power_of_two:
            raise ValueError("power_of_two: got True with kv_scale, wanted one of the two")
        return e4m3_codes(numbers / np.float32(check_scale(kv_scale)))
    xp = _module(rows)
    groups = numbers[..., :LATENT].reshape(*rows.shape[:-1], LATENT // GROUP, GROUP)
    largest = xp.abs(groups).max(-1)
    scales = xp.maximum(largest / np.float32(LARGEST), np.float32(SMALLEST_SCALE))
    scales = xp.where(largest == 0, np.float32(1), scales)
    if power_of_two:
        fraction, exponent = xp.frexp(scales)
        scales = xp.ldexp(xp.ones_like(scales), exponent - (fraction == 0.5))
    scales = scales.astype(np.float32)
    with np.errstate(invalid="ignore"):  # infinity by infinity
        quotients = groups / scales[..., None]
    parts = (
        e4m3_codes(quotients).reshape(*rows.shape[:-1], LATENT),
        scales.view(np.uint8),
        _bfloat16_bits(xp.ascontiguousarray(numbers[..., LATENT:])).view(np.uint8),
    )
    return xp.concatenate(parts, axis=-1)


def dequantize_mla_rows(rows: Array, *, kv_scale: float | None = None) -> Array:
    """Return float32 [..., 576], the numbers of rows as :func:`quantize_mla_rows` makes them.

    Parameters
    ----------
    rows : uint8 or float8_e4m3fn [..., 656] or [..., 576]
        numpy or CuPy; rows of 576 bytes want ``kv_scale``.

    Raises
    ------
    TypeError, ValueError
        ``rows`` is no such array, ``kv_scale`` is missing or too much.
    """
    form = format_of(rows, "rows")
    check_scale_of(form, kv_scale)
    xp, rows = _module(rows), as_bytes(rows)
    table = xp.asarray(_values())
    if not form.scaled:
        return table[rows] * np.float32(kv_scale)
    scales = xp.ascontiguousarray(rows[..., LATENT : LATENT + 16]).view(np.float32)
    rope = xp.ascontiguousarray(rows[..., LATENT + 16 :]).view(np.uint16).astype(np.uint32) << 16
    with np.errstate(invalid="ignore"):  # 0 times infinity
        latent = table[rows[..., :LATENT]] * xp.repeat(scales, GROUP, axis=-1)
    return xp.concatenate([latent, rope.view(np.float32)], axis=-1)


def e4m3_codes(numbers: Array) -> Array:
    """Return uint8 codes of float32 numbers: nearest, ties to even, magnitudes above 448 become 448."""
    xp = _module(numbers)
    bits = numbers.view(np.uint32)
    magnitude = bits & np.uint32(0x7FFFFFFF)
    # 2^-6 is the smallest normal number; adding 2^14 rounds smaller ones at 2^-9, the step of subnormals
    small = (magnitude.view(np.float32) + np.float32(2**14)).view(np.uint32) - np.uint32(0x46800000)
    rounded = magnitude + np.uint32(0x7FFFF) + (magnitude >> 20 & np.uint32(1))
    normal = (xp.minimum(rounded, np.uint32(0x7F800000)) - np.uint32(0x3C000000)) >> 20
    code = xp.minimum(xp.where(magnitude < np.uint32(0x3C800000), small, normal), np.uint32(0x7E))
    code = xp.where(magnitude > np.uint32(0x7F800000), np.uint32(0x7F), code)
    return (code | bits >> 24 & np.uint32(0x80)).astype(np.uint8)


def as_bytes(rows: Array) -> Array:
    """Return the same memory as uint8."""
    if checks.dtype_name(rows) == "uint8":
        return rows
    if checks.kind(rows) == "torch":
        import torch

        return rows.view(torch.uint8)
    return rows.view(np.uint8)


def format_of(rows: Array, name: str) -> Rows:
    """Return the format of rows [..., 656] or [..., 576] of 8-bit floats, or raise."""
    if checks.kind(rows) is None or checks.dtype_name(rows) not in DTYPES:
        found = checks.describe_kind(rows)
        raise TypeError(f"{name}: got {found}, wanted an array of {' or '.join(DTYPES)}")
    for form in (SCALED, PLAIN):
        if len(rows.shape) and rows.shape[-1] == form.bytes:
            return form
    raise ValueError(
        f"{name}: got shape {tuple(rows.shape)}, wanted rows of {SCALED.bytes} bytes (with scales) or "
        f"{PLAIN.bytes} (with kv_scale)"
    )


def check_scale(kv_scale: float, name: str = "kv_scale") -> float:
    """Return ``kv_scale`` if it is a positive finite number that float32 holds."""
    smallest, largest = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)
    ok = lambda x: math.isfinite(x) and smallest <= x <= largest  # noqa: E731
    return checks.number(kv_scale, name, "a positive finite number", ok)


def check_scale_of(form: Rows | None, kv_scale: float | None) -> float | None:
    """Return ``kv_scale`` if rows of a format (None: rows of other numbers) want one, or None; or raise."""
    if form is PLAIN:
        if kv_scale is None:
            raise ValueError(
                f"kv_scale: got None, wanted a number: rows of {PLAIN.bytes} bytes have no scales"
            )
        return check_scale(kv_scale)
    if kv_scale is not None:
        why = "have scales of their own" if form else "are no 8-bit floats"
        raise ValueError(f"kv_scale: got {kv_scale}, wanted None: these rows {why}")
    return None


def check_row_scales(
    cache: Array,
    tree_kv: Array | None,
    lengths: np.ndarray,
    counts: np.ndarray,
    page_table: np.ndarray | None,
) -> None:
    """Raise ``ValueError`` if a row of 656 bytes that a call reads has a scale above :data:`LARGEST_SCALE`.

    Waits for the device.  Positions must have been checked; ``lengths``, ``counts`` and ``page_table`` are
    those of :func:`~kdtree_cupy.kv_positions.check_positions`, in host memory.
    """

    def look(rows: Array, b: int, count: int, table: np.ndarray | None, name: str) -> None:
        of_request = rows[b] if table is None else rows[table[b, : -(-count // rows.shape[1])]]
        found = np.ascontiguousarray(of_request).view(np.float32).reshape(-1, LATENT // GROUP)[:count]
        for position, part in np.argwhere(np.abs(found) > LARGEST_SCALE):
            raise ValueError(
                f"{name}: got a scale of {found[position, part]:.3g} in row {position} of request {b}, "
                f"wanted magnitudes up to {LARGEST_SCALE:.3g}: sums of larger numbers may not fit float32"
            )

    prefix, tree = (
        None if rows is None else checks.host(rows[..., LATENT : LATENT + 4 * (LATENT // GROUP)])
        for rows in (cache, tree_kv)
    )
    for b, (length, count) in enumerate(zip(lengths.tolist(), counts.tolist(), strict=True)):
        look(prefix, b, length + (count if tree is None else 0), page_table, "cache")
        if tree is not None:
            look(tree, b, count, None, "tree_kv")


def _values() -> np.ndarray:
    """Return float32 [256]: the number of each code."""
    code = np.arange(256, dtype=np.uint32)
    magnitude = ((code & 0x7F) << 20).view(np.float32) * np.float32(2.0**120)
    magnitude[(code & 0x7F) == 0x7F] = np.nan
    return np.where(code & 0x80, -magnitude, magnitude)


def _bfloat16_bits(numbers: Array) -> Array:
    """Return uint16: float32 numbers rounded to bfloat16; NaN keeps its sign and becomes quiet."""
    xp, bits = _module(numbers), numbers.view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + (bits >> 16 & np.uint32(1))) >> 16
    return xp.where(xp.isnan(numbers), bits >> 16 | np.uint32(0x40), rounded).astype(np.uint16)


def _module(array: Array) -> Any:
    if checks.kind(array) == "cupy":
        import cupy

        return cupy
    if checks.kind(array) != "numpy":
        raise TypeError(f"rows: got a {checks.kind(array)} array, wanted numpy or CuPy")
    return np


def _spec(rows: Array) -> str:
    """Return a shape of as many axes as ``rows`` has, the last of 576."""
    axes = len(rows.shape) if checks.kind(rows) else 1
    return " ".join([*(f"n{i}" for i in range(axes - 1)), str(WIDTH)])
