"""The sm_90a kernels of verify_attn_gqa, on the CPU by their twins and on an H100 or H200."""

from __future__ import annotations

import numpy as np
import pytest
import test_verify_attn_gqa as bodies
import test_verify_attn_gqa_kernels as portable
from attention_bodies import check_fixed_splits
from conftest import Backend
from test_verify_attn_gqa import BF16, SCALE, assert_right, attend, make
from test_verify_attn_gqa_kernels import GPU, backend_for

import kdtree_cupy as kd
from kdtree_cupy import verify_attn_gqa_launch
from kdtree_cupy import verify_attn_gqa_variants as variants
from kdtree_cupy.errors import BackendError
from kdtree_cupy.library import KernelLibrary, nvrtc

BACKENDS = ("host, warp groups", "cuda")


@pytest.fixture
def backend(request: pytest.FixtureRequest) -> Backend:
    return backend_for(request.param)


@pytest.mark.parametrize(("group", "size", "nodes"), [g for g in bodies.GRID if g[0] in (1, 7, 16)])
def test_groups_and_sizes(backend, group, size, nodes):
    bodies.check_grid(backend, group, size, nodes, BF16)


@pytest.mark.parametrize("variant", variants.GROUPS, ids=lambda one: one.kernel)
@pytest.mark.parametrize("size", [64, 128])
def test_every_kernel(monkeypatch, backend, variant, size):
    """Tiles that are full, nearly empty (groups without a row) and cut: 200 rows of a KV head."""
    monkeypatch.setattr(verify_attn_gqa_launch, "variant_for", lambda *_: variant)
    case = make(23, [330, 0], 25, 8, 1, size, dtype=BF16, mask="any", counts=[25, 24])
    assert_right(case, attend(backend, case))
    negative = backend.run(kd.verify_attn_gqa, *case[:7], scale=-SCALE, counts=case.counts)
    positive = backend.run(kd.verify_attn_gqa, -case.q, *case[1:7], scale=SCALE, counts=case.counts)
    np.testing.assert_array_equal(negative.out.view(np.int16), positive.out.view(np.int16))


@pytest.mark.parametrize("variant", variants.GROUPS, ids=lambda one: one.kernel)
def test_last_tiles_that_take_less_time(monkeypatch, backend, variant):
    """One request, whose last tile of 8 rows gets fewer blocks than the others; one and two KV heads."""
    monkeypatch.setattr(verify_attn_gqa_launch, "variant_for", lambda *_: variant)
    for nodes, shared, length in (
        (variant.rows // 8 + 1, 1, 700),
        (variant.rows // 8 + 1, 2, 1500),
        (3, 1, 90),
    ):
        case = make(25, [length], nodes, 8, shared, 128, dtype=BF16)
        assert_right(case, attend(backend, case))


def test_half_precision(backend):
    bodies.test_masks_and_types(backend, "random", np.float16)


@pytest.mark.parametrize("layout", bodies.LAYOUTS)
def test_layouts(backend, layout):
    bodies.test_layouts(backend, layout)


@pytest.mark.parametrize("splits", ["auto", "fixed", 1, 7])
def test_splits(backend, splits):
    bodies.test_splits(backend, splits)


@pytest.mark.parametrize("mask", ["chain", "any"])
def test_averages(backend, mask):
    bodies.test_every_output_is_the_average_of_the_visible_rows(backend, mask, 128)


def test_other_rules(backend):
    portable.test_other_rules(backend)
    portable.test_any_finite_scale(backend, 0.0)
    portable.test_ragged_batch_of_many(backend)


def test_fixed_splits_do_not_depend_on_nodes_or_batch(backend):
    check_fixed_splits(backend, make, attend)


@pytest.mark.parametrize("seed", [-1, 1])
def test_any_order_of_threads_gives_the_same_bits(seed):
    case = make(19, [200, 31], 17, 4, dtype=BF16)
    plain, shuffled = (attend(backend_for("host, warp groups", **x), case) for x in ({}, {"seed": seed}))
    np.testing.assert_array_equal(plain.out.view(np.int16), shuffled.out.view(np.int16))
    np.testing.assert_array_equal(plain.lse, shuffled.lse)


@pytest.mark.parametrize("size", variants.SIZES)
def test_they_compile_without_spills(size):
    try:
        nvrtc.choose().check_arch("sm_90")
    except BackendError as error:
        pytest.skip(str(error))
    rows = KernelLibrary(defines={"KD_HEAD": size}).report([variants.FILE_SM90], arch="sm_90").rows
    assert len(rows) == len(variants.GROUPS)
    assert not [row.name for row in rows if row.spill_bytes or row.stack_bytes]


@GPU
@pytest.mark.parametrize(("group", "nodes"), [(1, 9), (4, 33), (8, 65)])
@pytest.mark.parametrize("size", [64, 128])
def test_hundred_repeats_are_bit_identical(group, nodes, size):
    portable.check_hundred_repeats(backend_for("cuda"), group, nodes, size)
