"""Target tokens: argmax, and draws whose rule is exact."""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import pytest
from conftest import Backend, assert_same, run_into_poison
from hypothesis import given
from hypothesis import strategies as st
from tolerances import UNIFORM_EDGE

import kdtree_cupy as kd

DTYPES = [np.float32, np.float16, ml_dtypes.bfloat16]
NON_FINITE = 1
BACKENDS = ("numpy", "host", "cuda")


def draw(backend: Backend, row, uniforms, *, temperature=1.0, dtype=np.float32, **options) -> list[int]:
    """Return the token that each of ``uniforms`` draws from one row of logits."""
    rows = np.tile(np.array(row, np.float32), (1, len(uniforms), 1)).astype(dtype)
    u = np.array([uniforms], np.float32)
    result = run_into_poison(backend, kd.target_token, rows, temperature=temperature, uniforms=u, **options)
    return result.tokens[0].tolist()


@given(row=st.lists(st.sampled_from([-np.inf, -2.0, 0.0, -0.0, 1.0, 3.0]), min_size=1, max_size=9))
def test_argmax_is_the_lowest_best_id(backend, row):
    result = backend.run(kd.target_token, np.float32([[row]]))
    if max(row) == -np.inf:
        assert result.tokens.tolist() == [[-1]] and result.status.tolist() == [NON_FINITE]
    else:
        assert result.tokens.tolist() == [[row.index(max(row))]] and result.status.tolist() == [0]


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("vocab", [1, 2, 31, 33, 1001, 151_936])
def test_argmax_shapes(backend, dtype, vocab):
    logits = np.random.default_rng(vocab).standard_normal((2, 3, vocab)).astype(dtype)
    result = run_into_poison(backend, kd.target_token, logits)
    np.testing.assert_array_equal(result.tokens, np.argmax(logits.astype(np.float32), axis=-1))


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
def test_draw_follows_the_cumulative_mass(backend, dtype):
    """Masses 2, 1, 4, 1 of 8: powers of two, so that logits are close enough in every number type."""
    row = np.log([2.0, 1.0, 4.0, 1.0])
    middle = [(i + 0.5) / 8 for i in range(8)]
    assert draw(backend, row, middle, dtype=dtype) == [0, 0, 1, 2, 2, 2, 2, 3]


def test_edges_belong_to_the_next_token(backend):
    assert draw(backend, [0.0, 0.0, 0.0, 0.0], [0.0, 0.25, 0.5, 0.75]) == [0, 1, 2, 3]


def test_a_token_without_mass_is_never_drawn(backend):
    lowest, highest = 0.0, float(np.nextafter(np.float32(1), np.float32(0)))
    assert draw(backend, [-np.inf, 0.0, -np.inf], [lowest, 0.5, highest]) == [1, 1, 1]


@given(
    weights=st.lists(st.integers(0, 9), min_size=1, max_size=8).filter(any),
    u=st.floats(0, 1, exclude_max=True, width=32),
)
def test_draw_by_exact_fractions(backend, weights, u):
    """Integer weights w: the cumulative mass is a fraction that can be compared exactly."""
    with np.errstate(divide="ignore"):
        row = np.log(np.array(weights, np.float64))
    got = draw(backend, row, [u])[0]
    total = sum(weights)
    edges = [c / total for c in itertools.accumulate(weights)]
    near = [i for i, edge in enumerate(edges) if abs(u - edge) <= UNIFORM_EDGE]
    wanted = next(i for i, edge in enumerate(edges) if edge > u)
    assert got == wanted or (near and weights[got] > 0 and abs(edges[min(got, wanted)] - u) <= UNIFORM_EDGE)


def test_frequencies_over_a_grid_of_uniforms(backend):
    row = np.random.default_rng(0).standard_normal(20)
    n = 400 if backend.name == "host" else 4000  # a block for each row
    tokens = draw(backend, row, [(i + 0.5) / n for i in range(n)], temperature=0.8)
    p = np.exp(row / 0.8) / np.exp(row / 0.8).sum()
    assert np.abs(np.bincount(tokens, minlength=20) / n - p).max() <= 1.01 / n


