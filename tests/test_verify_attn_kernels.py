"""Kernels of verify_attn: the bodies of test_verify_attn on host and cuda, and faults only kernels have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import test_verify_attn as bodies
from attention_bodies import check_fixed_splits
from conftest import Backend
from test_verify_attn import SCALE, assert_right, attend, make
from tolerances import ATTENTION_FLOAT32, assert_no_worse

import kdtree_cupy as kd
from kdtree_cupy import masks
from kdtree_cupy import verify_attn_variants as variants
from kdtree_cupy.library import KernelLibrary
from kdtree_cupy.library.arrays import numpy_dtype
from kdtree_cupy.library.driver import driver
from kdtree_cupy.library.host import problem

BF16 = ml_dtypes.bfloat16
GPU = pytest.mark.gpu
PATHS = {  # every load path and every kernel on every backend
    "host": {},
    "host, cp.async": {"KD_BULK_COPY": 0, "KD_STAGES": 4, "KD_SLOTS": 5},
    "host, warp groups": {"KD_WARP_GROUPS": 1, "KD_EACH_LANE": 1},
    "cuda": {},
    "cuda, mma": {"KD_WARP_GROUPS": 0},
    "cuda, mma, cp.async": {"KD_WARP_GROUPS": 0, "KD_BULK_COPY": 0},
}


@dataclass(frozen=True)
class Torch(Backend):
    """CUDA through torch, which has bfloat16."""

    def to(self, value: Any) -> Any:
        if not isinstance(value, np.ndarray):
            return value
        import torch

        for name, raw in (("bfloat16", np.int16), ("float8_e4m3fn", np.uint8)):
            if value.dtype.name == name:
                return torch.from_numpy(value.view(raw)).view(getattr(torch, name)).cuda()
        return torch.from_numpy(value).cuda()

    def back(self, value: Any) -> Any:
        import torch

        if isinstance(value, tuple):
            return type(value)(*map(self.back, value))
        host = value.detach().cpu()
        if host.dtype == torch.bfloat16:
            return host.view(torch.int16).numpy().view(numpy_dtype("bfloat16"))
        return host.numpy()


def backend_for(path: str, paths: dict[str, dict[str, int]] = PATHS, **options: Any) -> Backend:
    """Return the backend of a path; options are those of the host's launches."""
    name = path.partition(",")[0]
    library = KernelLibrary(backend=name, defines=paths[path])
    if name == "cuda":
        if not driver().devices:
            pytest.skip("cuda: no NVIDIA GPU, or no driver for it")
        return Torch(name, library)
    if reason := problem():
        pytest.skip(f"host: {reason}")
    library.host_options.update(options)
    return Backend(name, library)


BACKENDS = tuple(PATHS)


@pytest.fixture
def backend(request: pytest.FixtureRequest) -> Backend:
    return backend_for(request.param)


