"""What every policy promises: a well-formed tree, the budget kept, nested if it says so, bad input named."""

from __future__ import annotations

import inspect
import itertools
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from policy_cases import arguments, case, paths_of
from strategies import random_table, tables

import kdtree_cupy as kd
from kdtree_cupy.policies import POLICIES, ddtree

FIXED_SCORES = ("static",)  # scores are the table's, not the rows'
NEW = [name for name in POLICIES if name not in ("chain", "ddtree", "static")]


def limit(name: str) -> int:
    return getattr(POLICIES[name], "max_budget", 1024)


@pytest.mark.parametrize("name", POLICIES)
@given(rows=tables(), budget=st.integers(0, 40))
@settings(max_examples=30)
def test_trees_are_well_formed(name, rows, budget):
    """Parents first, depths and ranks consistent, siblings distinct, scores sums along the path."""
    depth, width = rows.shape
    tree = case(name, depth, width)(*arguments(rows[None]), budget)
    assert tree.check() is tree
    assert 1 <= tree.counts[0] <= budget + 1
    paths = paths_of(tree)
    assert len(set(paths)) == len(paths)
    for i, path in enumerate(paths, 1):
        assert tree.depths[0, i] == len(path) <= depth
        assert all(rows[d, r] > -np.inf for d, r in enumerate(path))
        assert tree.tokens[0, i] == 1000 * (len(path) - 1) + path[-1]
        if name in ("kary", "accum_logp", "medusa", "beam", "spine", "padded", "sequoia"):
            score = sum(float(rows[d, r]) for d, r in enumerate(path))
            if name != "padded":
                assert tree.scores[0, i] == pytest.approx(score, abs=1e-9)


@pytest.mark.parametrize("name", [n for n in POLICIES if getattr(POLICIES[n], "nested", False)])
@pytest.mark.parametrize("seed", range(4))
def test_nested_means_the_first_nodes_of_a_larger_tree(name, seed):
    rows = random_table(seed, 5, 6, 9, step=0.5 * (seed % 2))
    rows[0, 3:] = -np.inf
    policy = case(name, 6, 9)
    large = policy(*arguments(rows), min(120, limit(name)))
    for budget in (0, 1, 2, 5, 6, 7, 13, 40, 77):
        small = policy(*arguments(rows), budget)
        for b in range(5):
            assert paths_of(small, b) == paths_of(large, b)[:budget]
            count = int(small.counts[b])
            np.testing.assert_array_equal(small.scores[b, :count], large.scores[b, :count])


@pytest.mark.parametrize("name", [n for n in POLICIES if not getattr(POLICIES[n], "nested", False)])
def test_policies_that_do_not_say_nested_are_not(name):
    """Somewhere a smaller budget gives nodes that a larger one does not start with."""
    found = False
    for seed, budgets in itertools.product(range(12), [(3, 12), (6, 7), (8, 20), (16, 64), (40, 90)]):
        rows = random_table(seed, 3, 6, 9)
        policy = case(name, 6, 9)
        if name == "sequoia":  # a vector with a dip
            policy = partial(POLICIES[name], vector=[0.5, 0.0, 0.4, 0, 0, 0, 0, 0, 0])
        if name == "longrun":  # a step in the cost: a larger cap finds a better n beyond it
            policy = partial(POLICIES[name], rate=0.15, cost=_stepped_cost())
        small, large = (policy(*arguments(rows), budget) for budget in budgets)
        found |= any(paths_of(small, b) != paths_of(large, b)[: len(paths_of(small, b))] for b in range(3))
        found |= any(
            len(paths_of(small, b)) < min(budgets[0], len(paths_of(large, b))) for b in range(3)
        )  # a smaller cap stopped earlier than the larger one's first nodes go
    assert found


def _stepped_cost():
    from kdtree_cupy.cost import CostTable

    nodes, times = np.array([1.0, 2, 3, 90]), np.array([[1.0, 9.0, 9.0, 9.0]])
    return CostTable("steps", "measured", "", "", "", "", nodes, np.zeros(1), times, np.array([1.0]))


