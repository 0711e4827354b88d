"""The explorer shows what the study counts: trees, paths, curves, speedups; in widgets, or one figure."""

from __future__ import annotations

import importlib.util
from dataclasses import replace

import numpy as np
import pytest

import kdtree_cupy as kd
from kdtree_cupy.convert import read_arrays
from kdtree_cupy.cost import load_cost
from kdtree_cupy.explorer import Explorer, Setting, default_policies, show, view
from kdtree_cupy.explorer.model import first_sequences
from kdtree_cupy.explorer.page import write_page
from kdtree_cupy.explorer.pictures import ancestors, curve_svg, nice_ticks
from kdtree_cupy.policies import POLICIES
from kdtree_cupy.policies.calibrated import tempered_rows
from kdtree_cupy.replay import acceptance
from kdtree_cupy.study import run_study
from kdtree_cupy.trace import bundled_traces, load_trace, make_trace
from kdtree_cupy.tree_svg import tree_svg

COST = "caddtree-a800-8b"
HOSTILE = b"</script><img src=x onerror=alert(1)>&\"'"


@pytest.fixture(scope="module")
def explorer():
    return Explorer(costs=[load_cost(COST)])


@pytest.fixture(scope="module")
def hostile():
    """A bundled trace whose every token has a text that is HTML."""
    trace = load_trace(bundled_traces()[0])
    size = trace.vocab_size
    offsets = np.arange(size + 1, dtype=trace.extra["vocab_offsets"].dtype) * len(HOSTILE)
    extra = {"vocab_offsets": offsets, "vocab_bytes": np.frombuffer(HOSTILE * size, np.uint8)}
    return replace(trace, name="<b>name</b>", extra={**trace.extra, **extra})


def test_curves_are_the_studys(explorer):
    result = run_study(explorer.traces[:1], budgets=[16, 64], costs=explorer.costs)
    for row in result.speedups:
        setting = Setting(policy=row["policy"], budget=row["budget"])
        at = explorer.curve(setting).budgets.tolist().index(row["budget"])
        assert explorer.curve(setting).tau[at] == row["tau_pooled"]
        assert explorer.speedup(setting, explorer.costs[0])[at] == pytest.approx(row["speedup"], rel=1e-12)


@pytest.mark.parametrize("policy", default_policies())
def test_a_round_is_what_replay_accepts(explorer, policy):
    trace = explorer.traces[0]
    setting = Setting(policy=policy, budget=16)
    options, per_position = explorer._fit(0, policy)
    told = acceptance(trace, POLICIES[policy], [16], options=options, per_position=per_position)
    for position in explorer.roots(setting)[:20]:
        found = explorer.round(replace(setting, position=int(position)))
        assert found.accepted == told.accepted[position, 0]
        assert found.expected == pytest.approx(1 + told.surrogate[position, 0])
        nodes = found.path[found.path > 0]
        assert (found.tree.tokens[0, nodes] == trace.tokens[position + 1 : position + 1 + nodes.size]).all()


def test_ranks_depth_and_temperature_limit_the_tree(explorer):
    setting = Setting(budget=64, position=33)
    tree = explorer.round(replace(setting, max_rank=3, max_depth=4)).tree
    assert tree.ranks.max() == 2
    assert tree.depths.max() == 4
    trace = explorer.traces[0]
    rows = tempered_rows(trace.draft_logprobs[33:34], np.full(trace.depth, 1.7))
    wanted = POLICIES["ddtree"](np.asarray(trace.draft_ids[33:34]), rows, trace.tokens[33:34], 64)
    got = explorer.round(replace(setting, temperature=1.7)).tree
    assert (got.parents == wanted.parents).all()
    assert (got.scores == wanted.scores).all()
    assert explorer.curve(replace(setting, max_rank=2)).tau[-1] < explorer.curve(setting).tau[-1]


def test_a_long_trace_is_cut_to_whole_sequences(explorer):
    trace = explorer.traces[0]
    part = first_sequences(trace, 300)
    assert part.sequence_offsets.tolist() == trace.sequence_offsets[:4].tolist()
    assert part.tokens.size == part.draft_ids.shape[0] == part.sequence_offsets[-1]
    assert first_sequences(trace, 10).sequences == 1
    assert first_sequences(trace, 10_000) is trace


def test_rounds_follow_each_other_through_all_sequences(explorer):
    setting = Setting(budget=16)
    seen, at = [], 0
    while at is not None:
        seen.append(at)
        at = explorer.following(replace(setting, position=at))
    assert seen == explorer.roots(setting).tolist()


def test_masks_are_the_stages(explorer):
    tree = explorer.round(Setting(budget=48, position=33)).tree
    from kdtree_cupy.refs.masks import bool_mask

    assert (ancestors(tree) == bool_mask(tree)[0]).all()