@pytest.mark.parametrize("dtype", bodies.DTYPES, ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize(
    "shape", bodies.SHAPES, ids=lambda s: f"P{s[0]}-N{s[1]}-H{s[2]}-{s[3]}".replace(" ", "")
)
def test_shapes_that_hurt(backend, shape, dtype):
    variant = backend.library.defines.keys() & {"KD_BULK_COPY", "KD_WARP_GROUPS"}
    if dtype == np.float32 and variant:
        pytest.skip("float32 has one kernel")
    if dtype == np.float16 and variant and backend.name == "host":
        pytest.skip("to save time: number types differ in two instructions, which the plain path runs")
    bodies.test_shapes_that_hurt(backend, shape, dtype)


@pytest.mark.parametrize("layout", ["contiguous, in cache", "1", "3", "64", "16 in cache"])
def test_layouts(backend, layout):
    case = make(3, [33, 0, 70], 9, 8, dtype=BF16, counts=[9, 4, 8])
    assert_right(case, attend(backend, case, layout))


@pytest.mark.parametrize("splits", ["auto", "fixed", 1, 2, 7, 64])
def test_splits(backend, splits):
    case = make(4, [530, 3], 17, 4, dtype=BF16, counts=[17, 16])
    assert_right(case, attend(backend, case, splits=splits))


@pytest.mark.parametrize("nodes", [1, 2, 3, 4])
@pytest.mark.parametrize("layout", ["contiguous, in cache", "1", "16 in cache"])
def test_few_rows(backend, layout, nodes):
    """Tiles of 8, 16 and 32 rows: more units than slots, none, one that touches the tree."""
    if backend.library.defines.get("KD_WARP_GROUPS"):
        pytest.skip("that macro is about more rows")
    case = make(21, [15, 0, 310], nodes, 8, dtype=BF16, mask="any", counts=[nodes, 1, max(nodes - 1, 0)])
    assert_right(case, attend(backend, case, layout))


def test_few_rows_of_one_request(backend):
    """One request is cut in another way: units are dealt out in turn."""
    for length, nodes, counts in ((900, 1, None), (40, 3, [2]), (0, 2, None)):
        case = make(22, [length], nodes, 8, dtype=BF16, counts=counts)
        assert_right(case, attend(backend, case))


@pytest.mark.parametrize("mask", ["chain", "any"])
def test_averages(backend, mask):
    bodies.test_every_output_is_the_average_of_the_visible_rows(backend, mask, BF16)


def test_rows_that_see_nothing(backend):
    case = make(6, [0, 4, 0], 40, 2, dtype=BF16, counts=[40, 40, 0])
    case.mask[:] = 0
    assert_right(case, attend(backend, case))
    assert_right(case, attend(backend, case, splits=3))


def test_other_rules(backend):
    bodies.test_bits_from_the_count_on_are_ignored(backend)
    bodies.test_large_scores_do_not_overflow(backend)
    bodies.test_requests_do_not_influence_each_other(backend)


def test_late_maximum(backend):
    """Scores that grow along the prefix move the running maximum again and again."""
    case = make(13, [300], 17, 4, dtype=BF16)
    growth = np.linspace(0, 12, 300, dtype=np.float32)
    case.cache[0, :300] = (case.cache[0, :300].astype(np.float32) * growth[:, None]).astype(BF16)
    assert_right(case, attend(backend, case))


def test_fixed_splits_do_not_depend_on_nodes_or_batch(backend):
    check_fixed_splits(backend, make, attend)


def test_a_chain_is_causal_attention_and_siblings_may_stand_in_any_order(backend):
    chain = make(15, [77], 24, 3, dtype=BF16, mask="chain")
    assert (masks.unpack_mask(chain.mask)[0] == np.tri(24, dtype=bool)).all()
    assert_right(chain, attend(backend, chain))
    case = make(16, [77], 24, 3, dtype=BF16, mask="star")
    order = np.concatenate([[0], 1 + np.random.default_rng(0).permutation(23)])
    visible = np.ascontiguousarray(masks.unpack_mask(case.mask)[:, order][:, :, order])
    other = case._replace(
        q=np.ascontiguousarray(case.q[:, order]),
        tree_kv=np.ascontiguousarray(case.tree_kv[:, order]),
        mask=masks.pack_mask(visible),
    )
    one, two = attend(backend, case), attend(backend, other)
    exact = bodies.reference.verify_attn(*case[:5], scale=SCALE).out[:, order]
    assert_no_worse(two.out, exact, one.out[:, order])


def test_ragged_batch_of_many(backend):
    rng = np.random.default_rng(17)
    lengths = [int(x) for x in rng.integers(0, 120, 37)]
    counts = [int(x) for x in rng.integers(0, 6, 37)]
    case = make(17, lengths, 5, 16, dtype=BF16, counts=counts)
    assert_right(case, attend(backend, case))


def test_pages_beyond_2_31_numbers(backend):
    """A page at the far end of a cache of more than 2**31 numbers (its memory is never touched elsewhere)."""
    case = make(18, [20], 4, 4, dtype=BF16)
    pages = 2**31 // (16 * 576) + 3
    far = np.array([[pages - 1, pages - 2]], np.int32)
    if backend.name == "cuda":
        import torch

        cache = torch.empty((pages, 16, 576), dtype=torch.bfloat16, device="cuda")
    else:
        cache = np.empty((pages, 16, 576), BF16)
    for i, page in enumerate(far[0]):
        cache[int(page)] = backend.to(np.resize(case.cache[0, 16 * i : 16 * i + 16], (16, 576)))
    got = backend.run(
        kd.verify_attn, case.q, cache, case.tree_kv, case.mask, case.lengths, scale=SCALE, page_table=far
    )
    assert_right(case, got)


@pytest.mark.parametrize("path", ["host", "host, cp.async", "host, warp groups"])
@pytest.mark.parametrize("seed", [-1, 1])
def test_any_order_of_threads_gives_the_same_bits(path, seed):
    for nodes, heads in ((17, 4), (2, 8)):
        case = make(19, [200, 31], nodes, heads, dtype=BF16)
        plain = attend(backend_for(path), case)
        shuffled = attend(backend_for(path, seed=seed), case)
        np.testing.assert_array_equal(plain.out.view(np.int16), shuffled.out.view(np.int16))
        np.testing.assert_array_equal(plain.lse, shuffled.lse)


@GPU
@pytest.mark.parametrize("path", [path for path in PATHS if path.startswith("cuda")])
def test_hundred_repeats_are_bit_identical(path):
    backend = backend_for(path)
    for nodes in (33, 1, 2, 4):
        case = make(20, [1500, 700], nodes, 8, dtype=BF16)
        first = attend(backend, case)
        for _ in range(100):
            again = backend.run(kd.verify_attn, *case[:5], scale=SCALE, counts=case.counts)
            np.testing.assert_array_equal(first.out.view(np.int16), again.out.view(np.int16))
            np.testing.assert_array_equal(first.lse, again.lse)


@GPU
def test_float32_accuracy():
    case = make(11, [2048], 33, 64)
    for x in (case.q, case.cache, case.tree_kv):
        x *= np.float32(0.5)
    got = backend_for("cuda").run(kd.verify_attn, *case[:5], scale=SCALE)
    exact = bodies.reference.verify_attn(*case[:5], scale=SCALE)
    assert np.abs(got.out - exact.out).max() <= ATTENTION_FLOAT32


def test_shared_memory_fits_the_cards():
    small, large = variants.Card((12, 0), 188, 101_376), variants.Card((9, 0), 132, 232_448)
    for variant in (variants.ROWS64, *variants.FEW):
        assert variants.block_for(variant, small).shared_bytes <= small.block_shared
    for variant in (variants.WGMMA, *variants.FEW):
        block = variants.block_for(variant, large)
        assert block.shared_bytes <= large.block_shared and block.threads >= 128
