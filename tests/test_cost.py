"""Cost tables: the published optima follow from published numbers, and bad tables are named."""

from __future__ import annotations

import json

import numpy as np
import pytest

from kdtree_cupy.cost import available, load_cost, round_in_ar_steps, speedup
from kdtree_cupy.errors import KdtrError

# DDTree (arXiv 2604.12989), Fig. 3: MATH-500, Qwen3-8B, greedy
BUDGETS = np.array([16, 32, 64, 128, 256, 512, 1024])
TAU = np.array([8.606, 9.266, 9.748, 10.202, 10.427, 10.731, 10.975])
SPEEDUP = np.array([6.094, 6.601, 6.968, 7.325, 7.434, 7.518, 6.820])
CHAIN_TAU, CHAIN_SPEEDUP = 7.789, 5.562


def table(**changes):
    """Return the JSON of a small table of times."""
    good = {
        "name": "toy", "kind": "measured", "hardware": "card", "model": "8B", "source": "s", "note": "n",
        "nodes": [1, 16, 64], "contexts": [0, 100], "verify_ms": [[10, 10, 12], [20, 22, 30]],
        "ar_ms": [10, 20], "draft_ms": 2, "build_ms": 0.5, "commit_ms": 0.25, "default_context": 100,
    }  # fmt: skip
    return {k: v for k, v in (good | changes).items() if v is not None}


@pytest.fixture
def saved(tmp_path):
    def save(data):
        path = tmp_path / "toy.json"
        path.write_text(data if isinstance(data, str) else json.dumps(data), encoding="utf-8")
        return path

    return save


def test_round_cost_on_h200_is_tau_over_speedup():
    cost = load_cost("ddtree-h200-8b")
    np.testing.assert_allclose(round_in_ar_steps(cost, BUDGETS), TAU / SPEEDUP, atol=6e-4)
    assert round_in_ar_steps(cost, 16, chain=True) == pytest.approx(CHAIN_TAU / CHAIN_SPEEDUP, abs=6e-4)
    np.testing.assert_allclose(speedup(TAU, cost, BUDGETS), SPEEDUP, rtol=6e-4)


def test_the_best_budget_on_h200_is_512():
    gain = speedup(TAU, load_cost("ddtree-h200-8b"), BUDGETS)
    assert BUDGETS[gain.argmax()] == 512


@pytest.mark.parametrize(
    ("context", "best", "per_second"),
    [(1, 128, None), (1000, 128, 245.4), (2000, 128, None), (4000, 64, 221.7), (8000, 64, 165.7)],
)
def test_the_best_budget_moves_with_context(context, best, per_second):
    """The same acceptance on an A800: 128 nodes at short contexts, 64 at long ones."""
    cost = load_cost("caddtree-a800-8b")
    gain = speedup(TAU, cost, BUDGETS, context=context)
    assert BUDGETS[gain.argmax()] == best
    step_ms = np.interp(context, cost.contexts, cost.ar_ms)
    if per_second:
        assert 1000 * gain.max() / step_ms == pytest.approx(per_second, abs=0.06)  # curves of two decimals
    if context == 1000:
        assert gain.max() == pytest.approx(8.59, abs=0.005)


def test_interpolation_by_hand(saved):
    cost = load_cost(saved(table()))
    assert round_in_ar_steps(cost, 40, context=100) == pytest.approx((2.75 + 26) / 20)
    assert round_in_ar_steps(cost, 16, context=50) == pytest.approx((2.75 + 16) / 15)
    assert round_in_ar_steps(cost, 0, context=0) == pytest.approx(1.275)  # flat below the first n
    assert round_in_ar_steps(cost, 112, context=100) == pytest.approx((2.75 + 30 + 8) / 20)  # last slope
    assert round_in_ar_steps(cost, 16, context=1e6) == pytest.approx((2.75 + 22) / 20)  # flat outside
    assert round_in_ar_steps(cost, 40) == round_in_ar_steps(cost, 40, context=100)  # its own default
    assert round_in_ar_steps(cost, 15, chain=True) == round_in_ar_steps(cost, 15)
    several = round_in_ar_steps(cost, [1, 16, 64])
    np.testing.assert_allclose(several, [22.75 / 20, 24.75 / 20, 32.75 / 20])
    assert cost.label() == "card; 8B, context 100 (measured)" and "context 7" in cost.label(7)


def test_a_table_that_falls_at_its_end_does_not_fall_for_ever(saved):
    cost = load_cost(saved(table(verify_ms=[[10, 12, 8], [20, 22, 18]])))
    assert round_in_ar_steps(cost, 1024) == round_in_ar_steps(cost, 64)


def test_one_context_and_one_size(saved):
    data = table(nodes=[64], contexts=[0], round_ar=[[1.5]], verify_ms=None, ar_ms=None, default_context=0)
    cost = load_cost(saved(data))
    assert round_in_ar_steps(cost, [1, 64, 1024], context=500).tolist() == [1.5] * 3
    assert cost.chain_round_ar is None and round_in_ar_steps(cost, 5, chain=True) == 1.5


def test_tables_that_come_with_the_package():
    published = ["caddtree-a800-4b", "caddtree-a800-8b", "ddtree-h200-8b"]
    assert available() == [*published, "h200-kimi-h64", "h200-kimi-h8"]
    for name in available():
        cost = load_cost(name)
        kind, source = ("published", "arXiv") if name in published else ("measured", "bench_h200.csv")
        assert cost.name == name and cost.kind == kind and source in cost.source
        assert (np.diff(round_in_ar_steps(cost, [64, 256, 1024])) > 0).all()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("{", "not a readable cost table"),
        ("[" * 100_000, "not a readable cost table"),
        ([1], "got list, wanted a JSON object"),
        (table(kind="guessed"), "kind: got 'guessed', wanted 'published' or 'measured'"),
        (table(nodes=None), "nodes: missing"),
        (table(nodes=[1, 16, 16]), "nodes: wanted at least one value, ascending"),
        (table(contexts=[]), "contexts: wanted numbers|contexts: wanted at least one value"),
        (table(verify_ms=[[1, 2, 3]]), r"verify_ms: got shape \(1, 3\), wanted \(2, 3\)"),
        (table(verify_ms=[[1, 2], [1]]), "verify_ms: missing or not rows of one length"),
        (table(ar_ms=[0, 1]), "ar_ms: wanted finite positive numbers"),
        (table(ar_ms=["1", "2"]), "ar_ms: wanted numbers"),
        (table(draft_ms=-1), "draft_ms: wanted finite positive numbers"),
        (table(draft_ms=10**400), "draft_ms: wanted numbers"),
        (table(build_ms=float("nan")), "build_ms: wanted finite positive numbers"),
        (table(verify_ms=None), "verify_ms: missing"),
        (table(round_ar=[[1, 1, 1]]), r"round_ar: got shape \(1, 3\)"),
    ],
)
def test_bad_tables_are_named(saved, data, message):
    path = saved(data)
    with pytest.raises(KdtrError, match=message) as caught:
        load_cost(path)
    assert str(path) in str(caught.value)


def test_an_unknown_name_lists_those_there_are(tmp_path):
    with pytest.raises(KdtrError, match=r"'mine': unknown; have caddtree-a800-4b, .* or give a \.json file"):
        load_cost("mine")
    with pytest.raises(KdtrError, match=r"none\.json: not a readable cost table"):
        load_cost(tmp_path / "none.json")
