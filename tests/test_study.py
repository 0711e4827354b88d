"""The study: its numbers on the real trace, its table, and what it does with bad options."""

from __future__ import annotations

import os
import re

import numpy as np
import pytest
from tiny import small_study, tiny_arrays, tiny_trace

from kdtree_cupy.study import run_study
from kdtree_cupy.study_table import COLUMNS
from kdtree_cupy.trace import bundled_traces, load_trace

DESIGN_COLUMNS = (
    *("trace", "policy", "budget", "subset", "tau_mean", "tau_pooled", "tau_low", "tau_high", "rounds"),
    *("tokens", "certified_share", "backend"),
)


@pytest.fixture(scope="module")
def greedy():
    return load_trace(bundled_traces()[0])


@pytest.fixture(scope="module")
def small_result():
    return small_study()


def test_published_numbers_of_the_bundled_greedy_trace(greedy):
    result = run_study([greedy], budgets=[64])
    pooled = {row["policy"]: row["tau_pooled"] for row in result.select(subset="all")}
    assert round(pooled["ddtree"], 3) == 2.653
    assert round(pooled["chain"], 3) == 1.799


@pytest.mark.parametrize(
    ("name", "ddtree", "chain"),
    [("mt_bench", 2.743, 1.865), ("gsm8k", 2.971, 1.990), ("humaneval", 2.653, 1.799)],
)
def test_published_numbers_of_the_full_set(name, ddtree, chain):
    folder = os.environ.get("KDTREE_TRACES")
    if not folder:
        pytest.skip("KDTREE_TRACES names no folder with the full set of traces")
    trace = load_trace(f"{folder}/smollm2_{name}_t0.npz")
    pooled = {r["policy"]: r["tau_pooled"] for r in run_study([trace], budgets=[64]).select(subset="all")}
    assert (round(pooled["ddtree"], 3), round(pooled["chain"], 3)) == (ddtree, chain)


def test_tokens_of_a_sequence_sum_to_n_minus_one(small_result):
    for part in small_result.traces:
        wanted = int(np.maximum(part.trace.lengths - 1, 0).sum())
        assert {row["tokens"] for row in small_result.select(trace=part.trace.name, subset="all")} == {wanted}


def test_budget_zero_is_autoregressive_decoding(small_result):
    for row in small_result.select(budget=0, subset="all"):
        assert row["tau_mean"] == row["tau_pooled"] == 1.0
        assert row["nodes_mean"] == 0


def test_chain_uses_at_most_d_nodes_and_is_always_there():
    trace = tiny_trace()
    result = run_study([trace], budgets=[2, 64], policies=["ddtree"])
    assert result.policies == ("chain", "ddtree")
    assert [row["nodes_mean"] for row in result.select(policy="chain", subset="all")] == [2, trace.depth]


def test_unreachable_budget_gives_the_whole_trie(small_result):
    part = small_result.traces[0]
    depth, width = part.trace.depth, part.trace.width
    row = small_result.select(trace="one", policy="ddtree", budget=200, subset="all")[0]
    assert row["nodes_mean"] == sum(width**d for d in range(1, depth + 1))
    kept = part.oracle_tau[1]
    assert row["tau_pooled"] == pytest.approx(kept)  # everything that K ranks can give


def test_columns_and_bounds(small_result):
    assert set(DESIGN_COLUMNS) <= set(COLUMNS)
    for row in small_result.rows:
        assert set(row) == set(COLUMNS)
        assert row["tau_low"] <= row["tau_mean"] <= row["tau_high"]
        assert row["certified_share"] is None or 0 <= row["certified_share"] <= 1
        assert row["backend"] == "numpy"


def test_results_do_not_depend_on_jobs(small_result):
    traces = [part.trace for part in small_result.traces]
    again = run_study(traces, budgets=[0, 1, 2, 8, 200], costs=small_result.costs, jobs=2)
    assert again.rows == small_result.rows
    assert again.speedups == small_result.speedups


def test_no_loops_subset_leaves_looping_sequences_out():
    arrays = tiny_arrays(lengths=(20, 20))
    arrays["tokens"][:20] = np.tile([1, 2], 10)
    from kdtree_cupy.trace import make_trace

    trace = make_trace("loop", {"vocab_size": 12}, arrays)
    assert trace.looping().tolist() == [True, False]
    rows = run_study([trace], budgets=[4]).select(policy="chain")
    assert {row["subset"]: row["tokens"] for row in rows} == {"all": 38, "no_loops": 19}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"budgets": [-1]}, "budgets: got -1"),
        ({"budgets": [4, 1025]}, "budgets: got 1025"),
        ({"budgets": []}, "budgets: got"),
        ({"policies": ["nonsense"]}, "policies: got 'nonsense'"),
        ({"jobs": 0}, "jobs: got 0"),
    ],
)
def test_bad_options_name_the_argument(options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        run_study([tiny_trace()], **options)


def test_two_traces_of_one_name_are_refused():
    with pytest.raises(ValueError, match="comes twice"):
        run_study([tiny_trace(), tiny_trace()])
