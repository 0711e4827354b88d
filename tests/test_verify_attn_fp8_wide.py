"""8-bit KV rows that are widened first, the bound on memory for that, and scales of every size."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from conftest import Backend
from test_verify_attn import SCALE, assert_right, attend, make
from test_verify_attn_fp8 import (
    FORMS,
    KV_SCALE,
    PATHS,
    SHAPES,
    TWO_ROUNDINGS,
    check,
    exact,
    fp8,
    test_every_code_comes_out_as_its_number,
)
from test_verify_attn_kernels import backend_for
from tolerances import BFLOAT16_FROBENIUS

import kdtree_cupy as kd
from kdtree_cupy import masks, verify_attn_fp8
from kdtree_cupy.kv_fp8 import LARGEST_SCALE, SMALLEST_SCALE, quantize_mla_rows
from kdtree_cupy.library import KernelLibrary
from kdtree_cupy.refs import verify_attn as reference
from kdtree_cupy.refs.fp8_rows import numbers
from kdtree_cupy.verify_attn import check_arguments

BF16 = ml_dtypes.bfloat16
BACKENDS = ("numpy", "host", "cuda")
every_code = test_every_code_comes_out_as_its_number
del test_every_code_comes_out_as_its_number  # it runs in its own file


@pytest.fixture
def backend(request: pytest.FixtureRequest) -> Backend:
    if request.param == "numpy":
        return Backend("numpy", KernelLibrary(backend="numpy"))
    return backend_for(request.param, PATHS)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "path",
    ["host, warp groups", "host, in the kernel", pytest.param("cuda, in the kernel", marks=pytest.mark.gpu)],
)
def test_many_rows_in_every_way(path, form):
    """Widened first and read by the kernel of sm_90a; widened by the warps that multiply, without scratch."""
    backend = backend_for(path, PATHS)
    for lengths, nodes, heads, mask, counts in SHAPES:
        if nodes * heads > 32:
            case = make(nodes, lengths, nodes, heads, dtype=BF16, mask=mask, counts=counts)
            check(backend, fp8(case, form), form, "16 in cache")
    every_code(backend, 70, form)


def test_scratch_memory_does_not_add_up_as_caches_grow(monkeypatch):
    """What is kept of smaller caches is at most as much as the last one takes; the bound holds."""
    backend, taken = backend_for("host", PATHS), []
    take = verify_attn_fp8.take
    monkeypatch.setattr(verify_attn_fp8, "take", lambda run, *rest: taken.append(rest) or take(run, *rest))
    for length in range(3, 60, 4):
        case = fp8(make(1, [length], 9, 4, dtype=BF16), "plain")
        check(backend, case, "plain")
    sizes = {name: {rest[2] for rest in taken if rest[1] == name} for name in ("wide", "wide_tree")}
    largest = 576 * case.cache.shape[1]
    assert max(sizes["wide"]) < 2 * largest and len(sizes["wide_tree"]) == 1
    assert all(sum(kept) <= 2 * max(kept) for kept in sizes.values())
    assert verify_attn_fp8.most_scratch({"KD_WIDE_MB": "3"}) == 3 * 2**19


@pytest.mark.parametrize("form", FORMS)
def test_widened_rows_are_exact_if_scales_are_powers_of_two(backend, form):
    """Then the widening kernel rounds nothing."""
    case = make(33, [129, 0], 33, 8, dtype=BF16, counts=[33, 32])
    case = fp8(case, form, **({"power_of_two": True} if form == "scaled" else {}))
    assert_right(exact(case, KV_SCALE[form]), attend(backend, case, kv_scale=KV_SCALE[form]))


def test_the_bound_on_scratch_memory():
    """The shapes of cache and tree decide, not the lengths; it counts bfloat16 rows of both."""
    rows = 2**20 // 1152
    case = fp8(make(21, [3], 9, 4, dtype=BF16), "plain")
    case = case._replace(cache=np.zeros((1, rows - 8, 576), np.uint8))
    fits, a = verify_attn_fp8.fits_scratch, check_arguments(*case[:5], SCALE, None, None, 0.5)
    assert not fits(a, {"KD_WIDE_MB": "1"})  # 9 nodes
    assert fits(a._replace(tree_kv=a.tree_kv[:, :8]), {"KD_WIDE_MB": "1"})
    assert fits(a._replace(tree_kv=None), {"KD_WIDE_MB": "1"})
    assert fits(a, {}) and not fits(a, {"KD_WIDE_MB": "0"})


def test_scales_zero_tiny_and_huge(backend):
    """Columns of each scale err no more than columns of ordinary ones; rope alone decides the weights."""
    case = fp8(make(8, [50], 20, 4, dtype=BF16), "scaled")
    case.q[..., :512] = 0
    rng = np.random.default_rng(0)
    for rows in (case.cache, case.tree_kv):
        scales = np.float32([0, 1e-30, 1, 6e26]) * rng.uniform(0.5, 2, (*rows.shape[:2], 4)).astype(
            np.float32
        )
        unused = (rows[..., :1] == 0xFF) & (rows[..., 1:2] == 0xFF)
        rows[..., 512:528] = np.where(unused, rows[..., 512:528], scales.view(np.uint8))
    got = attend(backend, case)
    wide = exact(case, None)
    visible = np.concatenate([np.ones((20, 50), bool), masks.unpack_mask(case.mask)[0]], axis=1)
    keys = np.concatenate([wide.cache[0, :50], wide.tree_kv[0]])
    scores = np.where(visible[:, None], SCALE * (wide.q[0].astype(float) @ keys.T), -np.inf)
    weights = np.exp(scores - np.logaddexp.reduce(scores, axis=-1)[..., None])
    wanted = weights @ keys[:, :512]
    assert (got.out[..., :128].astype(np.float64) == 0).all()
    for group in range(1, 4):
        part = slice(128 * group, 128 * group + 128)
        error = got.out[0, ..., part].astype(np.float64) - wanted[..., part]
        assert np.linalg.norm(error) <= BFLOAT16_FROBENIUS * np.linalg.norm(wanted[..., part])


def test_a_tiny_row_beside_a_huge_one(backend):
    """Siblings of very different scales do not drown each other: a node sees the root and itself."""
    case = fp8(make(9, [0], 4, 5, dtype=BF16, mask="star"), "scaled")
    case.q[:] = 0
    case.mask[0, :, 0] = [1, 2, 4, 8]  # itself only
    case.tree_kv[0, :, 512:528] = np.repeat(np.float32([[1], [1e-30], [1.2e27], [1e-3]]), 4, axis=1).view(
        np.uint8
    )
    got = attend(backend, case)
    rows = numbers(case.tree_kv)[0, :, :512]
    for node in range(4):
        np.testing.assert_allclose(got.out[0, node].astype(float), [rows[node]] * 5, rtol=TWO_ROUNDINGS)


def test_scales_that_sums_cannot_hold_are_refused():
    """With check=True, wherever the row lies; rows that are not read may hold anything."""
    library = KernelLibrary(backend="numpy")
    case = fp8(make(11, [5, 2], 3, 2, dtype=BF16, counts=[3, 1]), "scaled")
    call = lambda case, **o: kd.verify_attn(*case[:5], scale=SCALE, counts=case.counts, library=library, **o)  # noqa: E731
    largest = quantize_mla_rows(np.full((1, 576), 2.0**98, np.float32))
    case.cache[0, 4] = largest  # numbers of 2^98 have a scale that is allowed
    assert np.isfinite(call(case).lse[0]).all()
    pages = case.cache.reshape(2 * case.cache.shape[1], 1, 656)
    table = np.arange(len(pages), dtype=np.int32).reshape(2, -1)
    for place, rows, words in (
        ((1, 1), case.cache, "cache: got a scale of 1.24e+27 in row 1 of request 1, wanted magnitudes up to"),
        ((0, 2), case.tree_kv, "tree_kv: got a scale of -inf in row 2 of request 0"),
    ):
        kept = rows[place].copy()
        bad = np.float32(
            np.nextafter(np.float32(LARGEST_SCALE), np.float32(np.inf)) if rows is case.cache else -np.inf
        )
        rows[place][512 + 4 * 3 : 528] = np.frombuffer(bad.tobytes(), np.uint8)
        with pytest.raises(ValueError, match=words.replace("+", r"\+")):
            call(case)
        with pytest.raises(ValueError, match=words.replace("+", r"\+")):
            call(case._replace(cache=pages), page_table=table)
        rows[place] = kept
    case.cache[1, 2:], case.tree_kv[1, 1:] = 0x7F, 0x7F  # 3.4e38: rows behind the prefix, padding nodes
    assert np.isfinite(call(case).lse[1, :1]).all()


@pytest.mark.parametrize("heads", [4, 40])
@pytest.mark.parametrize("scale", [SMALLEST_SCALE, LARGEST_SCALE])
def test_the_smallest_and_the_largest_scale_give_the_right_result(backend, heads, scale):
    """Three rows of 448, 448 and -448 times the scale: a third of that remains."""
    case = fp8(make(12, [2], 1, heads, dtype=BF16), "scaled")
    case.q[:] = 0
    for row, code in ((case.cache[0, 0], 0x7E), (case.cache[0, 1], 0x7E), (case.tree_kv[0, 0], 0xFE)):
        row[:512], row[512:528] = code, np.full(4, scale, np.float32).view(np.uint8)
    got = attend(backend, case).out.astype(np.float64)
    np.testing.assert_allclose(got, 448 * scale / 3, rtol=TWO_ROUNDINGS)


@pytest.mark.parametrize("heads", [3, 30, 40])
@pytest.mark.parametrize("direction", [1, -1])
def test_weights_and_scales_that_grow_against_each_other(backend, heads, direction):
    """Weights over 43 decades times scales over 43 decades: every row counts, wherever the largest come."""
    case = fp8(make(13, [400], 1, heads, dtype=BF16), "scaled")
    case.q[..., :512], case.q[..., 512:] = 0, 1
    rope = np.zeros((400, 64), np.float32)
    rope[:, 0] = np.linspace(0, 100, 400)[::direction] / SCALE
    rope = rope.astype(BF16)
    scores = SCALE * rope[:, 0].astype(np.float64)
    scales = np.repeat(np.exp(55 - scores)[:, None], 4, 1).astype(np.float32)
    case.cache[0, :400, 512:528], case.cache[0, :400, 528:] = scales.view(np.uint8), rope.view(np.uint8)
    case.tree_kv[0, :, 512:528], case.mask[:] = 0, 0
    got = attend(backend, case)
    wanted = reference.verify_attn(*exact(case, None)[:5], scale=SCALE).out
    assert np.linalg.norm(got.out.astype(np.float64) - wanted) <= BFLOAT16_FROBENIUS * np.linalg.norm(wanted)