@pytest.mark.parametrize("top_p", [1.0, 0.8])
def test_draws_follow_the_distribution(backend, top_p):
    """Chi-square against the exact distribution: a million draws where a GPU makes them."""
    n = {"cuda": 1_000_000, "numpy": 20_000, "host": 1_500}[backend.name]
    rng = np.random.default_rng(5)
    row = rng.standard_normal(24)
    row[7] = -np.inf
    logits = np.broadcast_to(row.astype(np.float32), (1, n, 24)).copy()
    uniforms = rng.random((1, n), np.float32)
    result = backend.run(kd.target_token, logits, temperature=0.9, top_p=top_p, uniforms=uniforms)
    p = np.exp(row / 0.9) / np.exp(row / 0.9).sum()
    order = np.argsort(-p, kind="stable")
    p[order[np.cumsum(p[order]) - p[order] >= top_p]] = 0
    wanted = n * p / p.sum()
    counts = np.bincount(result.tokens[0], minlength=24)
    assert (counts[p == 0] == 0).all() and (p > 0).sum() > 5
    chi_square = (((counts - wanted) ** 2)[p > 0] / wanted[p > 0]).sum()
    freedom = (p > 0).sum() - 1
    assert chi_square < freedom + 5 * np.sqrt(2 * freedom)  # five standard deviations


@pytest.mark.parametrize(
    ("top_p", "kept"),
    [
        (1e-9, [2]),
        (0.39, [2]),
        (0.41, [1, 2]),  # ids 1 and 3 tie at 0.2: the lower id comes first
        (0.59, [1, 2]),
        (0.61, [1, 2, 3]),
        (0.81, [0, 1, 2, 3]),
        (0.95, [0, 1, 2, 3, 4]),
        (1.0, [0, 1, 2, 3, 4]),
    ],
)
def test_top_p_keeps_the_shortest_prefix(backend, top_p, kept):
    row = np.log([0.125, 0.2, 0.4, 0.2, 0.075])
    n = 40 if backend.name == "host" else 200
    tokens = draw(backend, row, [(i + 0.5) / n for i in range(n)], top_p=top_p)
    assert sorted(set(tokens)) == kept
    p = np.array([0.125, 0.2, 0.4, 0.2, 0.075])
    share = p[kept] / p[kept].sum()
    counts = np.array([tokens.count(i) for i in kept]) / n
    assert np.abs(counts - share).max() <= 1.01 / n


def test_top_p_that_is_reached_exactly_keeps_no_more(backend):
    grid = [(i + 0.5) / 100 for i in range(100)]
    assert set(draw(backend, [0.0] * 4, grid, top_p=0.5)) == {0, 1}


def test_top_p_counts_the_mass_at_the_temperature(backend):
    row = np.log([0.5, 0.3, 0.2])
    grid = [(i + 0.5) / 20 for i in range(20)]
    assert set(draw(backend, row, grid, top_p=0.6, temperature=1.0)) == {0, 1}
    assert set(draw(backend, row, grid, top_p=0.6, temperature=0.5)) == {0}
    assert set(draw(backend, row, grid, top_p=0.6, temperature=5.0)) == {0, 1}
    assert set(draw(backend, row, grid, top_p=0.7, temperature=5.0)) == {0, 1, 2}


def test_low_temperature_becomes_argmax(backend):
    row = np.random.default_rng(1).standard_normal(50)
    assert set(draw(backend, row, [0.0, 0.3, 0.99], temperature=1e-3)) == {int(np.argmax(row))}


@pytest.mark.parametrize("bad", [np.nan, np.inf, "all -inf"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_that_is_not_finite(backend, bad, temperature):
    logits = np.random.default_rng(2).standard_normal((2, 3, 40)).astype(np.float32)
    uniforms = np.full((2, 3), 0.5, np.float32)
    clean = backend.run(kd.target_token, logits, temperature=temperature, uniforms=uniforms)
    if bad == "all -inf":
        logits[1, 2] = -np.inf
    else:
        logits[1, 2, 39] = bad
    result = backend.run(kd.target_token, logits, temperature=temperature, uniforms=uniforms)
    assert result.status.tolist() == [0, NON_FINITE] and result.tokens[1, 2] == -1
    others = np.ones((2, 3), bool)
    others[1, 2] = False
    np.testing.assert_array_equal(result.tokens[others], clean.tokens[others])
    with pytest.raises(ValueError, match=r"target_token: status\[1\] = 1"):
        backend.run(kd.target_token, logits, temperature=temperature, uniforms=uniforms, check=True)


@pytest.mark.parametrize("pad", [50.0, np.nan, np.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_padding_of_the_vocabulary_takes_no_part(backend, pad, temperature):
    logits = np.random.default_rng(4).standard_normal((1, 5, 16)).astype(np.float32)
    uniforms = np.float32([[0.0, 0.2, 0.5, 0.9, 0.999]])
    options = {"temperature": temperature, "uniforms": uniforms}
    alone = backend.run(kd.target_token, logits[..., :10].copy(), **options)
    logits[..., 10:] = pad
    assert_same(backend.run(kd.target_token, logits, valid_vocab=10, **options), alone)
