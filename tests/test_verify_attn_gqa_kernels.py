"""Portable kernels of verify_attn_gqa: the bodies of test_verify_attn_gqa, and faults only kernels have."""

from __future__ import annotations

import numpy as np
import pytest
import test_verify_attn_gqa as bodies
import test_verify_attn_kernels as mla
from attention_bodies import check_fixed_splits
from conftest import Backend
from test_verify_attn_gqa import BF16, GRID, SCALE, assert_right, attend, make
from tolerances import ATTENTION_FLOAT32, BFLOAT16_LSE, GOLDEN_ATTENTION

import kdtree_cupy as kd
from kdtree_cupy import masks
from kdtree_cupy import verify_attn_gqa_variants as variants
from kdtree_cupy.errors import BackendError
from kdtree_cupy.library import KernelLibrary, nvrtc
from kdtree_cupy.library.host import problem
from kdtree_cupy.verify_attn_launch import Card

GPU = pytest.mark.gpu
PATHS = {
    "host": {},
    "host, deep": {"KD_STAGES": 3, "KD_EACH_LANE": 1},
    "host, warp groups": {"KD_WARP_GROUPS": 1, "KD_EACH_LANE": 1},
    "cuda": {},
    "cuda, mma": {"KD_WARP_GROUPS": 0},
}
BACKENDS = ("host", "cuda, mma")


def backend_for(path: str, **options) -> Backend:
    """Return the backend of a path; options are those of the host's launches."""
    if path.startswith("cuda"):
        return mla.backend_for(path)
    library = KernelLibrary(backend="host", defines=PATHS[path])
    if reason := problem():
        pytest.skip(f"host: {reason}")
    library.host_options.update(options)
    return Backend("host", library)


@pytest.fixture
def backend(request: pytest.FixtureRequest) -> Backend:
    return backend_for(request.param)


@pytest.mark.parametrize(("group", "size", "nodes"), GRID)
def test_groups_and_sizes(backend, group, size, nodes):
    bodies.check_grid(backend, group, size, nodes, BF16)


KERNELS = [
    (2, 4, "rows16"),
    (4, 8, "rows32"),
    (9, 5, "rows48"),
    (33, 4, "rows48"),
    (4, 16, "rows64"),
    (16, 16, "rows128"),
]


@pytest.mark.parametrize(("nodes", "group", "kernel"), KERNELS)
@pytest.mark.parametrize("size", [64, 128])
def test_every_kernel(backend, nodes, group, kernel, size):
    assert variants.variant_for(nodes * group, "auto").kernel.endswith(kernel)
    case = make(
        22, [70, 0, 33], nodes, group, 2, size, dtype=BF16, mask="any", counts=[nodes, nodes, nodes - 1]
    )
    assert_right(case, attend(backend, case, "3 in cache"))


