"""Quantised KV rows: every code, rounding and saturation as ml_dtypes has them, and the bytes of a row."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from conftest import library_of

from kdtree_cupy.kv_fp8 import dequantize_mla_rows, e4m3_codes, quantize_mla_rows
from kdtree_cupy.refs.fp8_rows import numbers

E4M3, BF16 = ml_dtypes.float8_e4m3fn, ml_dtypes.bfloat16
CODES = np.arange(256, dtype=np.uint8)
VALUES = CODES.view(E4M3).astype(np.float32)


@pytest.fixture(params=["numpy", pytest.param("cupy", marks=pytest.mark.gpu)])
def xp(request):
    if request.param == "cupy":
        library_of("cuda")
    return pytest.importorskip(request.param)


def host(array):
    return array.get() if hasattr(array, "get") else array


def test_every_code_is_its_own_number(xp):
    assert (host(e4m3_codes(xp.asarray(VALUES))) & 0x7F == CODES & 0x7F).all()
    finite = np.isfinite(VALUES)
    np.testing.assert_array_equal(host(e4m3_codes(xp.asarray(VALUES)))[finite], CODES[finite])
    rows = np.zeros((1, 576), np.uint8)
    rows[0, :256] = CODES
    np.testing.assert_array_equal(
        host(dequantize_mla_rows(xp.asarray(rows), kv_scale=0.5))[0, :256], VALUES / 2
    )


def test_rounding_is_that_of_ml_dtypes(xp):
    """Midpoints between neighbours, their neighbours in float32, and numbers of all magnitudes."""
    ordered = np.unique(VALUES[np.isfinite(VALUES)])
    middle = (ordered[1:] + ordered[:-1]) / 2
    around = [np.nextafter(middle, np.float32(side)) for side in (-np.inf, np.inf)]
    rng = np.random.default_rng(0)
    spread = rng.standard_normal(20_000, np.float32) * np.exp2(rng.integers(-14, 8, 20_000)).astype(
        np.float32
    )
    x = np.concatenate([ordered, middle, *around, spread, [0.0, -0.0, 1e-30, -1e-45]]).astype(np.float32)
    x = x[np.abs(x) <= 448]
    wanted = x.astype(E4M3).view(np.uint8)
    np.testing.assert_array_equal(host(e4m3_codes(xp.asarray(x))), wanted)


def test_large_numbers_saturate_and_nan_stays(xp):
    x = np.array([448, 464, 465, 1e4, 3e38, np.inf, -449, -np.inf, np.nan], np.float32)
    codes = host(e4m3_codes(xp.asarray(x)))
    np.testing.assert_array_equal(codes.view(E4M3).astype(np.float32), [*[448] * 6, -448, -448, np.nan])


@pytest.mark.parametrize("dtype", [np.float32, np.float64, BF16], ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("power_of_two", [False, True])
def test_a_scaled_row_byte_by_byte(dtype, power_of_two):
    x = (np.random.default_rng(1).standard_normal((3, 5, 576)) * 7).astype(dtype)
    rows = quantize_mla_rows(x, power_of_two=power_of_two)
    assert rows.shape == (3, 5, 656) and rows.dtype == np.uint8
    given = x.astype(np.float32)
    groups = given[..., :512].reshape(3, 5, 4, 128)
    scales = rows[..., 512:528].copy().view(np.float32)
    wanted = np.abs(groups).max(-1) / np.float32(448)
    if power_of_two:
        wanted = np.exp2(np.ceil(np.log2(wanted.astype(np.float64)))).astype(np.float32)
    np.testing.assert_array_equal(scales, wanted)
    codes = (groups / scales[..., None]).reshape(3, 5, 512).clip(-448, 448).astype(E4M3).view(np.uint8)
    np.testing.assert_array_equal(rows[..., :512], codes)
    np.testing.assert_array_equal(rows[..., 528:].copy().view(BF16), given[..., 512:].astype(BF16))
    exact = numbers(rows)
    np.testing.assert_allclose(dequantize_mla_rows(rows), exact, rtol=2.0**-24)
    step = np.maximum(np.abs(exact[..., :512]) * 2.0**-4, 2.0**-10 * np.repeat(scales, 128, axis=-1))
    assert (np.abs(exact[..., :512] - given[..., :512]) <= step * 1.0001).all()


def test_scales_of_odd_groups():
    x = np.zeros((4, 576), np.float32)
    x[1, :128] = 1e-45
    x[2, 128:256] = 3e38
    x[3, 300] = np.nan
    rows = quantize_mla_rows(x)
    scales = rows[:, 512:528].copy().view(np.float32)
    assert scales[0].tolist() == [1, 1, 1, 1] and scales[1, 0] == 2.0**-126
    back = dequantize_mla_rows(rows)
    assert (back[0] == 0).all() and np.isfinite(back[1:3]).all()
    np.testing.assert_allclose(back[2, 128:256], 3e38, rtol=1e-6)
    assert np.isnan(back[3, 300]) and np.isfinite(np.delete(back[3, 384:], 0)).all()


def test_one_scale_for_all():
    x = np.random.default_rng(2).standard_normal((7, 576), np.float32)
    rows = quantize_mla_rows(x, kv_scale=0.01)
    assert rows.shape == (7, 576)
    np.testing.assert_array_equal(rows, (x / np.float32(0.01)).clip(-448, 448).astype(E4M3).view(np.uint8))
    np.testing.assert_allclose(
        dequantize_mla_rows(rows.view(E4M3), kv_scale=0.01), numbers(rows, 0.01), rtol=1e-7
    )


def test_both_libraries_give_the_same_bytes(xp):
    x = np.random.default_rng(3).standard_normal((9, 576), np.float32)
    for options in ({}, {"power_of_two": True}, {"kv_scale": 0.02}):
        rows = quantize_mla_rows(x, **options)
        np.testing.assert_array_equal(host(quantize_mla_rows(xp.asarray(x), **options)), rows)
        scale = options.get("kv_scale")
        np.testing.assert_array_equal(
            host(dequantize_mla_rows(xp.asarray(rows), kv_scale=scale)),
            dequantize_mla_rows(rows, kv_scale=scale),
        )


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kv_scale", [None, 0.5])
def test_rows_that_are_none_and_numbers_without_bound(kv_scale):
    width = 656 if kv_scale is None else 576
    assert quantize_mla_rows(np.zeros((0, 3, 576), np.float32), kv_scale=kv_scale).shape == (0, 3, width)
    for value, dtype in ((np.inf, np.float32), (-1e300, np.float64)):
        x = np.ones((1, 576), dtype)
        x[0, 3] = value
        got = dequantize_mla_rows(quantize_mla_rows(x, kv_scale=kv_scale), kv_scale=kv_scale)[0]
        assert (got[128:] == 1).all()
        assert np.isnan(got[3]) if kv_scale is None else got[3] == np.sign(value) * 224


ROW, BYTES = np.zeros((1, 576), np.float32), np.zeros((1, 656), np.uint8)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: quantize_mla_rows([1.0]), TypeError, "rows: got list, wanted an array"),
        (lambda: quantize_mla_rows(ROW[:, :575].copy()), ValueError, "rows: got shape (1, 575), wanted"),
        (lambda: quantize_mla_rows(BYTES), TypeError, "rows: got dtype uint8"),
        (lambda: quantize_mla_rows(ROW, kv_scale=0.0), ValueError, "kv_scale: got 0.0, wanted a positive"),
        (lambda: quantize_mla_rows(ROW, kv_scale=1.0, power_of_two=True), ValueError, "power_of_two: got"),
        (lambda: quantize_mla_rows(ROW, power_of_two="yes"), TypeError, "power_of_two: got str"),
        (lambda: dequantize_mla_rows(ROW), TypeError, "rows: got dtype float32, wanted an array of uint8"),
        (lambda: dequantize_mla_rows(BYTES[:, :600]), ValueError, "wanted rows of 656 bytes (with scales)"),
        (lambda: dequantize_mla_rows(BYTES, kv_scale=1.0), ValueError, "kv_scale: got 1.0, wanted None"),
        (lambda: dequantize_mla_rows(BYTES[:, :576]), ValueError, "kv_scale: got None, wanted a number"),
    ],
)  # fmt: skip
def test_bad_arguments_are_named(call, error, words):
    with pytest.raises(error) as caught:
        call()
    assert words in str(caught.value)
