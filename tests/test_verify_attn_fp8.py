"""verify_attn on KV rows of 8-bit floats, and output types of their own: every backend, both formats."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from conftest import Backend
from test_verify_attn import SCALE, Case, assert_bfloat16, assert_right, attend, make
from test_verify_attn_kernels import backend_for
from tolerances import BFLOAT16_FROBENIUS

import kdtree_cupy as kd
from kdtree_cupy import masks
from kdtree_cupy.kv_fp8 import quantize_mla_rows
from kdtree_cupy.library import KernelLibrary
from kdtree_cupy.refs import verify_attn as reference
from kdtree_cupy.refs.fp8_rows import numbers

BF16, E4M3 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn
PATHS: dict[str, dict[str, int]] = {
    "host": {},
    "host, cp.async": {"KD_BULK_COPY": 0},
    "host, in the kernel": {"KD_WIDE_MB": 0},
    "host, warp groups": {"KD_WARP_GROUPS": 1},
    "cuda": {},
    "cuda, cp.async": {"KD_BULK_COPY": 0},
    "cuda, bits": {"KD_E4M3_CONVERT": 0},
    "cuda, in the kernel": {"KD_WIDE_MB": 0},
}
BACKENDS = ("numpy", *(path for path in PATHS if not path.startswith("host, ")))
FORMS = ("scaled", "plain")
TWO_ROUNDINGS = 2.0**-7 * 1.01
"""Of a weight times its scale, and of the result, to bfloat16."""
KV_SCALE = {"scaled": None, "plain": 0.0131}
SHAPES = [  # lengths, nodes, heads, mask, counts: each kernel, cut tiles, odd sizes
    ([0], 1, 1, "chain", None),
    ([15, 0, 17], 5, 3, "random", [5, 0, 4]),
    ([16, 63], 3, 8, "any", [3, 2]),
    ([64, 65], 17, 1, "binary", [1, 17]),
    ([129, 0], 33, 8, "random", [33, 32]),
    ([511], 31, 2, "any", [30]),
]


@pytest.fixture
def backend(request: pytest.FixtureRequest) -> Backend:
    if request.param == "numpy":
        return Backend("numpy", KernelLibrary(backend="numpy"))
    return backend_for(request.param, PATHS)


def fp8(case: Case, form: str, **options: bool) -> Case:
    """Return the case with its rows quantised; rows that must not be read hold NaN in every place."""

    def rows(x: np.ndarray) -> np.ndarray:
        unused = np.isnan(x[..., 0].astype(np.float32))
        out = quantize_mla_rows(np.nan_to_num(x.astype(np.float32)), kv_scale=KV_SCALE[form], **options)
        out[unused] = 0x7F if form == "plain" else 0xFF  # also NaN as scale and as bfloat16
        return out

    return case._replace(cache=rows(case.cache), tree_kv=rows(case.tree_kv))


def exact(case: Case, kv_scale: float | None, rounded: bool = False) -> Case:
    """Return the case with the numbers of its rows in float64, for the oracle; maybe rounded to bfloat16."""

    def wide(x: np.ndarray) -> np.ndarray:
        found = numbers(x.view(np.uint8), kv_scale)
        return found.astype(BF16).astype(np.float64) if rounded else found

    return case._replace(cache=wide(case.cache), tree_kv=wide(case.tree_kv))


def rounds_rows(backend: Backend, case: Case, splits: int | str) -> bool:
    """Return whether numbers times their scales become bfloat16 rows, as for many query rows."""
    _, nodes, heads, _ = case.q.shape
    wide = case.cache.shape[-1] == 656 and case.q.dtype == BF16 and nodes * heads > 32
    in_kernel = splits == "fixed" or backend.library.defines.get("KD_WIDE_MB") == "0"
    return backend.name != "numpy" and wide and not in_kernel


def check(
    backend: Backend, case: Case, form: str, layout: str = "contiguous", **options: Any
) -> kd.Attention:
    """Attend and compare with float64 on the dequantised rows, or on those rounded to bfloat16."""
    got = attend(backend, case, layout, kv_scale=KV_SCALE[form], **options)
    rounded = rounds_rows(backend, case, options.get("splits", "auto"))
    assert_right(exact(case, KV_SCALE[form], rounded), got)
    if rounded:  # one rounding more than if rows were read as they are: still inside the bound of results
        wide = exact(case, None)
        truth = reference.verify_attn(*wide[:5], scale=SCALE, counts=case.counts).out
        error = np.linalg.norm(got.out.astype(np.float64) - truth)
        assert error <= BFLOAT16_FROBENIUS * np.linalg.norm(truth)
    return got


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: f"P{s[0]}-N{s[1]}-H{s[2]}-{s[3]}".replace(" ", ""))
def test_shapes_that_hurt(backend, shape, form):
    lengths, nodes, heads, mask, counts = shape
    check(backend, fp8(make(nodes, lengths, nodes, heads, dtype=BF16, mask=mask, counts=counts), form), form)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("layout", ["contiguous, in cache", "1", "3", "64", "16 in cache"])
def test_layouts(backend, layout, form):
    check(backend, fp8(make(3, [33, 0, 70], 9, 4, dtype=BF16, counts=[9, 4, 8]), form), form, layout)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("splits", ["auto", "fixed", 1, 7])
def test_splits(backend, splits, form):
    check(backend, fp8(make(4, [530, 3], 17, 4, dtype=BF16, counts=[17, 16]), form), form, splits=splits)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [np.float32, np.float16], ids=lambda d: np.dtype(d).name)
def test_other_queries_take_the_exact_kernel(backend, dtype, form):
    case = fp8(make(5, [40, 7], 5, 3, dtype=BF16, counts=[5, 3]), form)
    check(backend, case._replace(q=case.q.astype(dtype)), form)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("heads", [1, 40, 70])
def test_every_code_comes_out_as_its_number(backend, heads, form):
    """One visible row: the result is that row, up to the rounding of scale and result; all kernels."""
    case = fp8(make(6, [0], 1, heads, dtype=BF16), form)
    codes = np.tile(np.arange(256, dtype=np.uint8), 2)
    codes[codes & 0x7F == 0x7F] = 0
    case.tree_kv[0, 0, :512] = codes
    got = attend(backend, case, kv_scale=KV_SCALE[form])
    row = numbers(case.tree_kv, KV_SCALE[form])[0, 0, :512]
    np.testing.assert_allclose(
        got.out[0, 0].astype(np.float64), np.broadcast_to(row, (heads, 512)), rtol=TWO_ROUNDINGS
    )
    if form == "scaled":  # powers of two scale exactly: the rounding to bfloat16 has nothing to do
        case.tree_kv[0, 0, 512:528] = np.exp2(np.float32([-3, 0, 1, 9])).view(np.uint8)
        row = numbers(case.tree_kv)[0, 0, :512]
        got = attend(backend, case)
        np.testing.assert_array_equal(got.out[0, 0].astype(np.float64), np.broadcast_to(row, (heads, 512)))


@pytest.mark.parametrize("form", FORMS)
def test_a_nan_that_is_seen_is_seen(backend, form):
    case = fp8(make(7, [20], 2, 8, dtype=BF16, mask="star"), form)
    case.cache[0, 11, 77] = 0x7F
    got = backend.run(kd.verify_attn, *case[:5], scale=SCALE, kv_scale=KV_SCALE[form])
    assert np.isnan(got.out.astype(np.float32)).any(axis=-1).all()


def test_float8_arrays_are_their_bytes(backend):
    case = fp8(make(10, [33], 9, 4, dtype=BF16), "plain")
    named = case._replace(cache=case.cache.view(E4M3), tree_kv=case.tree_kv.view(E4M3))
    if backend.name == "cuda" and not hasattr(pytest.importorskip("torch"), "float8_e4m3fn"):
        pytest.skip("this torch has no 8-bit floats")
    one, two = (backend.run(kd.verify_attn, *c[:5], scale=SCALE, kv_scale=0.5) for c in (case, named))
    np.testing.assert_array_equal(one.out.view(np.int16), two.out.view(np.int16))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("rows", ["scaled", "bfloat16", "float32"])
def test_output_types(backend, rows, dtype):
    """Types of q and of the result are independent; a wider result has lost less."""
    if backend.name == "host" and (rows, dtype) not in (
        ("scaled", "float32"), ("float32", "bfloat16"), ("bfloat16", "float32"),
    ):  # fmt: skip
        pytest.skip("to save time: each pair is a compilation")
    number = np.float32 if rows == "float32" else BF16
    case = make(11, [300, 4], 9, 8, dtype=number, counts=[9, 7])
    case = fp8(case, "scaled") if rows == "scaled" else case
    got = attend(backend, case, out_dtype=dtype, splits=3)
    assert got.out.dtype.name == dtype and got.lse.dtype == np.float32
    wide = exact(case, None, rounds_rows(backend, case, 3)) if rows == "scaled" else case
    for b in range(2):
        count, length = case.counts[b], case.lengths[b]
        keys = np.concatenate([wide.cache[b, :length], wide.tree_kv[b, :count]]).astype(np.float64)
        tree = masks.unpack_mask(case.mask)[b, :count, :count]
        visible = np.concatenate([np.ones((count, length), bool), tree], axis=1)
        scores = np.where(visible[:, None], SCALE * (case.q[b, :count].astype(float) @ keys.T), -np.inf)
        lse = np.logaddexp.reduce(scores, axis=-1)
        out, mine = np.exp(scores - lse[..., None]) @ keys[:, :512], got.out[b, :count].astype(np.float64)
        assert_bfloat16(mine, out, got.lse[b, :count], lse, slice(None))
        if number is np.float32 and dtype == "float32":
            np.testing.assert_allclose(mine, out, atol=1e-5)
        assert (got.out[b, count:].astype(np.float32) == 0).all()


def test_out_decides_the_type(backend):
    case = make(12, [40], 5, 8, dtype=BF16)
    wide = kd.Attention(np.empty((1, 5, 8, 512), np.float32), np.empty((1, 5, 8), np.float32))
    given = kd.Attention(*map(backend.to, wide))
    got = kd.verify_attn(*map(backend.to, case[:5]), scale=SCALE, out=given, library=backend.library)
    asked = backend.run(kd.verify_attn, *case[:5], scale=SCALE, out_dtype="float32")
    np.testing.assert_array_equal(backend.back(got).out, asked.out)


@pytest.mark.parametrize("form", FORMS)
def test_repeats_and_other_requests_change_no_bit(backend, form):
    case = fp8(make(13, [200, 31], 17, 4, dtype=BF16), form)
    first = attend(backend, case, kv_scale=KV_SCALE[form], splits="fixed")
    for _ in range(50 if backend.name == "cuda" else 2):
        again = attend(backend, case, kv_scale=KV_SCALE[form], splits="fixed")
        np.testing.assert_array_equal(first.out.view(np.int16), again.out.view(np.int16))
        np.testing.assert_array_equal(first.lse, again.lse)
    alone = attend(backend, Case(*(x[1:] for x in case)), kv_scale=KV_SCALE[form], splits="fixed")
    np.testing.assert_array_equal(first.out[1].view(np.int16), alone.out[0].view(np.int16))


@pytest.mark.parametrize("path", ["host", "host, cp.async"])
def test_any_order_of_threads_gives_the_same_bits(path):
    case = fp8(make(14, [150, 31], 9, 4, dtype=BF16), "scaled")
    plain = attend(backend_for("host", PATHS), case)
    shuffled = attend(backend_for(path, PATHS, seed=1), case)
    np.testing.assert_array_equal(plain.out.view(np.int16), shuffled.out.view(np.int16))
