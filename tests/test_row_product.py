"""Products of a few rows: against float64, the same bits whatever rows are beside one, wrong arguments."""

import numpy as np
import pytest
from conftest import GUARD

from kdtree_cupy.library.arrays import handle
from kdtree_cupy.library.worker import KernelError
from kdtree_cupy.refs.row_product import row_product as reference
from kdtree_cupy.row_product import TILES, row_product, self_check

BACKENDS = ("host", "cuda", "numpy")


def draw(rows, columns, size, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((n, size), dtype=np.float32) for n in (rows, columns)]


@pytest.mark.parametrize("columns", [1, 7, 8, 33])
@pytest.mark.parametrize("size", [4, 124, 128, 576, 1540])
@pytest.mark.parametrize("rows", [1, 3, 16, 21])
def test_products_are_those_of_float64(backend, rows, columns, size):
    x, weight = draw(rows, columns, size)
    got = backend.run(row_product, x, weight)
    wanted = reference(x, weight)
    # size/32 additions in a lane and 5 between lanes, each half a rounding of the sum of magnitudes
    allowed = (size / 32 + 6) * 2.0**-24 * (np.abs(x) @ np.abs(weight).T)
    assert (np.abs(got.astype(float) - wanted) <= allowed).all()


def test_small_integers_are_exact(backend):
    x, weight = (np.round(2 * array) for array in draw(9, 12, 260))
    np.testing.assert_array_equal(backend.run(row_product, x, weight), x @ weight.T)


@pytest.mark.parametrize("size", [60, 576])
def test_a_row_has_the_same_bits_whatever_is_beside_it(backend, size):
    if backend.name == "numpy":
        pytest.skip("the reference leaves the order of sums to the processor's library")
    x, weight = draw(33, 13, size)
    whole = backend.run(row_product, x, weight)
    for rows in {*TILES, *(one + 1 for one in TILES), 32}:
        for start in (0, 33 - rows):
            part = backend.run(row_product, x[start : start + rows].copy(), weight)
            np.testing.assert_array_equal(part, whole[start : start + rows])


@pytest.mark.parametrize("rows", [1, 2, 5, 17])
def test_nothing_else_is_written(backend, rows):
    x, weight = draw(rows, 11, 132)
    out, buffer = backend.poisoned((rows, 11), np.float32, np.nan)
    given = row_product(backend.to(x), backend.to(weight), library=backend.library, out=out)
    assert given is out
    found = backend.back(buffer)
    assert np.isnan(found[:GUARD]).all() and np.isnan(found[-GUARD:]).all()
    assert np.isfinite(found[GUARD:-GUARD]).all()


def test_infinite_and_missing_numbers_stay_in_their_row(backend):
    x, weight = draw(3, 5, 8)
    x[1, 2] = np.nan
    x[2, 0] = np.inf
    weight[:, 0] = np.abs(weight[:, 0]) + 1
    got = backend.run(row_product, x, weight)
    assert np.isfinite(got[0]).all() and np.isnan(got[1]).all() and (got[2] == np.inf).all()


@pytest.mark.parametrize("shape", [(0, 5), (3, 0)])
def test_nothing_to_do(backend, shape):
    x, weight = draw(*shape, 8)
    assert backend.run(row_product, x, weight).shape == shape


def test_the_check_of_an_edit_passes_and_fails(backend):
    if backend.name == "numpy":
        pytest.skip("kernels only")
    self_check(backend.library)
    text = backend.library.sources.unit("row_product.cu").texts["row_product.cu"]
    wrong = text.replace("sum = fmaf(a.w, b.w, sum);", "")
    assert wrong != text
    edited = type(backend.library)(backend=backend.library.backend)
    edited.replace("row_product.cu", wrong)
    with pytest.raises(KernelError, match="not those of the reference"):
        self_check(edited)


@pytest.mark.parametrize(
    ("x", "weight", "error", "message"),
    [
        (np.zeros((2, 8)), np.zeros((3, 8), np.float32), TypeError, "x: got dtype float64"),
        (np.zeros((2, 8), np.float32), np.zeros((3, 4), np.float32), ValueError, "weight: got shape"),
        (np.zeros((2, 6), np.float32), np.zeros((3, 6), np.float32), ValueError, "wanted a multiple of 4"),
        (np.zeros((8, 2), np.float32).T, np.zeros((3, 8), np.float32), ValueError, "x: got a strided array"),
        ([[1.0]], np.zeros((3, 8), np.float32), TypeError, "x: got list"),
    ],
)
def test_wrong_arguments_are_named(x, weight, error, message):
    with pytest.raises(error, match=message):
        row_product(x, weight)


def test_addresses_matter_to_kernels_only(backend):
    whole = backend.to(np.arange(40, dtype=np.float32))
    start = 1 if handle(whole).pointer % 16 == 0 else 0
    x, weight = whole[start : start + 16].reshape(2, 8), backend.to(np.ones((3, 8), np.float32))
    if backend.name == "numpy":
        wanted = np.repeat(np.asarray(x).sum(1)[:, None], 3, axis=1)
        np.testing.assert_array_equal(row_product(x, weight, library=backend.library), wanted)
    else:
        with pytest.raises(ValueError, match="x: got an array off 16-byte addresses"):
            row_product(x, weight, library=backend.library)


def test_out_may_not_be_an_input():
    x = np.zeros((4, 4), np.float32)
    with pytest.raises(ValueError, match="out"):
        row_product(x, np.eye(4, dtype=np.float32), out=x)
