"""Half, bfloat16 and 8-bit floats on the CPU: every bit pattern and every rounding boundary."""

from __future__ import annotations

from bisect import bisect_left
from fractions import Fraction
from functools import cache

import ml_dtypes
import numpy as np
import pytest
from host_tools import module, needs_compiler

pytestmark = needs_compiler
TYPES = {
    "half": (np.dtype(np.float16), np.uint16),
    "bfloat": (np.dtype(ml_dtypes.bfloat16), np.uint16),
    "e4m3": (np.dtype(ml_dtypes.float8_e4m3fn), np.uint8),
    "e5m2": (np.dtype(ml_dtypes.float8_e5m2), np.uint8),
}


def run(kernel: str, n: int, *args) -> None:
    module("host_numeric.cu").launch(kernel, -(-n // 256), 256, [*args, np.int32(n)], guard=False)


def patterns(name: str) -> np.ndarray:
    """Return the value of every bit pattern, as float32."""
    dtype, bits = TYPES[name]
    return np.arange(2 ** (8 * bits().itemsize), dtype=np.int64).astype(bits).view(dtype).astype(np.float32)


@cache
def finite(name: str) -> np.ndarray:
    """Return all finite values in ascending order, zero once, and where overflow begins, as float64."""
    values = np.unique(np.abs(patterns(name)[np.isfinite(patterns(name))]).astype(np.float64))
    values = np.append(values, 2 * values[-1] - values[-2])
    return np.concatenate([-values[:0:-1], values])


@cache
def ascending(name: str) -> list[float]:
    return finite(name).tolist()


def boundaries(name: str) -> np.ndarray:
    """Return each value, each midpoint between neighbours, and the float32 numbers beside them."""
    values = finite(name)
    with np.errstate(over="ignore"):
        points = np.concatenate([values, (values[1:] + values[:-1]) / 2]).astype(np.float32)
        near = [points, np.nextafter(points, np.float32(np.inf)), np.nextafter(points, np.float32(-np.inf))]
        return np.unique(
            np.concatenate([*near, [np.inf, -np.inf, np.nan, 3e38, -3e38, 1e-45]]).astype(np.float32)
        )


def agree(name: str, got: np.ndarray, wanted: np.ndarray) -> None:
    """Assert equal bits, and NaN for NaN."""
    dtype, bits = TYPES[name]
    nan = np.isnan(wanted.astype(np.float32))
    np.testing.assert_array_equal(np.isnan(got.view(dtype).astype(np.float32)), nan)
    np.testing.assert_array_equal(got.view(bits)[~nan], wanted.view(bits)[~nan])


def nearest(name: str, exact: Fraction) -> float:
    """Return the value of a type nearest to an exact number, ties to the even pattern; inf past the end."""
    values = ascending(name)
    at = min(max(bisect_left(values, exact), 1), len(values) - 1)
    low, high = Fraction(values[at - 1]), Fraction(values[at])
    middle = (low + high) / 2
    up = exact > middle or (exact == middle and (at - 1 - len(values) // 2) % 2 != 0)
    chosen = at if up else at - 1
    if chosen in (0, len(values) - 1):
        return float("inf") if chosen else float("-inf")
    return float(values[chosen])


def test_every_pattern_decodes():
    got = {name: np.zeros(len(patterns(name)), np.float32) for name in TYPES}
    run("decode", 65536, *got.values())
    for name, values in got.items():
        np.testing.assert_array_equal(values, patterns(name), err_msg=name)
        zero = patterns(name) == 0
        np.testing.assert_array_equal(np.signbit(values[zero]), np.signbit(patterns(name)[zero]))


@pytest.mark.parametrize("name", TYPES)
def test_every_boundary_encodes(name):
    rng = np.random.default_rng(0)
    x = np.concatenate([boundaries(name), rng.integers(0, 2**32, 100_000, np.uint32).view(np.float32)])
    n = len(x)
    half, bfloat, eight = np.zeros(n, np.uint16), np.zeros(n, np.uint16), np.zeros((4, n), np.uint8)
    run("encode", n, x, half, bfloat, eight)
    with np.errstate(over="ignore", invalid="ignore"):
        wanted = {other: x.astype(dtype) for other, (dtype, _) in TYPES.items()}
        saturated = [np.clip(x, -m, m).astype(TYPES[o][0]) for o, m in (("e4m3", 448), ("e5m2", 57344))]
    agree("half", half, wanted["half"])
    agree("bfloat", bfloat, wanted["bfloat"])
    agree("e4m3", eight[0], wanted["e4m3"])
    agree("e5m2", eight[2], wanted["e5m2"])
    agree("e4m3", eight[1], saturated[0])
    agree("e5m2", eight[3], saturated[1])
    assert set(half[np.isnan(x)]) == set(bfloat[np.isnan(x)]) == {0x7FFF}, "the device's canonical NaN"


@pytest.mark.parametrize("name", ["half", "bfloat"])
def test_doubles_round_once(name):
    values = finite(name)
    rng = np.random.default_rng(1)
    chosen = rng.choice(len(values) - 1, 3000, replace=False)
    middle = (values[chosen] + values[chosen + 1]) / 2
    x = np.concatenate([np.nextafter(middle, np.inf), middle, np.nextafter(middle, -np.inf)])
    got = {"half": np.zeros(len(x), np.uint16), "bfloat": np.zeros(len(x), np.uint16)}
    run("encode_double", len(x), x, *got.values())
    with np.errstate(over="ignore"):
        wanted = np.array([nearest(name, Fraction(v)) for v in x.tolist()]).astype(TYPES[name][0])
    agree(name, got[name] & 0x7FFF, np.abs(wanted))  # a tiny negative double may become -0


@pytest.mark.parametrize("name", ["half", "bfloat"])
def test_arithmetic_rounds_once(name):
    dtype, bits = TYPES[name]
    rng = np.random.default_rng(2)
    n = 1500
    scale = 2.0 ** rng.integers(-5, 6, (3, n))
    abc = (rng.standard_normal((3, n)) * scale).astype(np.float32).astype(dtype)
    product = abc[0].astype(np.float64) * abc[1].astype(np.float64)
    abc[2, ::3] = (
        (-product[::3]).astype(np.float32).astype(dtype)
    )  # cancellation shows a product that was rounded
    out = np.zeros((n, 9), bits)
    run(f"{name}_arithmetic", n, abc.view(bits), out)
    a, b, c = ([Fraction(float(v)) for v in row] for row in abc)
    exact = [
        [x + y, x - y, x * y, x / y, x * y + z, max(x, y), min(x, y), -x, x + y if x < y else abs(x)]
        for x, y, z in zip(a, b, c, strict=True)
    ]
    with np.errstate(over="ignore"):
        wanted = np.array([[nearest(name, v) for v in row] for row in exact]).astype(dtype)
    got = out.view(dtype).astype(np.float64)
    np.testing.assert_array_equal(got, wanted.astype(np.float64))


def test_packed_pairs():
    x = np.random.default_rng(3).standard_normal((500, 2)).astype(np.float32)
    half, bfloat, back = np.zeros(500, np.uint32), np.zeros(500, np.uint32), np.zeros((2, 500, 2), np.float32)
    run("packed", 500, x, half, bfloat, back)
    np.testing.assert_array_equal(half.view(np.float16).reshape(-1, 2), x.astype(np.float16))
    rounded = x.astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(bfloat.view(ml_dtypes.bfloat16).reshape(-1, 2), rounded)
    np.testing.assert_array_equal(back[0], x.astype(np.float16) + np.array([1, 2], np.float16))
    np.testing.assert_array_equal(back[1], rounded.astype(np.float32))
