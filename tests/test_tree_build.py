"""Tree build: the best B paths of the trie, parents first, ties by rank tuple."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import Backend, assert_same, run_into_poison
from hypothesis import example, given
from hypothesis import strategies as st
from oracles import all_paths, closure, float32_tree, level_by_level
from strategies import ids_for, random_table, tables

import kdtree_cupy as kd
from kdtree_cupy.masks import unpack_mask
from kdtree_cupy.refs import tree_build as reference

NON_FINITE, UNSORTED = 1, 2
BACKENDS = ("numpy", "host", "cuda")


def build(backend: Backend, logprobs: np.ndarray, budget, **options) -> kd.TreeBuild:
    """Build from log-probs [D, K] (one request) or [b, D, K] with ids that name depth and rank."""
    logprobs = logprobs[None] if logprobs.ndim == 2 else logprobs
    roots = np.arange(1, len(logprobs) + 1, dtype=np.int32)
    return backend.run(kd.tree_build, ids_for(logprobs), logprobs, roots, budget, **options)


@given(table=tables(), budget=st.integers(0, 40))
@example(table=np.zeros((3, 3), np.float32), budget=20)
@example(table=np.full((2, 2), -np.inf, np.float32), budget=4)
def test_tree_is_the_start_of_the_sorted_trie(backend, table, budget):
    tree = build(backend, table, budget).tree
    best = all_paths(table)[:budget]
    assert tree.paths() == [(), *(ranks for _, ranks in best)]
    np.testing.assert_array_equal(tree.scores[0, 1 : len(best) + 1], [-cost for cost, _ in best])
    tree.check()


@given(table=tables(), budget=st.integers(1, 30))
def test_invariants(backend, table, budget):
    tree, mask, positions = build(backend, table, budget, lengths=np.int32([17]), num_nodes=33)
    n = int(tree.counts[0])
    paths = tree.paths()
    assert (tree.parents[0, 1:n] < np.arange(1, n)).all()
    assert (np.diff(tree.scores[0, :n]) <= 0).all()
    assert all(path[:-1] in paths for path in paths[1:]), "not prefix closed"
    assert all((*path[:-1], r) in paths for path in paths[1:] for r in range(path[-1])), "an elder is missing"
    assert [int(t) for t in tree.tokens[0, 1:n]] == [1000 * (len(p) - 1) + p[-1] for p in paths[1:]]
    np.testing.assert_array_equal(unpack_mask(mask)[0], closure(tree.parents[0], n))
    np.testing.assert_array_equal(positions[0], 17 + tree.depths[0])


@given(table=tables(), small=st.integers(0, 20), more=st.integers(0, 20))
def test_trees_are_nested_in_budget(backend, table, small, more):
    few = build(backend, table, small, num_nodes=41).tree
    many = build(backend, table, small + more, num_nodes=41).tree
    n = int(few.counts[0])
    for name in ("tokens", "parents", "depths", "ranks", "scores"):
        np.testing.assert_array_equal(getattr(few, name)[0, :n], getattr(many, name)[0, :n])


@given(table=tables(), budget=st.integers(0, 12), depth=st.integers(0, 5), width=st.integers(0, 5))
def test_caps_are_the_same_as_a_smaller_table(backend, table, budget, depth, width):
    capped = build(backend, table, budget, max_depth=depth, max_rank=width)
    small = np.ascontiguousarray(table[:depth, :width])
    assert_same(capped, build(backend, small, budget))


@pytest.mark.parametrize("step", [0.0, 0.25], ids=["distinct", "ties"])
@pytest.mark.parametrize("num_nodes", [1, 2, 31, 32, 33, 64, 65, 127, 128, 129, 1025])
@pytest.mark.parametrize(("depth", "width"), [(15, 64), (1, 5), (7, 1), (32, 3)])
def test_shapes_that_hurt(backend, num_nodes, depth, width, step):
    table = random_table(seed=num_nodes, batch=2, depth=depth, width=width, step=step)
    built = build(backend, table, num_nodes - 1)
    assert built.mask.shape == (2, num_nodes, -(-num_nodes // 32))
    for b in range(2):
        assert built.tree.paths(b)[1:] == level_by_level(table[b], num_nodes - 1)
    assert_same(built.tree.check(), built.tree)


def test_full_limits(backend):
    table = random_table(seed=5, batch=1, depth=32, width=1024)
    tree = build(backend, table, 1024).tree.check()
    assert tree.paths()[1:] == level_by_level(table[0, :, :256], 1024)
    assert int(tree.ranks.max()) < 256  # so that the shorter table was no restriction


@pytest.mark.parametrize(
    ("vocab", "depth", "budget", "nodes"), [(2, 2, 50, 6), (1, 3, 5, 3), (3, 2, 100, 12), (3, 2, 5, 5)]
)
def test_underfull_trees_are_padded(backend, vocab, depth, budget, nodes):
    table = random_table(0, 1, depth, vocab)
    built = run_into_poison(backend, kd.tree_build, ids_for(table), table, np.int32([9]), budget)
    tree = built.tree.check()
    assert tree.counts.tolist() == [nodes + 1]
    padding = slice(nodes + 1, None)
    own = np.eye(budget + 1, dtype=bool)[padding]
    np.testing.assert_array_equal(unpack_mask(built.mask)[0, padding], own)
    assert (tree.tokens[0, padding] == 0).all() and (tree.scores[0, padding] == -np.inf).all()
    assert (built.positions[0, padding] == 0).all()


def test_float32_scores_would_give_another_tree(backend):
    """Four identical rows, logits of scale 0.3, V = 4, B = 40: a+a+b and a+b+a tie in float64 only."""
    differ = 0
    for seed in range(20):
        logits = 0.3 * np.random.default_rng(seed).standard_normal(4)
        row = np.sort((logits - np.log(np.exp(logits).sum())).astype(np.float32))[::-1]
        table = np.stack([row] * 4)
        tree = build(backend, table, 40).tree
        assert tree.paths()[1:] == level_by_level(table, 40)
        assert tree.scores.dtype == np.float64
        differ += tree.paths()[1:] != float32_tree(table, 40)
    assert differ >= 5, "the fixture no longer tells float32 from float64"


@pytest.mark.parametrize("seed", range(4))
def test_scores_are_added_root_to_node(backend, seed):
    table = random_table(seed, batch=1, depth=9, width=20)
    tree = build(backend, table, 100).tree
    for node, ranks in enumerate(tree.paths()):
        score = 0.0
        for d, rank in enumerate(ranks):
            score += float(table[0, d, rank])
        assert tree.scores[0, node] == score


def test_requests_do_not_influence_each_other(backend):
    table = random_table(seed=3, batch=6, depth=5, width=6, step=0.5)
    table[1, 2, 1] = np.nan
    table[4, 0] = -np.inf
    options = {
        "budget": np.int32([20, 7, 0, -1, 33, 12]),
        "max_depth": np.int32([5, 5, 5, 5, 5, 2]),
        "max_rank": np.int32([6, 6, 6, 6, 6, 1]),
        "lengths": np.int32([0, 5, 9, 4, 100000, 1]),
    }
    together = build(backend, table, num_nodes=34, **options)
    for b in range(6):
        own = {name: value[b : b + 1] for name, value in options.items()}
        alone = build(backend, table[b : b + 1], num_nodes=34, **own)
        roots = alone.tree.tokens.copy()
        roots[0, 0] = (b + 1) * (together.tree.counts[b] > 0)
        np.testing.assert_array_equal(together.tree.tokens[b], roots[0])
        for name in ("parents", "depths", "ranks", "scores", "counts", "status"):
            np.testing.assert_array_equal(getattr(together.tree, name)[b], getattr(alone.tree, name)[0])
        np.testing.assert_array_equal(together.mask[b], alone.mask[0])
        np.testing.assert_array_equal(together.positions[b], alone.positions[0])


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("row", [0, 1, 3])
def test_a_row_that_is_not_finite_ends_the_tree_before_its_depth(backend, row, bad):
    table = random_table(seed=0, batch=1, depth=4, width=4)
    clean = build(backend, np.ascontiguousarray(table[:, :row]), 12)
    table[0, row, 2] = bad
    built = build(backend, table, 12)
    assert built.tree.status.tolist() == [NON_FINITE]
    assert built.tree.paths() == clean.tree.paths()
    with pytest.raises(ValueError, match=r"tree_build: status\[0\] = 1: NaN or \+inf"):
        build(backend, table, 12, check=True)


@pytest.mark.parametrize(
    ("row", "status"),
    [([-1, -2, -1.5], UNSORTED), ([1e-6, -2, -3], UNSORTED), ([0.0, -0.0, -np.inf], 0), ([-1, -1, -1], 0)],
)
def test_rows_that_ascend_or_exceed_zero_are_reported(backend, row, status):
    table = np.float32([[-0.5, -1.0, -3.0], row])
    built = build(backend, table, 6)
    assert built.tree.status.tolist() == [status]
    assert built.tree.paths() == [(), *reference.best_paths(table, 6)]


def test_only_what_is_in_use_is_looked_at(backend):
    table = np.full((3, 4, 4), np.nan, np.float32)
    table[2, :2, :2] = np.log(np.float32([0.6, 0.3]))
    caps = {"max_depth": np.int32([4, 4, 2]), "max_rank": 2}
    built = build(backend, table, np.int32([0, -1, 6]), num_nodes=7, **caps)
    assert built.tree.status.tolist() == [0, 0, 0]
    assert built.tree.counts.tolist() == [1, 0, 7]


def test_faults_past_the_end_of_the_tree_do_not_add_up(backend):
    table = np.float32([[-1, -2], [np.nan, 0], [5, 6]])
    assert build(backend, table, 4).tree.status.tolist() == [NON_FINITE]


def test_minus_infinity_is_never_a_node(backend):
    table = np.float32([[-0.5, -1.0, -np.inf], [-np.inf] * 3, [-0.1, -0.2, -0.3]])
    tree = build(backend, table, 10).tree.check()
    assert tree.paths() == [(), (0,), (1,)]
    assert tree.status.tolist() == [0]


def test_idle_slots_and_roots(backend):
    table = random_table(seed=1, batch=3, depth=2, width=2)
    built = run_into_poison(
        backend,
        kd.tree_build,
        ids_for(table),
        table,
        np.int32([5, 6, 7]),
        np.int32([-1, 0, 2]),
        num_nodes=3,
    )
    tree = built.tree.check()
    assert tree.counts.tolist() == [0, 1, 3]
    assert tree.tokens[:, 0].tolist() == [0, 6, 7]
    np.testing.assert_array_equal(tree.scores[:, 0], [-np.inf, 0, 0])
    np.testing.assert_array_equal(built.mask[0, :, 0], [1, 2, 4])


@pytest.mark.parametrize("budget", [-1, 0])
def test_a_batch_of_nothing_has_one_slot(backend, budget):
    built = build(backend, random_table(0, 2, 3, 2), budget)
    assert built.tree.num_nodes == 1 and built.mask.shape == (2, 1, 1)


@pytest.mark.parametrize(("depth", "width"), [(0, 4), (4, 0), (0, 0)])
def test_an_empty_table_gives_the_root(backend, depth, width):
    tree = build(backend, np.zeros((1, depth, width), np.float32), 3).tree.check()
    assert tree.counts.tolist() == [1]


def test_token_zero_and_repeated_ids_are_ordinary(backend):
    table = random_table(seed=2, batch=1, depth=3, width=3)
    ids = np.zeros(table.shape, np.int32)
    tree = backend.run(kd.tree_build, ids, table, [0], 9).tree.check()
    assert tree.counts.tolist() == [10] and (tree.tokens == 0).all()
    assert tree.paths() == build(backend, table, 9).tree.paths()


def test_one_rank_is_a_chain(backend):
    tree = build(backend, random_table(0, 1, 9, 1), 6).tree
    assert tree.parents[0].tolist() == [-1, 0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("shape", [(1, 33, 4), (1, 2, 1025)])
def test_sizes_past_the_limits(backend, shape):
    with pytest.raises(ValueError, match=r"ids: [DK]: got \d+, wanted 0\.\."):
        build(backend, np.zeros(shape, np.float32), 3)


def test_reference_cuts_a_budget_that_does_not_fit(backend):
    """A budget in a device array cannot be checked beforehand: cut, and bit 4."""
    table = random_table(0, 1, 3, 3)
    ref = reference.tree_build(ids_for(table), table, np.int32([1]), np.int32([9]), num_nodes=5)
    assert ref.tree.counts.tolist() == [5] and ref.tree.status.tolist() == [16]
    np.testing.assert_array_equal(ref.tree.parents, build(backend, table, 4).tree.parents)