@pytest.mark.parametrize("dtype", bodies.DTYPES, ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("mask", ["chain", "star", "binary", "random"])
def test_masks_and_types(backend, mask, dtype):
    bodies.test_masks_and_types(backend, mask, dtype)


@pytest.mark.parametrize("layout", bodies.LAYOUTS)
def test_layouts(backend, layout):
    bodies.test_layouts(backend, layout)


@pytest.mark.parametrize("splits", ["auto", "fixed", 1, 2, 7, 64])
def test_splits(backend, splits):
    bodies.test_splits(backend, splits)


@pytest.mark.parametrize("size", [64, 128])
@pytest.mark.parametrize("mask", ["chain", "any"])
def test_averages(backend, mask, size):
    bodies.test_every_output_is_the_average_of_the_visible_rows(backend, mask, size)


def test_other_rules(backend):
    bodies.test_a_row_that_sees_nothing_is_zero(backend)
    bodies.test_bits_from_the_count_on_are_ignored(backend)
    bodies.test_large_and_late_maxima(backend)
    bodies.test_counts_default_to_all_nodes(backend)


@pytest.mark.parametrize("scale", [-0.2, 0.0, 1e-3])
def test_any_finite_scale(backend, scale):
    case = make(9, [40], 5, 4, dtype=BF16, mask="any")
    got = backend.run(kd.verify_attn_gqa, *case[:7], scale=scale)
    exact = bodies.reference(*case[:7], scale=scale)
    error = np.abs(got.out.astype(np.float64) - exact.out).max()
    assert error <= GOLDEN_ATTENTION["bfloat16"] * np.abs(exact.out).max()
    np.testing.assert_allclose(got.lse, exact.lse, atol=BFLOAT16_LSE)


def test_fixed_splits_do_not_depend_on_nodes_or_batch(backend):
    check_fixed_splits(backend, make, attend)


def test_a_chain_is_causal_attention(backend):
    chain = make(15, [77], 24, 3, dtype=BF16, mask="chain")
    assert (masks.unpack_mask(chain.mask)[0] == np.tri(24, dtype=bool)).all()
    assert_right(chain, attend(backend, chain))


def test_ragged_batch_of_many(backend):
    rng = np.random.default_rng(17)
    lengths, counts = ([int(x) for x in rng.integers(0, top, 37)] for top in (120, 6))
    case = make(17, lengths, 5, 4, dtype=BF16, counts=counts)
    assert_right(case, attend(backend, case))


def test_pages_beyond_2_31_numbers(backend):
    """A page at the far end of caches of over 2**31 numbers (their memory is never touched elsewhere)."""
    case = make(18, [20], 4, 4, dtype=BF16)
    pages = 2**31 // (16 * 2 * 64) + 3
    far = np.array([[pages - 1, pages - 2]], np.int32)
    caches = []
    for dense in (case.k_cache, case.v_cache):
        if backend.name == "cuda":
            import torch

            caches.append(torch.empty((pages, 16, 2, 64), dtype=torch.bfloat16, device="cuda"))
        else:
            caches.append(np.empty((pages, 16, 2, 64), BF16))
        for i, page in enumerate(far[0]):
            caches[-1][int(page)] = backend.to(np.resize(dense[0, 16 * i : 16 * i + 16], (16, 2, 64)))
    rest = (case.tree_k, case.tree_v, case.mask, case.lengths)
    got = backend.run(kd.verify_attn_gqa, case.q, *caches, *rest, scale=SCALE, page_table=far)
    assert_right(case, got)


@pytest.mark.parametrize("seed", [-1, 1])
def test_any_order_of_threads_gives_the_same_bits(seed):
    case = make(19, [200, 31], 17, 4, dtype=BF16)
    plain, shuffled = attend(backend_for("host"), case), attend(backend_for("host", seed=seed), case)
    np.testing.assert_array_equal(plain.out.view(np.int16), shuffled.out.view(np.int16))
    np.testing.assert_array_equal(plain.lse, shuffled.lse)


@pytest.mark.parametrize("splits", ["auto", 7])
def test_a_deeper_ring_gives_the_same_bits(splits):
    case = make(21, [400, 31, 0], 9, 4, dtype=BF16, counts=[9, 8, 9])
    flat, deep = (attend(backend_for(path), case, splits=splits) for path in ("host", "host, deep"))
    np.testing.assert_array_equal(flat.out.view(np.int16), deep.out.view(np.int16))
    np.testing.assert_array_equal(flat.lse, deep.lse)


def test_heads_of_64_compile_without_spills():  # test_compile has those of 128
    try:
        nvrtc.choose().check_arch("sm_120")
    except BackendError as error:
        pytest.skip(str(error))
    rows = KernelLibrary(defines={"KD_HEAD": 64}).report(["verify_attn_gqa.cu"], arch="sm_120").rows
    assert len(rows) == 7
    assert not [row.name for row in rows if row.spill_bytes or row.stack_bytes]


@GPU
@pytest.mark.parametrize(("group", "nodes"), [(1, 9), (4, 33), (8, 65)])
@pytest.mark.parametrize("size", [64, 128])
def test_hundred_repeats_are_bit_identical(group, nodes, size):
    check_hundred_repeats(backend_for("cuda, mma"), group, nodes, size)


def check_hundred_repeats(backend: Backend, group: int, nodes: int, size: int) -> None:
    """Run a case of two requests, cut in many pieces, a hundred times."""
    case = make(20, [1500, 700], nodes, group, 2, size, dtype=BF16)
    first = attend(backend, case)
    for _ in range(100):
        again = backend.run(kd.verify_attn_gqa, *case[:7], scale=SCALE, counts=case.counts)
        np.testing.assert_array_equal(first.out.view(np.int16), again.out.view(np.int16))
        np.testing.assert_array_equal(first.lse, again.lse)


@GPU
def test_float32_accuracy():
    case = make(11, [2048], 33, 4, 8, 128)
    for x in case[:5]:
        x *= np.float32(0.5)
    got = backend_for("cuda").run(kd.verify_attn_gqa, *case[:7], scale=SCALE)
    exact = bodies.reference(*case[:7], scale=SCALE)
    assert np.abs(got.out - exact.out).max() <= ATTENTION_FLOAT32


@pytest.mark.parametrize("size", [64, 128])
@pytest.mark.parametrize("capability", [(8, 0), (8, 9), (9, 0), (12, 0)])
def test_shared_memory_fits_the_cards(capability, size):
    block = {(8, 0): 166_912, (8, 9): 101_376, (9, 0): 232_448, (12, 0): 101_376}[capability]
    for variant in variants.PORTABLE + (variants.GROUPS if capability == (9, 0) else ()):
        stages, blocks = variants.stages_and_blocks(variant, size, Card(capability, 100, block))
        assert stages >= 2 and blocks * (variant.shared_bytes(size, stages) + 1024) <= block + 1024
        assert blocks * variant.warps >= 2, "one warp of an idle multiprocessor"
