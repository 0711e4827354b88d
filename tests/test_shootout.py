"""The shoot-out: its numbers on the bundled traces, its statistics, its page, and odd traces."""

from __future__ import annotations

import csv
import math

import numpy as np
import pytest
from tiny import tiny_arrays, tiny_trace

from kdtree_cupy import kdtr, lab, shootout, shootout_report, study_report, style
from kdtree_cupy.acceptance import tau
from kdtree_cupy.cli import main
from kdtree_cupy.policies import POLICIES, ddtree
from kdtree_cupy.replay import acceptance, jump
from kdtree_cupy.study import run_study
from kdtree_cupy.trace import bundled_traces, load_trace


@pytest.fixture(scope="module")
def real():
    return shootout.run_shootout([load_trace(path) for path in bundled_traces()], budgets=[64])


@pytest.fixture(scope="module")
def small():
    traces = [
        tiny_trace("one", header={"task": "code"}),
        tiny_trace("two", seed=1, header={"task": "code"}),
        tiny_trace("three", seed=2, header={"task": "chat"}),
    ]
    return shootout.run_shootout(traces, budgets=[3, 9], policies=["static", "edge"])


def test_numbers_of_the_bundled_traces(real):
    """Pooled tau at 64 nodes, and the paired gap of the calibrated tree; what the page shows."""
    pooled = {
        (r["trace"][-2:], r["policy"]): round(r["tau_pooled"], 3)
        for r in real.select(budget=64)
        if r["policy"] in ("chain", "ddtree", "calibrated", "accum_logp", "kary")
    }
    assert pooled["t0", "ddtree"] == 2.653 and pooled["t0", "chain"] == 1.799
    assert pooled["t1", "ddtree"] == 2.196 and pooled["t1", "calibrated"] == 2.238
    assert pooled["t0", "accum_logp"] == 2.576 and pooled["t0", "kary"] == 2.133
    row = real.select(trace="smollm2_humaneval_t1", policy="calibrated", budget=64)[0]
    assert (row["better"], row["worse"], row["equal"]) == (8, 1, 3)
    assert round(row["sign_p"], 3) == 0.039 and row["difference_low"] > 0


def test_every_policy_that_fills_its_budget_takes_part(real):
    assert set(real.policies) == set(POLICIES) - {"caddtree", "longrun"}
    assert {r["policy"] for r in real.rows} == set(real.policies)


def test_shoot_out_and_study_agree(small):
    study = run_study(small.traces, budgets=[3, 9], policies=["static", "edge", "ddtree"])
    for row in study.select(subset="all"):
        mine = small.select(trace=row["trace"], policy=row["policy"], budget=row["budget"])[0]
        for key in ("tau_mean", "tau_pooled", "tau_low", "tau_high", "rounds", "nodes_mean"):
            assert mine[key] == pytest.approx(row[key]), key


def test_groups_pool_kinds_and_temperatures(small):
    labels = dict.fromkeys(r["trace"] for r in small.rows)
    assert list(labels) == ["one", "two", "three", "all of code, temperature None", "all at temperature None"]
    pooled = small.select(trace="all of code, temperature None", policy="ddtree", budget=9)[0]
    parts = [small.select(trace=n, policy="ddtree", budget=9)[0] for n in ("one", "two")]
    assert pooled["sequences"] == sum(p["sequences"] for p in parts)
    assert pooled["kind"] == "code"
    assert small.select(trace="all at temperature None")[0]["kind"] == "several"


def test_differences_to_itself_are_nothing(small):
    for row in small.select(policy="ddtree"):
        assert row["difference"] == 0 and row["better"] == row["worse"] == 0 and row["sign_p"] == 1
        assert row["oracle_share"] <= 1 + 1e-12


@pytest.mark.parametrize(("better", "worse"), [(0, 0), (5, 5), (10, 2), (0, 7), (30, 11)])
def test_sign_test_is_the_binomial(better, worse):
    n = better + worse
    tail = sum(math.comb(n, i) for i in range(max(better, worse), n + 1)) / 2**n
    assert shootout.sign_test(better, worse) == pytest.approx(min(1, 2 * tail))


def test_one_wide_build_answers_every_budget(real):
    trace = real.traces[0]
    paths = lab.wide_paths(trace, 100)
    for budget in (1, 7, 64, 100):
        wanted = acceptance(trace, ddtree, [budget]).accepted[:, 0]
        np.testing.assert_array_equal(lab.counterfactual(paths, budget), wanted)
    part = real.labs[0]
    assert round(part.wide_tau[63], 3) == 2.653
    assert round(part.wide_position_tau[63], 2) == 2.92  # biased
    assert int(part.wide_speedup[8000].argmax()) < int(part.wide_speedup[1000].argmax())