@pytest.mark.parametrize("name", NEW)
def test_requests_do_not_disturb_each_other(name):
    """A batch is its requests one by one: budgets, idle slots, depth and rank limits, broken rows."""
    rows = random_table(3, 6, 5, 7)
    rows[1, 2, 1] = np.nan
    rows[2, 1:] = -np.inf
    rows[4, 0, 0] = 0.25
    budgets = np.array([20, 9, 30, -1, 12, 0], np.int32)
    depths, ranks = np.array([5, 5, 3, 2, 4, 1], np.int32), np.array([7, 3, 7, 7, 2, 1], np.int32)
    policy = case(name, 5, 7)
    whole = policy(*arguments(rows), budgets, max_depth=depths, max_rank=ranks)
    for b in range(6):
        one = policy(
            *(x[b : b + 1] for x in arguments(rows)),
            budgets[b : b + 1],
            num_nodes=whole.num_nodes,
            max_depth=depths[b : b + 1],
            max_rank=int(ranks[b]),
        )
        for field in ("tokens", "parents", "depths", "ranks", "scores", "counts", "status"):
            np.testing.assert_array_equal(getattr(one, field)[0], getattr(whole, field)[b], err_msg=field)
    assert whole.counts[3] == 0 and whole.counts[5] == 1
    assert whole.depths[2].max() <= 1 and whole.depths[1].max() <= 2  # rows after a broken one are not used
    assert (
        whole.status.tolist()
        == ddtree(*arguments(rows), budgets, max_depth=depths, max_rank=ranks).status.tolist()
    )


@pytest.mark.parametrize("name", POLICIES)
def test_signature_is_that_of_tree_build(name):
    wanted = list(inspect.signature(kd.tree_build).parameters)
    got = list(inspect.signature(POLICIES[name]).parameters)
    assert got[:4] == wanted[:4]
    assert {"num_nodes", "max_depth", "max_rank"} <= set(got)
    assert "Source:" in POLICIES[name].__doc__ or "Own rule" in POLICIES[name].__doc__ or name not in NEW


@pytest.mark.parametrize("name", NEW)
def test_bad_arguments_are_named(name):
    rows = random_table(0, 2, 4, 5)
    ids, logprobs, roots = arguments(rows)
    policy = case(name, 4, 5)
    for call, error, words in (
        (lambda: policy(ids.astype(float), logprobs, roots, 4), TypeError, "ids"),
        (lambda: policy(ids, logprobs.astype(float), roots, 4), TypeError, "logprobs"),
        (lambda: policy(ids[:1], logprobs, roots, 4), ValueError, "ids"),
        (lambda: policy(ids, logprobs, roots[:1], 4), ValueError, "root_tokens"),
        (lambda: policy(ids, logprobs, roots, -2), ValueError, "budget"),
        (lambda: policy(ids, logprobs, roots, 1025), ValueError, "budget"),
        (lambda: policy(ids, logprobs, roots, 8, num_nodes=4), ValueError, "num_nodes"),
        (lambda: policy(ids, logprobs, roots, 8, max_depth=-1), ValueError, "max_depth"),
    ):
        with pytest.raises(error, match=words):
            call()


BAD_OPTIONS = {
    "kary": [({"fan_out": 0}, "fan_out")],
    "accum_logp": [({"width": 0}, "width")],
    "depth_bonus": [({"bonus": -1}, "bonus"), ({"most_ranks": 0}, "most_ranks")],
    "fan_out": [({"caps": [1, 2]}, "caps: got shape"), ({"caps": [-1, 1, 1, 1]}, "caps")],
    "medusa": [({"choices": "mine"}, "choices"), ({"choices": [[1]]}, "elder siblings")],
    "sequoia": [
        ({"vector": [0.5]}, "vector: got shape"),
        ({"vector": [2.0, 0, 0, 0, 0]}, "outside"),
        ({"vector": [0.5, 0, 0, 0, 0], "levels": 0}, "levels"),
        ({"vector": [0.5, 0, 0, 0, 0], "table_index": [0, 1]}, "table_index"),
    ],
    "beam": [({"top_k": 0}, "top_k")],
    "opt_tree": [({"threshold": np.nan}, "threshold")],
    "calibrated": [({"temperatures": [1.0]}, "temperatures: got"), ({"temperatures": [0.0] * 4}, "> 0")],
    "conditioned": [({"gains": [1.0]}, "gains: got shape"), ({"gains": [[0.0] * 4] * 4}, "> 0")],
    "caddtree": [({"cost": "nothing"}, "unknown")],
    "longrun": [({"rate": 0.0}, "rate"), ({"rate": 1.0, "cost": "nothing"}, "unknown")],
}


@pytest.mark.parametrize(
    ("name", "options", "words"), [(n, o, w) for n, c in BAD_OPTIONS.items() for o, w in c]
)
def test_bad_options_are_named(name, options, words):
    with pytest.raises(ValueError, match=words):
        POLICIES[name](*arguments(random_table(0, 2, 4, 5)), 6, **options)


def test_edge_refuses_what_its_kernel_cannot_hold():
    with pytest.raises(ValueError, match="at most 127"):
        POLICIES["edge"](*arguments(random_table(0, 1, 4, 5)), 128)
