"""Both attention stages: positions without a row, results that share memory, numbers beyond float32."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import kdtree_cupy as kd

BACKENDS = ("numpy", "host", "cuda")
STAGES = (kd.verify_attn, kd.verify_attn_gqa)
TABLE = np.int32([[0, 1], [2, 9]])  # page 9 is none, and nobody needs it


def arguments(stage: Any, *, paged: bool = False, apart: bool = True) -> dict[str, Any]:
    """Two requests of 8 and 3 rows with 3 nodes each, in a cache of 8 rows for each, or 4 pages of 4."""
    row = (576,) if stage is kd.verify_attn else (2, 64)
    names = (
        [("cache", "tree_kv")] if stage is kd.verify_attn else [("k_cache", "tree_k"), ("v_cache", "tree_v")]
    )
    given = {"q": np.ones((2, 3, 4, row[-1]), np.float32)}
    for cache, tree in names:
        given[cache] = np.ones(((4, 4) if paged else (2, 8)) + row, np.float32)
        given[tree] = np.ones((2, 3, *row), np.float32) if apart else None
    given |= {"mask": np.full((2, 3, 1), 7, np.uint32), "lengths": np.int32([8, 3]), "scale": 0.1}
    return given | ({"page_table": TABLE} if paged else {})


FAULTS = [  # (paged, tree apart, changes, message)
    (False, True, {"lengths": np.int32([9, 3])}, r"lengths\[0\]: got 9, but the cache has 8 rows"),
    (False, True, {"lengths": np.int32([2**31 - 1, 3])}, r"lengths\[0\]: got 2147483647, but the cache"),
    (False, True, {"lengths": np.int32([8, -1])}, r"lengths\[1\]: got -1, wanted 0"),
    (False, True, {"counts": np.int32([3, 4])}, r"counts\[1\]: got 4, wanted 0\.\.3"),
    (False, False, {"lengths": np.int32([5, 6])}, r"lengths\[1\]: got 6 and 3 nodes behind it"),
    (True, True, {"lengths": np.int32([8, 5])}, r"page_table\[1, 1\]: got 9, wanted .*: request 1 has 5"),
    (True, False, {"lengths": np.int32([0, 2])}, r"page_table\[1, 1\]: got 9, wanted 0\.\.3"),
    (True, True, {"page_table": np.int32([[-1, 0], [1, 2]])}, r"page_table\[0, 0\]: got -1, wanted 0\.\.3"),
    (True, True, {"page_table": np.zeros((2, 0), np.int32)}, r"lengths\[0\]: got 8, but the cache has 0"),
]  # fmt: skip


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.__name__)
@pytest.mark.parametrize(("paged", "apart", "changes", "message"), FAULTS)
def test_positions_without_a_row_are_named(backend, stage, paged, apart, changes, message):
    given = arguments(stage, paged=paged, apart=apart)
    with pytest.raises(ValueError, match=message):
        backend.run(stage, **(given | changes), check=True)


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.__name__)
def test_positions_with_a_row_pass_the_check(backend, stage):
    for paged, apart, changes in (
        (False, True, {}),
        (False, False, {"lengths": np.int32([5, 5])}),
        (False, False, {"counts": np.int32([0, 3])}),
        (True, True, {}),
        (True, False, {"lengths": np.int32([5, 1])}),
    ):
        backend.run(stage, **(arguments(stage, paged=paged, apart=apart) | changes), check=True)


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.__name__)
def test_pages_without_rows_are_named(backend, stage):
    given = arguments(stage, paged=True)
    given |= {name: given[name][:, :0].copy() for name in given if name.endswith("cache")}
    with pytest.raises(ValueError, match="cache: got pages of 0 rows, wanted at least 1"):
        backend.run(stage, **given)


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.__name__)
def test_results_have_memory_of_their_own(backend, stage):
    given = {name: backend.to(value) for name, value in arguments(stage).items()}
    width = 512 if stage is kd.verify_attn else 64
    whole = backend.to(np.zeros(24 * width + 24, np.float32))
    out, lse = whole[: 24 * width].reshape(2, 3, 4, width), whole[24 * width :].reshape(2, 3, 4)
    stage(**given, out=(out, lse), library=backend.library)
    with pytest.raises(ValueError, match=r"out\.lse: shares memory with out\.out"):
        stage(**given, out=(out, whole[-25:-1].reshape(2, 3, 4)), library=backend.library)
    with pytest.raises(ValueError, match=r"out\.out: shares memory with q, wanted memory of its own"):
        mine = given["q"].reshape(-1)[: 24 * width].reshape(2, 3, 4, width)
        stage(**given, out=(mine, lse), library=backend.library)


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.__name__)
def test_results_off_16_bytes_are_named_where_kernels_store_16(backend, stage):
    if backend.name == "numpy":
        pytest.skip("stores number by number")
    half = lambda x: x.astype(ml_dtypes.bfloat16) if getattr(x, "dtype", None) == np.float32 else x  # noqa: E731
    given = {name: backend.to(half(value)) for name, value in arguments(stage).items()}
    width = 512 if stage is kd.verify_attn else 64
    out = backend.to(np.zeros(24 * width + 2, ml_dtypes.bfloat16))[2:].reshape(2, 3, 4, width)
    with pytest.raises(ValueError, match=r"out\.out: got an array that starts off a multiple of 16 bytes"):
        stage(**given, out=(out, backend.to(np.zeros((2, 3, 4), np.float32))), library=backend.library)


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.__name__)
def test_bad_memory_in_numpy_is_named(stage):
    given = arguments(stage)
    lse = np.zeros((2, 3, 4), np.float32)
    locked = np.zeros((2, 3, 4, 512 if stage is kd.verify_attn else 64), np.float32)
    locked.flags.writeable = False
    with pytest.raises(ValueError, match=r"out\.out: got a read-only array, wanted a writeable one"):
        stage(**given, out=(locked, lse))
    unaligned = np.zeros(given["q"].nbytes + 1, np.uint8)[1:].view(np.float32).reshape(given["q"].shape)
    with pytest.raises(ValueError, match="q: got an array that starts within a number"):
        stage(**(given | {"q": unaligned}))


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.__name__)
@pytest.mark.parametrize(
    ("scale", "message"),
    [
        (2e38, r"scale: got 2e\+38, wanted a magnitude up to 2\*\*127"),
        (10**400, "scale: got a number beyond float64"),
    ],
    ids=["float32", "float64"],
)
def test_scales_beyond_float32_are_named(backend, stage, scale, message):
    with pytest.raises(ValueError, match=message):
        backend.run(stage, **(arguments(stage) | {"scale": scale}))


def test_a_library_is_no_name():
    with pytest.raises(TypeError, match=r"library: got str, wanted a KernelLibrary"):
        kd.verify_attn(**arguments(kd.verify_attn), library="host")


@pytest.mark.parametrize("splits", ["auto", "fixed", 3])
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16], ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.__name__)
def test_a_nan_that_is_seen_is_seen(backend, stage, dtype, splits):
    """Every kernel, pieces joined and not: a NaN in a query, or in a row of the prefix, is no 0."""
    rng = np.random.default_rng(0)
    for nodes in (1, 6, 14, 40):
        shapes = {"q": (2, nodes, 4, 576), "cache": (2, 150, 576), "tree_kv": (2, nodes, 576)}
        if stage is kd.verify_attn_gqa:
            cache, tree = (2, 150, 2, 64), (2, nodes, 2, 64)
            shapes = {
                "q": (2, nodes, 4, 64),
                "k_cache": cache,
                "v_cache": cache,
                "tree_k": tree,
                "tree_v": tree,
            }
        given = {name: rng.standard_normal(shape, np.float32).astype(dtype) for name, shape in shapes.items()}
        given["q"][0, 0, 1, 3] = given["cache" if "cache" in given else "k_cache"][1, 149, ..., 5] = np.nan
        mask = np.full((2, nodes, -(-nodes // 32)), 0xFFFFFFFF, np.uint32)
        got = backend.run(
            stage, **given, mask=mask, lengths=np.int32([150, 150]), scale=0.1, splits=splits,
            counts=np.int32([nodes, nodes]),
        )  # fmt: skip
        wanted = np.zeros((2, nodes, 4), bool)
        wanted[0, 0, 1] = wanted[1] = True
        np.testing.assert_array_equal(np.isnan(got.lse), wanted)
        np.testing.assert_array_equal(np.isnan(got.out.astype(np.float32)).all(-1), wanted)
        np.testing.assert_array_equal(np.isnan(got.out.astype(np.float32)).any(-1), wanted)
