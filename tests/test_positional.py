"""Trees from tables: Sequoia's program against brute force, greedy growth, Medusa's lists."""

from __future__ import annotations

import itertools
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tolerances import FLOAT64_SUM

from kdtree_cupy import positional, published

VECTORS = st.lists(st.floats(0, 0.3), min_size=1, max_size=4).map(np.array)


def brute_force(vector: np.ndarray, nodes: int, levels: int) -> float:
    """Return the best expected tokens over all shapes, by recursion on ordered child sizes."""

    @cache
    def best(n: int, level: int) -> float:
        if n == 1:
            return 1.0
        if level == 1:
            return -np.inf
        sizes = (
            split
            for r in range(1, vector.size + 1)
            for split in itertools.product(range(1, n), repeat=r)
            if sum(split) == n - 1
        )
        return max(
            (1.0 + sum(v * best(a, level - 1) for v, a in zip(vector, s, strict=False)) for s in sizes),
            default=-np.inf,
        )

    return best(nodes, levels)


@given(vector=VECTORS, nodes=st.integers(1, 7), levels=st.integers(1, 5))
def test_program_is_the_best_over_all_shapes(vector, nodes, levels):
    vector = np.maximum(vector, 1e-3)
    table = positional.depth_table(vector, nodes, levels)
    wanted = brute_force(vector, nodes, levels)
    assert table.tokens[levels, nodes] == pytest.approx(wanted, abs=FLOAT64_SUM)
    if np.isfinite(wanted):
        paths = positional.best_tree(table, nodes, levels)
        assert len(paths) == nodes - 1 and positional.closed(paths)
        assert positional.expected_tokens(paths, vector) == pytest.approx(wanted, abs=FLOAT64_SUM)
        assert max(map(len, paths), default=0) < levels


@given(vector=VECTORS, nodes=st.integers(0, 30))
def test_greedy_growth_is_the_program_for_sorted_vectors(vector, nodes):
    vector = np.sort(np.maximum(vector, 1e-3))[::-1]
    deep = np.tile(vector, (6, 1))
    grown = positional.grow_greedily(deep, nodes)
    wanted = positional.depth_table(vector, nodes + 1, 7).tokens[7, nodes + 1]
    if np.isfinite(wanted):
        assert positional.expected_tokens(grown, vector) == pytest.approx(wanted, abs=FLOAT64_SUM)


def test_the_program_looks_past_a_dip():
    vector = np.array([0.5, 0.0, 0.4])
    program = positional.depth_table(vector, 4, 2).tokens[2, 4]
    grown = positional.grow_greedily(np.tile(vector, (3, 1)), 3)
    assert program == pytest.approx(1.9)
    assert positional.depth_table(vector, 4, 4).tokens[4, 4] >= positional.expected_tokens(grown, vector)


@pytest.mark.parametrize("name", [*published.load("medusa")["choices"], "eagle_25"])
def test_published_lists_are_closed(name):
    """Parents first, and siblings in rank order: such a list is a tree a best-first rule could make."""
    paths = published.medusa_choices(name)
    assert len(set(paths)) == len(paths)
    assert positional.closed(paths)


@pytest.mark.parametrize("name", ["mc_sim_7b_63", "vicuna_7b_stage1", "vicuna_33b_stage2", "zephyr_stage2"])
def test_a_product_table_grows_the_list(name):
    """A monotone table exists whose greedy growth is the published list, node by node (linear program)."""
    optimize = pytest.importorskip("scipy.optimize", reason="scipy (extra lab) is not installed")
    paths = published.medusa_choices(name)
    depth, width = max(map(len, paths)), 1 + max(max(path) for path in paths)

    def row_of(path: tuple[int, ...]) -> np.ndarray:
        row = np.zeros((depth, width))
        for d, rank in enumerate(path):
            row[d, rank] += 1
        return row.ravel()

    rows, seen = [], set()
    for path in paths:  # at each step the added node beats everything that stood open
        seen.add(path)
        frontier = {(*p[:-1], p[-1] + 1) for p in seen} | {(*p, 0) for p in seen if len(p) < depth}
        open_ = [p for p in frontier if p not in seen and p[-1] < width]
        rows += [row_of(other) - row_of(path) for other in open_]
    rows += [
        row_of((0,) * d + (r + 1,)) - row_of((0,) * d + (r,)) for d in range(depth) for r in range(width - 1)
    ]
    margin = np.ones((len(rows), 1))
    margin[-depth * (width - 1) :] = 0
    solved = optimize.linprog(
        np.append(np.zeros(depth * width), -1.0),
        A_ub=np.hstack([np.array(rows), margin]),
        b_ub=np.zeros(len(rows)),
        bounds=[(-10, 0)] * (depth * width) + [(0, 1)],
    )
    assert solved.success and solved.x[-1] > 1e-3
    table = np.exp(solved.x[:-1].reshape(depth, width))
    assert positional.grow_greedily(table, 63) == paths


def test_expected_tokens_by_hand():
    accuracy = np.array([[0.6, 0.2], [0.5, 0.1]])
    assert positional.expected_tokens([], accuracy) == 1.0
    assert positional.expected_tokens([(0,), (1,), (0, 0)], accuracy) == pytest.approx(1 + 0.6 + 0.2 + 0.3)
    assert positional.expected_tokens([(0,), (5,), (0, 0, 0)], accuracy) == pytest.approx(1.6)


def test_hardware_moves_the_best_size():
    vector = np.array([0.7, 0.1, 0.05])
    table = positional.depth_table(vector, 32, 12)
    free = positional.hardware_optimum(table, dict.fromkeys((1, 4, 8, 16, 32), 10.0), 0.01)
    dear = positional.hardware_optimum(table, {n: 10.0 * n for n in (1, 4, 8, 16, 32)}, 0.01)
    assert free.nodes == 32 and dear.nodes == 1
    shallow = positional.hardware_optimum(table, dict.fromkeys((1, 4, 8, 16, 32), 10.0), 0.01, max_levels=3)
    assert shallow.levels <= 3 and shallow.tokens < free.tokens
