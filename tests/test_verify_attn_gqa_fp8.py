"""verify_attn_gqa on keys and values of 8-bit floats, and output of another number type than q."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from conftest import Backend
from test_verify_attn_gqa import BF16, SCALE, attend, make, reference
from test_verify_attn_gqa_arguments import GOOD as WIDE
from test_verify_attn_gqa_kernels import backend_for
from tolerances import BFLOAT16_LSE, GOLDEN_ATTENTION

import kdtree_cupy as kd
from kdtree_cupy import verify_attn_gqa_variants as variants
from kdtree_cupy.errors import BackendError
from kdtree_cupy.kv_fp8 import e4m3_codes
from kdtree_cupy.library import KernelLibrary, nvrtc

BACKENDS = ("numpy", "host", "host, warp groups", "cuda", "cuda, mma")
E4M3 = ml_dtypes.float8_e4m3fn
ROWS = ("k_cache", "v_cache", "tree_k", "tree_v")


@pytest.fixture
def backend(request: pytest.FixtureRequest) -> Backend:
    return Backend("numpy", None) if request.param == "numpy" else backend_for(request.param)


def narrow(case, k_scale: float, v_scale: float):
    """Return the case with 8-bit rows, and with the numbers that those stand for, in float32."""
    codes, wide = {}, {}
    for name in ROWS:
        scale = np.float32(k_scale if "k" in name.partition("_")[0] or name == "tree_k" else v_scale)
        codes[name] = e4m3_codes(getattr(case, name).astype(np.float32) / scale)
        wide[name] = codes[name].view(E4M3).astype(np.float32) * scale
    return case._replace(**codes), case._replace(**wide)


@pytest.mark.parametrize("layout", ["contiguous", "3", "16 in cache", "contiguous, one row"])
@pytest.mark.parametrize(("nodes", "group", "size"), [(3, 2, 128), (9, 4, 64), (17, 5, 128), (17, 8, 64)])
def test_powers_of_two_give_the_bits_of_the_same_numbers(backend, nodes, group, size, layout):
    """Widening is exact, and scales of 2**n only move exponents."""
    case = make(31, [70, 0, 33], nodes, group, 2, size, dtype=BF16, counts=[nodes, nodes, nodes - 1])
    codes, wide = narrow(case, 0.25, 0.5)
    wide = wide._replace(**{name: getattr(wide, name).astype(BF16) for name in ROWS})
    options = {"k_scale": 0.25, "v_scale": 0.5}
    got, same = (
        attend_codes(backend, codes, layout, splits=2, **options),
        attend(backend, wide, layout, splits=2),
    )
    np.testing.assert_array_equal(got.out.view(np.int16), same.out.view(np.int16))
    np.testing.assert_array_equal(got.lse, same.lse)


def attend_codes(backend: Backend, codes, layout: str, **options) -> kd.Attention:
    """Run the stage; what no position needs is NaN in 8 bits as well."""
    typed = codes._replace(**{name: getattr(codes, name).view(E4M3) for name in ROWS})
    if not layout[0].isdigit():
        return attend(backend, typed, layout, **options)
    caches = {name: getattr(typed, name).astype(np.float32) for name in ROWS}
    from test_verify_attn_gqa import paged

    wide = typed._replace(q=typed.q.astype(np.float32), **caches)
    *pages, table = paged(wide, int(layout.split()[0]), in_cache="in cache" in layout)
    trees = (None, None) if "in cache" in layout else (typed.tree_k, typed.tree_v)
    pages = [x.astype(E4M3) for x in pages]
    arguments = (typed.q, *pages, *trees, typed.mask, typed.lengths)
    return backend.run(
        kd.verify_attn_gqa, *arguments, scale=SCALE, counts=typed.counts, page_table=table, **options
    )


@pytest.mark.parametrize("dtype", [BF16, np.float32], ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("scales", [(0.013, 3.7), (2.0**-126, 2.0**120)])
def test_any_scale(backend, scales, dtype):
    """Against the formula on the very numbers, with scales that no number type of the rows could hold."""
    case = make(32, [45], 6, 3, dtype=dtype)
    codes = case._replace(**{n: e4m3_codes(getattr(case, n).astype(np.float32)) for n in ROWS})
    options = {"scale": 0.3 / scales[0], "k_scale": scales[0], "v_scale": scales[1]}
    got = backend.run(kd.verify_attn_gqa, *codes[:7], **options, out_dtype="float32")
    exact = reference(*codes[:7], **options)
    assert got.out.dtype == np.float32
    error = np.abs(got.out - exact.out).max() / np.abs(exact.out).max()
    assert error <= GOLDEN_ATTENTION[np.dtype(dtype).name]
    np.testing.assert_allclose(got.lse, exact.lse, atol=BFLOAT16_LSE)


@pytest.mark.parametrize("splits", ["auto", 3])
@pytest.mark.parametrize("result", ["float32", "float16"])
def test_output_of_another_type(backend, result, splits):
    """float32 keeps what bfloat16 rounds away; both come from the same sums."""
    case = make(33, [130, 9], 9, 4, dtype=BF16, counts=[9, 7])
    arguments, options = case[:7], {"scale": SCALE, "counts": case.counts, "splits": splits}
    got = backend.run(kd.verify_attn_gqa, *arguments, **options, out_dtype=result)
    plain = backend.run(kd.verify_attn_gqa, *arguments, **options)
    exact = reference(*case[:7], scale=SCALE, counts=case.counts).out
    assert got.out.dtype.name == result and plain.out.dtype == BF16
    errors = [np.abs(x.out.astype(np.float64) - exact).max() for x in (got, plain)]
    assert errors[0] < errors[1] <= GOLDEN_ATTENTION["bfloat16"] * np.abs(exact).max()
    into = kd.Attention(backend.to(np.empty_like(got.out)), backend.to(np.empty_like(got.lse)))
    again = backend.run(kd.verify_attn_gqa, *arguments, **options, out=into)
    np.testing.assert_array_equal(again.out, got.out)


NARROW = {name: np.zeros(WIDE[name].shape, np.uint8) for name in ("k_cache", "v_cache", "tree_k", "tree_v")}
GOOD = {**WIDE, **NARROW, "k_scale": 1.0, "v_scale": 2.0}
BAD = [
    ({"k_scale": None}, ValueError, "k_scale: got None, wanted a number: 8-bit floats have a scale"),
    ({"v_scale": 0.0}, ValueError, "v_scale: got 0.0, wanted a positive finite number"),
    ({"v_scale": "1"}, TypeError, "v_scale: got str"),
    ({"scale": 2.0**100, "k_scale": 2.0**40}, ValueError, r"scale: got .* times k_scale \(1099511627776.0\)"),
    ({"v_cache": np.zeros((2, 8, 2, 64), np.float32)}, TypeError, "v_cache: got dtype float32, wanted uint8"),
    ({"tree_k": np.zeros((2, 3, 2, 64), np.float32)}, TypeError, "tree_k: got dtype float32, wanted uint8"),
    ({"out_dtype": "float8_e4m3fn"}, ValueError, "out_dtype: got float8_e4m3fn, wanted one of float32"),
]


@pytest.mark.parametrize(("change", "error", "message"), BAD, ids=["-".join(b[0]) for b in BAD])
def test_bad_arguments_are_named(change, error, message):
    kd.verify_attn_gqa(**GOOD)
    with pytest.raises(error, match=message):
        kd.verify_attn_gqa(**(GOOD | change))


def test_scales_are_for_8_bit_rows_only():
    wide = GOOD | {n: GOOD[n].astype(np.float32) for n in ROWS}
    with pytest.raises(
        ValueError, match=r"k_scale: got 1.0, wanted None: these keys and values are no 8-bit"
    ):
        kd.verify_attn_gqa(**wide)


@pytest.mark.parametrize(("arch", "file"), [("sm_90", variants.FILE_SM90), ("sm_120", variants.FILE)])
def test_kernels_of_8_bit_rows_compile_without_spills(arch, file):
    try:
        nvrtc.choose().check_arch(arch)
    except BackendError as error:
        pytest.skip(str(error))
    library = KernelLibrary(defines=variants.NARROW)
    rows = library.report([file], arch=arch).rows
    assert not [row.name for row in rows if row.spill_bytes or row.stack_bytes]
