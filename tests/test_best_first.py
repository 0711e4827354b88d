"""The fast best-first search: the heap's tree bit for bit, whatever the rows, the guess and the blocks."""

from __future__ import annotations

import numpy as np
import pytest

from kdtree_cupy import best_first as module
from kdtree_cupy.best_first import best_first
from kdtree_cupy.refs.tree_build import tree_build

KINDS = ("peaked", "flat", "steps", "equal", "tails", "lattice", "huge")
SHAPES = ((1, 1), (1, 7), (6, 1), (2, 2), (3, 19), (9, 5), (15, 32))  # (D, K)


def table(kind, rng, batch, depth, width):
    """Return float32 [b, D, K] descending log-probs <= 0."""
    logits = rng.standard_normal((batch, depth, width + 3)) * {"peaked": 6.0, "flat": 0.1}.get(kind, 1.0)
    if kind == "steps":  # bfloat16-like logits: many sums tie exactly
        logits = np.round(logits * 2) / 2
    if kind == "equal":
        logits[:] = 0.0
    logits = -np.sort(-logits, axis=2)
    rows = np.minimum(logits - np.log(np.exp(logits).sum(2, keepdims=True)), 0)[..., :width]
    if kind == "tails":
        rows[np.arange(width) >= rng.integers(0, width + 1, (batch, depth, 1))] = -np.inf
    if kind == "lattice":
        rows = rng.choice([0.0, -0.0, -1.0, -2.0, -np.inf], rows.shape)
    if kind == "huge":
        rows = -rng.choice([0.0, 1e-30, 1.0, 500.0, 3e38], rows.shape)
    return -np.sort(-rows.astype(np.float32), axis=2)


def assert_same_tree(got, logprobs, budgets, num_nodes):
    ids = np.zeros(logprobs.shape, np.int32)
    want = tree_build(ids, logprobs, np.zeros(len(logprobs), np.int32), budgets, num_nodes=num_nodes).tree
    for name in got._fields:
        one, other = getattr(got, name), getattr(want, name)
        assert one.dtype == other.dtype and one.tobytes() == other.tobytes(), name


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_equals_the_heap_bit_for_bit(seed, kind, shape):
    """588 trees in all, budgets from 0 to more than there are nodes."""
    rng = np.random.default_rng([seed, KINDS.index(kind), *shape])
    logprobs = table(kind, rng, 4, *shape)
    budgets = rng.integers(0, (5, 40, 300)[seed], 4).astype(np.int32)
    num_nodes = int(budgets.max()) + 1 + seed
    assert_same_tree(best_first(logprobs, budgets, num_nodes), logprobs, budgets, num_nodes)


@pytest.mark.parametrize("kind", ["peaked", "flat", "steps", "equal"])
@pytest.mark.parametrize("shape", [(32, 1024), (32, 1), (1, 1024), (2, 33)], ids=str)
def test_full_limits(kind, shape):
    """The largest budget; (2, 33) has 1,122 nodes, (1, 1024) and (32, 1) no more than the budget."""
    logprobs = table(kind, np.random.default_rng(shape), 1, *shape)
    budgets = np.array([1024], np.int32)
    assert_same_tree(best_first(logprobs, budgets, 1025), logprobs, budgets, 1025)


@pytest.mark.parametrize("guess", [0.0, -1e-9, -3.0, -40.0, -1e300, module._LOWEST])
@pytest.mark.parametrize("kind", ["flat", "tails", "lattice"])
def test_a_wrong_guess_changes_nothing(monkeypatch, kind, guess):
    """Too high is lowered until enough nodes reach it; too low costs time."""
    logprobs = table(kind, np.random.default_rng(5), 6, 5, 9)
    budgets = np.array([1, 3, 64, 200, 0, 1000], np.int32)
    monkeypatch.setattr(module, "_guess", lambda rows, wanted: np.full(len(rows), guess))
    assert_same_tree(best_first(logprobs, budgets, 1025), logprobs, budgets, 1025)


@pytest.mark.parametrize("nodes", [1, 200, 1 << 20])
def test_blocks_do_not_influence_each_other(monkeypatch, nodes):
    logprobs = table("steps", np.random.default_rng(6), 9, 4, 6)
    budgets = np.array([5, 0, 80, 1, 0, 33, 80, 2, 7], np.int32)
    monkeypatch.setattr(module, "_BLOCK_NODES", nodes)
    assert_same_tree(best_first(logprobs, budgets, 81), logprobs, budgets, 81)


def test_nodes_come_in_order_of_score_and_parents_first():
    logprobs = table("steps", np.random.default_rng(7), 30, 8, 12)
    tree = best_first(logprobs, np.full(30, 500, np.int32), 501)
    assert (np.diff(tree.scores, axis=1) <= 0).all()
    assert (tree.parents[:, 1:] < np.arange(1, 501)).all() and (tree.parents[:, 1:] >= 0).all()
    above = np.take_along_axis(tree.depths, np.maximum(tree.parents, 0), axis=1)
    np.testing.assert_array_equal(tree.depths[:, 1:], above[:, 1:] + 1)  # prefix-closed


def test_trees_are_nested():
    logprobs = table("flat", np.random.default_rng(8), 5, 6, 10)
    large = best_first(logprobs, np.full(5, 400, np.int32), 401)
    for budget in (1, 2, 31, 399):
        small = best_first(logprobs, np.full(5, budget, np.int32), budget + 1)
        for name in ("parents", "depths", "ranks", "scores"):
            np.testing.assert_array_equal(getattr(small, name), getattr(large, name)[:, : budget + 1])


def test_no_position_and_no_budget():
    empty = best_first(np.zeros((0, 3, 2), np.float32), np.zeros(0, np.int32), 4)
    assert empty.parents.shape == (0, 4)
    roots = best_first(np.zeros((2, 3, 2), np.float32), np.zeros(2, np.int32), 1)
    assert roots.counts.tolist() == [1, 1] and roots.scores.tolist() == [[0.0], [0.0]]
