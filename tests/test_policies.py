"""The basic policies: ddtree is tree_build, the chain its first rank, static the best shape of its table."""

from __future__ import annotations

import itertools
from dataclasses import fields

import numpy as np
import pytest
from conftest import assert_same
from policy_cases import options
from strategies import ids_for, random_table

import kdtree_cupy as kd
from kdtree_cupy.policies import chain, ddtree, static
from kdtree_cupy.refs.tree_build import tree_build

BASIC = {"chain": chain, "ddtree": ddtree, "static": static}
BAD = {
    "nan": np.nan, "plus infinity": np.inf, "positive": 0.25, "minus infinity": -np.inf, "low": -9.0,
}  # fmt: skip


def roots(batch):
    return np.arange(100, 100 + batch, dtype=np.int32)


@pytest.mark.parametrize("bad", [None, *BAD])
@pytest.mark.parametrize("seed", range(12))
def test_ddtree_equals_the_reference(seed, bad):
    """Status words, idle slots, per-request budgets and limits included."""
    rng = np.random.default_rng([seed, 0 if bad is None else 1 + list(BAD).index(bad)])
    depth, width = int(rng.integers(1, 8)), int(rng.integers(1, 14))
    logprobs = random_table(seed, 6, depth, width, step=0.5 * (seed % 2))
    if bad is not None:  # in some rows of some requests
        logprobs[rng.random(logprobs.shape) < 0.05] = BAD[bad]
        logprobs[0, rng.integers(depth), rng.integers(width)] = BAD[bad]
    limits = {}
    if seed % 3:
        limits["max_depth"] = rng.integers(0, depth + 3, 6).astype(np.int32)
    if seed % 4 > 1:
        limits["max_rank"] = int(rng.integers(1, width + 2))
    budget = rng.integers(-1, 60, 6).astype(np.int32)
    arguments = (ids_for(logprobs), logprobs, roots(6), budget)
    slots = int(budget.max()) + 1 + seed % 2
    want = tree_build(*arguments, num_nodes=slots, **limits).tree
    assert_same(ddtree(*arguments, num_nodes=slots, **limits), want, "ddtree")
    if bad in ("nan", "plus infinity", "positive") and not limits and budget[0] > 0:
        assert want.status[0]


def test_ddtree_equals_the_public_function():
    logprobs = random_table(5, 7, 6, 9, step=0.25)
    arguments = (ids_for(logprobs), logprobs, roots(7), np.array([40, 0, 3, -1, 17, 1, 40], np.int32))
    assert_same(ddtree(*arguments), kd.tree_build(*arguments).tree, "ddtree")


@pytest.mark.parametrize("seed", range(6))
def test_chain_is_the_tree_of_one_rank(seed):
    """At B = D both are the drafter's first choices, and so is the tree of a drafter that is sure."""
    logprobs = random_table(seed, 5, 7, 4)
    logprobs[0, 3] = -np.inf
    logprobs[1, 0, 0] = -0.0
    arguments = (ids_for(logprobs), logprobs, roots(5))
    for budget in (0, 1, 7, np.array([3, -1, 20, 7, 1], np.int32)):
        want = tree_build(*arguments, budget, max_rank=1).tree
        got = chain(*arguments, budget)
        assert_same(got, want, "chain")
        assert got.scores.tobytes() == want.scores.tobytes()  # 0.0 is not -0.0
    limited = tree_build(*arguments, 9, max_rank=1, max_depth=2).tree
    assert_same(chain(*arguments, 9, max_depth=2), limited, "chain")
    sure = np.full_like(logprobs, -np.inf)
    sure[..., 0] = 0.0  # one-hot rows
    one_hot = ddtree(ids_for(sure), sure, roots(5), 7)
    assert_same(one_hot, chain(ids_for(sure), sure, roots(5), 7), "one-hot")
    assert one_hot.counts.tolist() == [8] * 5 and one_hot.parents[0].tolist() == list(range(-1, 7))


