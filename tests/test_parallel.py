"""Jobs and clusters change nothing but the time; policies of limited budget; faults are named."""

from __future__ import annotations

import operator

import numpy as np
import pytest
from tiny import tiny_trace

from kdtree_cupy import study_report
from kdtree_cupy.cli import main
from kdtree_cupy.errors import BackendError
from kdtree_cupy.parallel import run_tasks
from kdtree_cupy.study import run_study

POLICIES = ("ddtree", "static", "edge", "calibrated", "longrun")


@pytest.mark.parametrize("options", [{"jobs": 1}, {"jobs": 2}], ids=str)
def test_results_come_in_order(options):
    tasks = [(i, 10) for i in range(7)]
    seen = []
    assert run_tasks(operator.add, tasks, done=seen.append, **options) == [10 + i for i in range(7)]
    assert seen == list(range(7))


def test_a_local_dask_cluster_gives_the_same_study():
    pytest.importorskip("distributed", reason="distributed (extra dask) is not installed")
    traces = [tiny_trace("one"), tiny_trace("two", seed=1)]
    here = run_study(traces, budgets=[2, 8, 200], policies=POLICIES)
    there = run_study(traces, budgets=[2, 8, 200], policies=POLICIES, jobs=2, dask="local")
    assert there.rows == here.rows


def test_a_fault_in_a_task_arrives():
    for options in ({}, {"jobs": 2}):
        with pytest.raises(ZeroDivisionError):
            run_tasks(operator.truediv, [(1, 1), (1, 0)], **options)


def test_an_absent_scheduler_is_named():
    distributed = pytest.importorskip("distributed", reason="distributed (extra dask) is not installed")
    assert distributed
    with pytest.raises(BackendError, match="no scheduler answers"):
        run_tasks(operator.add, [(1, 2)], dask="nonsense://nowhere")


def test_jobs_below_one():
    with pytest.raises(ValueError, match="jobs: got 0"):
        run_tasks(operator.add, [(1, 2)], jobs=0)


def test_edge_skips_budgets_it_cannot_hold(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(study_report, "FIGURES", study_report.FIGURES[:1])
    result = run_study([tiny_trace()], budgets=[4, 127, 128], policies=["edge", "ddtree"])
    assert [row["budget"] for row in result.select(policy="edge", subset="all")] == [4, 127]
    assert [row["budget"] for row in result.select(policy="ddtree", subset="all")] == [4, 127, 128]
    with pytest.raises(ValueError, match="at most 127 for policy edge"):
        run_study([tiny_trace()], budgets=[128], policies=["edge"])
    assert (
        main(["study", "--no-shootout", "-p", "edge", "-b", "4,256", "-o", str(tmp_path), "--cost", "none"])
        == 0
    )
    assert "edge takes budgets up to 127; skipped: 256" in capsys.readouterr().out


def test_adaptive_policies_pay_for_the_nodes_they_use():
    from kdtree_cupy.cost import load_cost

    result = run_study(
        [tiny_trace()], budgets=[60], policies=["caddtree", "ddtree"], costs=[load_cost("caddtree-a800-8b")]
    )
    nodes = {row["policy"]: row["nodes"] for row in result.speedups}
    used = result.traces[0].replays["caddtree"]
    roots = used.rounds[0].root
    mean = used.acceptance.nodes_by_depth[roots, 0, 1:].sum(1).mean()
    assert nodes["caddtree"] == pytest.approx(mean) and nodes["ddtree"] == 60
    assert np.isfinite([row["speedup"] for row in result.speedups]).all()