def test_pictures_escape_what_a_trace_says(hostile):
    explorer = Explorer(hostile, policies=["ddtree"], costs=[], budgets=[4, 8])
    setting = Setting(budget=8, position=33)
    for part in (view.headline, view.passage, view.tree, view.mask):
        text = part(explorer, setting)
        assert "<img" not in text
        assert "<b>name" not in text
        assert "</script>" not in text
    assert "&lt;img" in view.passage(explorer, setting)
    found = explorer.round(setting)
    assert "<img" not in tree_svg(found.tree, text=hostile.text, path=found.path)


def test_tree_svg_says_what_it_leaves_out(explorer):
    tree = explorer.round(Setting(budget=64, position=33)).tree
    assert "first 10 of 65 nodes" in tree_svg(tree, max_nodes=10)
    assert tree_svg(tree).count("<circle") == 65
    assert tree._repr_html_().count("<circle") == 65
    idle = POLICIES["ddtree"](np.zeros((1, 1, 1), int), np.zeros((1, 1, 1), np.float32), [0], [-1])
    assert "idle slot" in tree_svg(idle)


def test_curves_of_one_budget_and_of_constants():
    assert "2.00" in curve_svg(np.array([4]), np.array([2.0]), 4, title="one")
    assert "1.00" in curve_svg(np.array([1, 2]), np.array([1.0, 1.0]), 2, title="flat")
    assert nice_ticks(0.0, 1.0).tolist() == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1.0])


def test_one_figure_without_widgets(explorer, monkeypatch):
    monkeypatch.setattr(show, "in_notebook", lambda: True)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    figure = kd.explore(explorer, budget=32)
    titles = [ax.get_title() for ax in figure.axes]
    assert "B = 32" in titles[0]
    assert "drafts accepted" in titles[0]
    assert len(figure.axes) == 4


def test_mistakes_are_named(explorer):
    for choices, message in (
        ({"policy": "nix"}, "policy: got 'nix'"),
        ({"budget": 5}, "budget: got 5"),
        ({"position": 10**6}, "position: got 1000000, wanted 0..1425"),
        ({"max_rank": 33}, "max_rank: got 33, wanted 1..32"),
        ({"temperature": 0.0}, "temperature: got 0"),
        ({"trace": 2}, "trace: got 2, wanted 0..1"),
    ):
        with pytest.raises(ValueError, match=message):
            kd.explore(explorer, widgets=False, **choices)
    for name, value in (
        ("trace", "a"),
        ("budget", 16.0),
        ("position", 1.5),
        ("max_rank", "x"),
        ("temperature", "x"),
    ):
        with pytest.raises(TypeError, match=f"{name}: got (str|float), wanted"):
            kd.explore(explorer, widgets=False, **{name: value})
    with pytest.raises(ValueError, match=r"temperature: got inf, wanted 0\.001 to 1000"):
        kd.explore(explorer, widgets=False, temperature=float("inf"))
    with pytest.raises(ValueError, match="policies: got 'longrun'"):
        Explorer(policies=["longrun"])
    with pytest.raises(TypeError, match="colour"):
        kd.explore(explorer, colour=3)


def test_names_that_are_no_text_reach_pages_escaped(tmp_path):
    path = tmp_path / "bad\udcff.npz"
    path.symlink_to(bundled_traces()[0])
    header, arrays = read_arrays(path)
    named = make_trace(str(path), {**header, "name": path.stem}, arrays)
    assert named.name == "bad\\udcff"
    page = write_page(Explorer(named, budgets=[4]), tmp_path / "page.html", tokens=1, command="kdtree \udcff")
    assert "kdtree \\udcff" in page.read_text(encoding="utf-8")


def test_widgets_follow_the_choices(explorer):
    pytest.importorskip("ipywidgets", reason="ipywidgets (extra notebook) is not installed")
    panel = kd.explore(explorer, widgets=True, position=4).explorer_panel
    c = panel.controls
    panel.wait()
    assert "tau" in panel.parts["curves"].value
    c["budget"].value = 48
    assert panel.setting == Setting(budget=48, position=4)
    assert panel.parts["tree"].value.count("<circle") == 49
    c["max_rank"].value, c["max_depth"].value = 2, 3
    c["temperature"].value = 1.3
    panel.wait()
    assert panel.setting == Setting(0, "ddtree", 48, 4, 2, 3, 1.3)
    assert panel.parts["curves"].value == view.curves(explorer, panel.setting, explorer.costs[0], 1000.0)
    c["max_rank"].value, c["max_depth"].value, c["temperature"].value = 32, 15, 1.0
    panel.step(1)
    assert panel.setting.position == 4 + 1 + explorer.round(Setting(budget=48, position=4)).accepted
    panel.step(-1)
    assert panel.setting.position == 4
    c["budget"].value = 256
    c["policy"].value = "edge"  # takes 127 nodes at most
    assert c["budget"].value == panel.setting.budget == 96
    c["context"].value = 8000.0
    panel.wait()
    assert "context 8000" in panel.parts["curves"].value
    c["trace"].value = 1
    assert panel.setting.position == 0
    assert c["position"].max == explorer.traces[1].tokens.size - 1
    panel.wait()
