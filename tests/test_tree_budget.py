"""The cut by cost: equal to plain Python, equal on every backend, and padding as the contract has it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from conftest import assert_same

import kdtree_cupy as kd
from kdtree_cupy import masks
from kdtree_cupy.cost import load_cost
from kdtree_cupy.policies import caddtree
from kdtree_cupy.policies.caddtree import round_costs
from kdtree_cupy.refs.tree_budget import best_count, exact_exp
from kdtree_cupy.tree_budget import tree_budget

BACKENDS = ("numpy", "host", "cuda")


def rows(seed, batch=3, depth=5, width=8, scale=2.0):
    rng = np.random.default_rng(seed)
    table = -np.sort(rng.exponential(scale, (batch, depth, width)), axis=-1).astype(np.float32)
    return rng.integers(0, 50, table.shape, dtype=np.int32), table


def cut(backend, ids, table, budgets, slots, cost):
    roots, lengths = np.arange(len(ids), dtype=np.int32), np.full(len(ids), 7, np.int32)
    build = lambda *a, **k: kd.tree_build(*a, **k)  # noqa: E731
    whole = backend.run(build, ids, table, roots, np.int32(budgets), num_nodes=slots, lengths=lengths)
    built = backend.to(whole)
    got = tree_budget(built, backend.to(cost), library=backend.library)
    assert got is built
    return whole, backend.back(got)


@pytest.mark.parametrize("slots", [1, 2, 31, 32, 33, 65, 300])
@pytest.mark.parametrize("per_request", [False, True])
def test_equals_a_plain_scan(backend, slots, per_request):
    ids, table = rows(slots)
    rng = np.random.default_rng(slots)
    cost = 5.0 + np.cumsum(rng.choice([0.0, 0.1, 1.0], (3, slots)), axis=1)  # steps: ties and flat stretches
    cost = cost if per_request else np.ascontiguousarray(cost[0])
    whole, got = cut(backend, ids, table, [slots - 1, -1, slots // 2], slots, cost)
    for b in range(3):
        count = int(whole.tree.counts[b])
        price = cost[b] if per_request else cost
        rates, expected = [], 1.0
        for n in range(count):
            expected += math.exp(whole.tree.scores[b, n]) if n else 0.0
            rates.append(expected / price[n])
        keep = int(got.tree.counts[b])
        assert keep == 0 if count == 0 else rates[keep - 1] >= max(rates) * (1 - 1e-14)
        for name in ("tokens", "parents", "depths", "ranks", "scores"):
            one, other = getattr(got.tree, name)[b], getattr(whole.tree, name)[b]
            np.testing.assert_array_equal(one[:keep], other[:keep])
    np.testing.assert_array_equal(got.mask, masks.packed_mask(got.tree))
    np.testing.assert_array_equal(got.positions, masks.positions(got.tree, [7, 7, 7]))


def test_every_backend_gives_the_same_bits(backend):
    from conftest import Backend, library_of

    plain = Backend("numpy", library_of("numpy"))
    for seed in range(12):
        ids, table = rows(seed, 4, 9, 20, scale=0.7 + seed)
        cost = round_costs("caddtree-a800-8b", 199, 4000)
        got = cut(backend, ids, table, [199, 64, 0, -1], 200, cost)[1]
        assert_same(got, cut(plain, ids, table, [199, 64, 0, -1], 200, cost)[1])


def test_ties_take_fewer_nodes_and_bad_costs_are_skipped(backend):
    ids = np.zeros((1, 1, 3), np.int32)
    table = np.log(np.float32([[[0.5, 0.25, 0.25]]]))
    exact = np.array([1.0, 1.5, 1.75, 2.0])  # the rate is 1 everywhere
    assert cut(backend, ids, table, [3], 4, exact)[1].tree.counts.tolist() == [1]
    for bad in (np.nan, np.inf, 0.0, -1.0):
        cost = np.array([bad, 1.5, bad, bad])
        assert cut(backend, ids, table, [3], 4, cost)[1].tree.counts.tolist() == [2]
        assert cut(backend, ids, table, [3], 4, np.full(4, bad))[1].tree.counts.tolist() == [4]


def test_free_nodes_stay_and_dear_nodes_go(backend):
    ids, table = rows(1)
    assert cut(backend, ids, table, [9] * 3, 10, np.ones(10))[1].tree.counts.tolist() == [10] * 3
    dear = 1.0 + 10.0 * np.arange(10)
    assert cut(backend, ids, table, [9] * 3, 10, dear)[1].tree.counts.tolist() == [1] * 3


def test_convex_costs_stop_where_caddtree_stops(backend):
    """With one peak the scan and the published stop agree."""
    table = load_cost("caddtree-a800-8b")
    convex = np.maximum.accumulate(np.diff(round_costs(table, 64, 8000), prepend=0))[1:]
    cost = 2.0 + np.concatenate([[0.0], np.cumsum(np.sort(convex))])
    ids, logprobs = rows(5, scale=1.0)
    got = cut(backend, ids, logprobs, [64] * 3, 65, cost)[1]
    tree = caddtree(ids, logprobs, [0, 1, 2], 64)  # the tree before the stop holds the scores needed
    assert tree.num_nodes == 65
    for b in range(3):
        whole = kd.tree_build(ids, logprobs, np.arange(3, dtype=np.int32), 64).tree.scores[b]
        theta = np.cumsum(np.concatenate([[1.0], np.exp(whole[1:])])) / cost
        falls = np.flatnonzero(theta[1:] <= theta[:-1])
        assert got.tree.counts[b] == 1 + (falls[0] if falls.size else 64)


def test_the_exponential_is_right_to_the_last_bits():
    x = -np.concatenate(
        [[0.0, 1e-300, 0.5, 1.0, 699.9, 701.0, np.inf], np.random.default_rng(0).random(999) * 40]
    )
    wanted = np.array([math.exp(v) if v > -700 else 0.0 for v in x])
    np.testing.assert_allclose(exact_exp(x), wanted, rtol=5e-16, atol=0)
    assert exact_exp(np.array([np.nan, 3.0])).tolist() == [0.0, 1.0]
    assert best_count(np.array([0.0, 0.0]), 2, np.array([1.0, 3.0])) == 1


def test_a_table_is_read_at_each_prefix(backend):
    """Rows of a table by context, linear between and flat outside, as cost tables are read."""
    contexts = np.array([100.0, 1000.0, 4000.0])
    table = np.stack([np.ones(40), 1.0 + 0.02 * np.arange(40), 1.0 + 9.0 * np.arange(40)])
    ids, rows_ = rows(2, 6)
    lengths = np.int32([0, 100, 550, 1000, 3999, 10**6])
    roots, budgets = np.zeros(6, np.int32), np.full(6, 39, np.int32)
    whole = backend.run(kd.tree_build, ids, rows_, roots, budgets, num_nodes=40, lengths=lengths)
    built = backend.to(whole)
    tree_budget(built, backend.to(table), backend.to(contexts), library=backend.library)
    counts = backend.back(built).tree.counts
    for b, prefix in enumerate(lengths):
        price = np.array([np.interp(prefix, contexts, column) for column in table.T])
        assert counts[b] == best_count(whole.tree.scores[b], 40, price)
    assert counts[0] == counts[1] == 40 and counts[3] > counts[4] >= counts[5] == 1


def test_arguments_are_checked(backend):
    ids, table = rows(0)
    built = backend.to(backend.run(kd.tree_build, ids, table, np.zeros(3, np.int32), 4))
    for cost, error, text in (
        (np.ones(5, np.float32), TypeError, "cost: got dtype float32"),
        (np.ones(4), ValueError, r"cost: got shape \(4,\)"),
        (np.ones((2, 5)), ValueError, r"cost: got shape \(2, 5\)"),
    ):
        with pytest.raises(error, match=text):
            tree_budget(built, backend.to(cost), library=backend.library)