def test_chain_stops_at_a_broken_row_and_reports_it():
    logprobs = random_table(1, 3, 5, 4)
    logprobs[0, 2, 3] = np.nan
    logprobs[1, 4, 1] = 0.5
    tree = chain(ids_for(logprobs), logprobs, roots(3), 9)
    assert tree.counts.tolist() == [3, 6, 6] and tree.status.tolist() == [1, 2, 0]


def brute_static(table, offered, budget):
    """Return the scores of the B best nodes of a positional table, best first, and every node's score."""
    with np.errstate(divide="ignore"):
        logs = np.log(np.where(offered, table, 0.0)).astype(np.float32).astype(np.float64)
    depth, width = table.shape
    scores = {}
    for d in range(1, depth + 1):
        for ranks in itertools.product(range(width), repeat=d):
            score = sum((logs[level, rank] for level, rank in enumerate(ranks)), 0.0)
            if score > -np.inf:
                scores[ranks] = score
    return sorted(scores.values(), reverse=True)[:budget], scores


@pytest.mark.parametrize("seed", range(40))
def test_static_is_the_best_shape_even_if_acceptance_rises_with_rank(seed):
    rng = np.random.default_rng(seed)
    depth, width, budget = int(rng.integers(1, 4)), int(rng.integers(1, 5)), int(rng.integers(0, 40))
    tables = rng.random((3, depth, width)) ** 3
    tables[0] = np.round(tables[0] * 4) / 4  # ties, zeros and ones
    logprobs = random_table(seed, 5, depth, width)
    logprobs[1, 0, -1] = -np.inf  # not on offer
    which = np.array([0, 0, 1, 2, 2])
    tree = static(ids_for(logprobs), logprobs, roots(5), budget, table=tables, table_index=which).check()
    for b in range(5):
        best, scores = brute_static(tables[which[b]], np.isfinite(logprobs[b]), budget)
        assert tree.scores[b, 1 : tree.counts[b]].tolist() == best
        for node, ranks in enumerate(tree.paths(b)[1:], 1):
            assert tree.scores[b, node] == scores[ranks]
            assert tree.tokens[b, node] == ids_for(logprobs)[b, len(ranks) - 1, ranks[-1]]
    if (np.diff(tables[1], axis=-1) > 0).any() and budget > 8 and width > 1:
        assert (tree.ranks > 0).any()


def test_static_on_the_drafters_own_table_is_ddtree():
    """The neutral setting: one table that says what the rows say."""
    table = -np.sort(-np.random.default_rng(2).random((4, 6)), axis=1)
    logprobs = np.log(table).astype(np.float32)[None]
    arguments = (ids_for(logprobs), logprobs, roots(1), 90)
    assert_same(static(*arguments, table=table), ddtree(*arguments), "static")


def test_static_uses_what_the_rows_offer():
    logprobs = random_table(3, 4, 5, 6)
    logprobs[0, 2, 4] = np.nan  # no tree below depth 2
    logprobs[1, 0, 0] = 0.5  # reported, but the shape does not depend on the rows
    arguments = (ids_for(logprobs), logprobs, roots(4))
    budget = np.array([200, 20, -1, 0], np.int32)
    tree = static(*arguments, budget, table=np.full((5, 6), 0.9))
    assert tree.status.tolist() == [1, 2, 0, 0] and tree.counts.tolist() == [43, 21, 0, 1]
    assert tree.depths[0].max() == 2
    tree = static(*arguments, 50, table=np.full((5, 6), 0.9), max_depth=3, max_rank=2)
    assert tree.counts[3] == 1 + 2 + 4 + 8 and tree.ranks.max() == 1 and tree.depths.max() == 3


@pytest.mark.parametrize("policy", [chain, ddtree])
def test_ids_of_a_trace_need_no_copy(policy):
    logprobs = random_table(0, 3, 4, 5)
    ids = ids_for(logprobs)
    assert_same(policy(ids.astype(np.uint16), logprobs, roots(3), 9), policy(ids, logprobs, roots(3), 9))