def test_calibration_lowers_the_error_at_every_depth(real):
    for part in real.labs:
        assert (part.error_after < part.error_before).all()


def test_truncation_to_all_ranks_changes_nothing(real):
    for part in real.labs:
        rows = {r["setting"]: r for r in part.truncation}
        assert rows["K = 32"]["changed_share"] == 0
        assert rows["float16"]["changed_share"] < 0.001
        tau_by_k = [rows[f"K = {k}"]["tau_pooled"] for k in (2, 4, 8, 16, 32)]
        assert tau_by_k == sorted(tau_by_k)


def test_verifiers_keep_their_order_on_real_distributions(real):
    for part in real.labs:
        table = {(v["rule"], v["temperature"]): v["acceptance"] for v in part.verifiers}
        for heat in lab.TEMPERATURES:
            for rule in ("match_iid", "rrs", "kseq"):
                assert table[rule, heat] <= table["transport", heat] + 1e-9
        cold, hot = lab.TEMPERATURES[0], lab.TEMPERATURES[-1]
        assert table["rrs_without", cold] == pytest.approx(
            table["match", cold], abs=0.005
        )  # becomes the best k
        assert table["match", cold] > table["transport", cold]
        assert table["match", hot] < table["transport", hot]


def test_first_node_distributions(real):
    p, q = lab.first_node(real.traces[1])
    np.testing.assert_allclose(p.sum(1), 1)
    np.testing.assert_allclose(q.sum(1), 1)
    assert lab.first_node(tiny_trace()) is None


def test_jobs_change_nothing():
    traces = [tiny_trace("one"), tiny_trace("two", seed=1)]
    one, two = (shootout.run_shootout(traces, budgets=[5], policies=["static"], jobs=j) for j in (1, 2))
    assert one.rows == two.rows


@pytest.mark.parametrize(
    "options", [{"depth": 1, "width": 1, "lengths": (9, 4)}, {"lengths": (0, 2, 1)}], ids=str
)
def test_odd_traces_give_a_page(options, tmp_path, monkeypatch):
    monkeypatch.setitem(style.RC, "savefig.dpi", 40)
    result = shootout.run_shootout([tiny_trace("$<b>odd</b>$", **options)], budgets=[2])
    (tmp_path / "figures").mkdir()
    shootout_report.write_page(result, tmp_path, "kdtree study")
    page = (tmp_path / "shootout.html").read_text()
    assert "<b>odd" not in page and "http" not in page.replace("http-equiv", "").replace("http://www.w3", "")


def test_page_of_the_command(tmp_path, monkeypatch):
    monkeypatch.setattr(study_report, "FIGURES", study_report.FIGURES[:1])
    monkeypatch.setattr(shootout_report, "FIGURES", shootout_report.FIGURES[:1])
    kdtr.write(tmp_path / "t.kdtr", tiny_arrays(), {"vocab_size": 12})
    out = tmp_path / "out"
    assert (
        main(["study", "--shootout", "-t", str(tmp_path / "t.kdtr"), "-b", "4,8", "-q", "-o", str(out)]) == 0
    )
    assert 'href="shootout.html"' in (out / "report.html").read_text()
    rows = list(csv.DictReader((out / "shootout.csv").open()))
    assert tuple(rows[0]) == shootout.COLUMNS
    assert (out / "figures" / "contest.svg").exists()
    assert (
        main(
            [
                "study",
                "-t",
                str(tmp_path / "t.kdtr"),
                "-b",
                "4",
                "-q",
                "--no-shootout",
                "-o",
                str(tmp_path / "b"),
            ]
        )
        == 0
    )
    assert not (tmp_path / "b" / "shootout.html").exists()


def test_bad_calls():
    with pytest.raises(ValueError, match="wanted some of chain"):
        shootout.run_shootout([tiny_trace()], policies=["ddtre"])
    with pytest.raises(ValueError, match="budgets"):
        shootout.run_shootout([tiny_trace()], budgets=[])
    with pytest.raises(ValueError, match="jobs"):
        shootout.run_shootout([tiny_trace()], jobs=0)


def test_tau_pooled_is_tau(small):
    trace = small.traces[0]
    rounds = jump(trace, acceptance(trace, ddtree, [4]).accepted[:, 0])
    from kdtree_cupy.acceptance import tau_pooled

    assert tau_pooled(rounds) == tau(rounds).pooled
