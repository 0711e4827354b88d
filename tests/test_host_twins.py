"""The C++ twins of PTX instructions: tensor-core fragments, matrix loads, copies, named barriers."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from host_tools import SEEDS, module, needs_compiler

from kdtree_cupy.library.host_run import KernelFault

pytestmark = [needs_compiler, pytest.mark.parametrize("seed", SEEDS)]
LANE = np.arange(32)
GROUP, QUAD = LANE // 4, LANE % 4


def launch(kernel, grid, block, *args, seed):
    module("host_twins.cu").launch(kernel, grid, block, list(args), seed=seed, timeout=60)


def pairs(matrix: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Return two neighbours (along ``columns``) as one register, low half first."""
    bits = matrix.view(np.uint16).astype(np.uint32)
    return bits[rows, columns] | bits[rows, columns + 1] << 16


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16])
def test_fragments_of_mma(dtype, seed):
    """Whole numbers, so that sums are exact in any order; the layout is that of the PTX manual."""
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-8, 9, shape).astype(dtype) for shape in ((16, 16), (16, 8)))
    c = rng.integers(-99, 99, (16, 8)).astype(np.float32)
    first = [pairs(a, GROUP + 8 * (j % 2), 2 * QUAD + 8 * (j // 2)) for j in range(4)]
    second = [pairs(np.ascontiguousarray(b.T), GROUP, 2 * QUAD + 8 * j) for j in range(2)]
    places = [(GROUP + 8 * (j // 2), 2 * QUAD + j % 2) for j in range(4)]
    d = np.repeat([np.stack([c[place] for place in places], -1)], 2, 0)
    launch("fragments", 1, 32, np.stack(first, -1), np.stack(second, -1), d, seed=seed)
    wanted = a.astype(np.float32) @ b.astype(np.float32) + c
    got = np.empty_like(c)
    for j, place in enumerate(places):
        got[place] = d[0 if dtype is ml_dtypes.bfloat16 else 1, :, j]
    np.testing.assert_array_equal(got, wanted)


def test_matrix_loads(seed):
    tiles = np.random.default_rng(1).integers(0, 2**16, (4, 8, 8)).astype(np.uint16)
    out = np.zeros((2, 32, 4), np.uint32)
    launch("matrices", 1, 32, tiles, out, seed=seed)
    for j, tile in enumerate(tiles):
        np.testing.assert_array_equal(out[0, :, j], pairs(tile, GROUP, 2 * QUAD))
        np.testing.assert_array_equal(out[1, :, j], pairs(np.ascontiguousarray(tile.T), GROUP, 2 * QUAD))


@pytest.mark.parametrize("tiles", [0, 1, 2, 3, 9])
def test_ring_of_copies(tiles, seed):
    values = np.random.default_rng(tiles).integers(-99, 99, (max(tiles, 1), 64)).astype(np.float32)
    out = np.full(64, np.nan, np.float32)
    launch("ring", 1, 96, values, out, np.int32(tiles), seed=seed)
    np.testing.assert_array_equal(out, values[:tiles].sum(0))


def test_named_barriers(seed):
    out = np.full((2, 128), -1, np.int32)
    launch("teams", 1, 128, out, seed=seed)
    t = np.arange(128)
    np.testing.assert_array_equal(out, [10 * (t ^ 63) + 2 * (t // 64), t // 64])


def test_a_missing_arrival_is_reported(seed):
    with pytest.raises(KernelFault, match=r"mbarrier_wait \(async_copy.cuh") as caught:
        launch("starving", 3, 32, np.int32(1), seed=seed)
    assert caught.value.kind == "deadlock" and caught.value.block == (1, 0, 0)