@pytest.mark.parametrize("name", BASIC)
def test_an_empty_batch(name):
    more = options(name, 3, 2)
    logprobs = np.zeros((0, 3, 2), np.float32)
    tree = BASIC[name](ids_for(logprobs), logprobs, roots(0), 4, **more)
    assert tree.tokens.shape == (0, 1)
    assert BASIC[name](ids_for(logprobs), logprobs, roots(0), 4, num_nodes=6, **more).tokens.shape == (
        0,
        6,
    )


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"ids": np.zeros((2, 3, 4), np.float32)}, TypeError, "ids: got dtype float32, wanted integers"),
        ({"logprobs": np.zeros((2, 3, 4))}, TypeError, "logprobs: got dtype float64, wanted float32"),
        ({"ids": np.zeros((2, 3, 5), np.int32)}, ValueError, r"ids \(2, 3, 5\) and logprobs \(2, 3, 4\)"),
        (
            {"root_tokens": np.zeros(3, np.int32)},
            ValueError,
            r"root_tokens: got shape \(3,\), wanted .*\[b=2\]",
        ),
        ({"budget": 1025}, ValueError, r"budget: got 1025, wanted -1..1024"),
        ({"budget": np.array([3, -2])}, ValueError, r"budget\[1\]: got -2, wanted -1..1024"),
        ({"budget": 2.0}, TypeError, "budget: got float, wanted an int"),
        ({"num_nodes": 4}, ValueError, r"num_nodes: got 4, wanted 5..1025"),
        ({"num_nodes": 5.5}, TypeError, "num_nodes: got float, wanted an int"),
        ({"max_depth": -1}, ValueError, "max_depth: got -1"),
        ({"max_rank": np.zeros((2, 1), int)}, ValueError, r"max_rank: got shape \(2, 1\)"),
    ],
)
@pytest.mark.parametrize("name", BASIC)
def test_bad_arguments_are_named(name, change, error, message):
    good = {
        "ids": np.zeros((2, 3, 4), np.int32), "logprobs": np.zeros((2, 3, 4), np.float32),
        "root_tokens": [1, 2], "budget": 4,
    }  # fmt: skip
    more = options(name, 3, 4)
    assert BASIC[name](**good, **more).batch == 2
    with pytest.raises(error, match=message):
        BASIC[name](**(good | change), **more)


@pytest.mark.parametrize("shape", [(2, 0, 4), (2, 3, 0), (2, 33, 1), (2, 1, 1025)], ids=str)
def test_sizes_out_of_range(shape):
    with pytest.raises(ValueError, match=r"logprobs: depth \d+, width \d+; wanted 1..32 and 1..1024"):
        ddtree(np.zeros(shape, np.int32), np.zeros(shape, np.float32), [1, 2], 4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"table": np.ones((4, 3))}, r"table: got shape \(1, 4, 3\), wanted \[tables, 3, 4\]"),
        ({"table": np.full((3, 4), 1.5)}, r"table: got values outside \[0, 1\]"),
        ({"table": np.full((3, 4), np.nan)}, r"table: got values outside \[0, 1\]"),
        ({"table": np.ones((3, 4)), "table_index": [0]}, r"table_index: wanted 2 values in 0..0"),
        ({"table": np.ones((2, 3, 4)), "table_index": [0, 2]}, r"table_index: wanted 2 values in 0..1"),
    ],
)
def test_bad_tables_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        static(np.zeros((2, 3, 4), np.int32), np.zeros((2, 3, 4), np.float32), [1, 2], 4, **options)


def test_policies_return_the_record_of_the_stages():
    logprobs = random_table(4, 2, 3, 4)
    for name, policy in BASIC.items():
        more = options(name, 3, 4)
        tree = policy(ids_for(logprobs), logprobs, roots(2), 9, **more).check()
        assert {f.name for f in fields(tree)} == {f.name for f in fields(kd.DraftTree)}
