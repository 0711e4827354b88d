"""The numbers of the recorded traces, to three decimals."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kdtree_cupy.acceptance import tau
from kdtree_cupy.policies import chain, ddtree
from kdtree_cupy.replay import acceptance, jump
from kdtree_cupy.trace import bundled_traces, load_trace

RECORDED = Path(os.environ.get("KDTREE_TRACES", ""))


@pytest.fixture(scope="module")
def greedy():
    return load_trace(bundled_traces()[0])


@pytest.fixture(scope="module")
def replayed(greedy):
    return {
        "chain": acceptance(greedy, chain, [15, 64]),
        "ddtree": acceptance(greedy, ddtree, [4, 15, 16, 64, 1024]),
    }


def test_pooled_tau_of_the_bundled_trace(greedy, replayed):
    table = replayed["ddtree"]
    rounds = jump(greedy, table.accepted[:, table.budgets.tolist().index(64)])
    assert f"{tau(rounds).pooled:.3f}" == "2.653"
    assert f"{tau(jump(greedy, replayed['chain'].accepted[:, 0])).pooled:.3f}" == "1.799"


@pytest.mark.parametrize(
    ("name", "tree", "chained"),
    [
        ("smollm2_humaneval_t0", "2.653", "1.799"), ("smollm2_humaneval_t1", "2.196", "1.475"),
        ("smollm2_mt_bench_t0", "2.743", "1.865"), ("smollm2_mt_bench_t1", "1.730", "1.234"),
        ("smollm2_gsm8k_t0", "2.971", "1.990"), ("smollm2_gsm8k_t1", "1.968", "1.349"),
    ],
)  # fmt: skip
def test_pooled_tau_of_recorded_traces(name, tree, chained):
    """Those that do not come with the package are found through KDTREE_TRACES, a folder."""
    known = {path.stem: path for path in bundled_traces()}
    path = known.get(name, RECORDED / f"{name}.npz")
    if not os.environ.get("KDTREE_TRACES") and name not in known:
        pytest.skip("the environment variable KDTREE_TRACES names no folder of traces")
    trace = load_trace(path, stop_tokens=[2])
    for policy, budget, wanted in ((ddtree, 64, tree), (chain, 15, chained)):
        rounds = jump(trace, acceptance(trace, policy, [budget]).accepted[:, 0])
        assert f"{tau(rounds).pooled:.3f}" == wanted


def test_averaging_over_positions_overstates_tau(greedy, replayed):
    """Long accepts skip positions, so a mean over positions sees too many good ones."""
    table = replayed["ddtree"]
    for j, budget in enumerate(table.budgets):
        biased = table.accepted[:, j].mean() + 1
        honest = tau(jump(greedy, table.accepted[:, j])).pooled
        assert biased > honest, budget
    assert biased > 1.05 * honest  # 1,024 nodes


def test_more_budget_never_accepts_less_at_a_position(replayed):
    for table in replayed.values():
        assert (table.accepted[:, 1:] - table.accepted[:, :-1] >= 0).all()
