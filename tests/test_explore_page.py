"""The explorer's page in a browser: the same trees and curves as Python's, clicks, strangers' strings."""

from __future__ import annotations

import json
import re

import chromium
import numpy as np
import pytest
from test_explore import COST, hostile  # noqa: F401  (a fixture)

from kdtree_cupy.cli import main
from kdtree_cupy.cost import load_cost
from kdtree_cupy.explorer import Explorer, Setting
from kdtree_cupy.explorer import page as page_module
from kdtree_cupy.explorer.model import first_sequences
from kdtree_cupy.explorer.page import POLICIES, write_page
from kdtree_cupy.trace import bundled_traces, load_trace

BUDGETS = (1, 4, 16, 48, 64)
needs_browser = pytest.mark.skipif(chromium.find() is None, reason="no Chromium on this machine")


@pytest.fixture(scope="module")
def explorer():
    """Short traces, so that page and Python replay the same sequences."""
    traces = [first_sequences(load_trace(path), 210) for path in bundled_traces()]
    return Explorer(traces, costs=[load_cost(COST), load_cost("ddtree-h200-8b")], budgets=BUDGETS)


@pytest.fixture(scope="module")
def page(explorer, tmp_path_factory):
    return write_page(explorer, tmp_path_factory.mktemp("page") / "explore.html")


@pytest.fixture(scope="module")
def browser(page, tmp_path_factory):
    with chromium.Browser(tmp_path_factory.mktemp("profile")) as browser:
        browser.open(page.as_uri())
        browser.wait("document.querySelectorAll('#tree circle').length === 17")
        yield browser


def choice(**changes) -> str:
    whole = {
        "trace": 0,
        "policy": "ddtree",
        "ranks": 32,
        "depth": 15,
        "temperature": 1,
        "cost": 0,
        "context": 1000,
    }
    return json.dumps(whole | changes)


def test_the_page_is_one_file_without_links(page, tmp_path, capsys):
    text = page.read_text(encoding="utf-8")
    program = text[: text.index('id="data"')] + text[text.index("</script>") :]
    links = set(re.findall(r"https?://[^\s\"']+", program))
    assert links == {"http://www.w3.org/2000/svg"}  # a name, not an address
    assert not re.search(r"<(link|img|iframe)|src=|fetch\(|import\(", program)
    assert "default-src 'none'" in text
    assert main(["explore", "--html", str(tmp_path / "a.html"), "--trace", "nothing.kdtr"]) == 2
    assert "nothing.kdtr: no such file" in capsys.readouterr().err
    assert main(["explore"]) == 2
    assert "--html" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_wide_rows_leave_room_for_fewer_tokens(explorer, monkeypatch):
    trace = explorer.traces[0]
    wanted = [trace.sequence_offsets[: n + 1].tolist() for n in (2, 1)]
    monkeypatch.setattr(page_module, "MOST_BYTES", int(trace.sequence_offsets[2]) * 6 * 15 * 32)
    assert page_module.page_data(explorer, 10**6)["traces"][0]["offsets"] == wanted[0]
    assert page_module.page_data(explorer, 1)["traces"][0]["offsets"] == wanted[1]
    with pytest.raises(ValueError, match="tokens: got 0"):
        write_page(explorer, "nowhere.html", tokens=0)


@needs_browser
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("limits", [{}, {"ranks": 3, "depth": 4}], ids=["all", "limited"])
def test_trees_and_curves_are_pythons(browser, explorer, policy, limits):
    given = choice(policy=policy, **limits)
    setting = Setting(0, policy, 48, 0, limits.get("ranks"), limits.get("depth"))
    for position in (0, 33, 81, 100, 150):
        made = browser.run(f"kdtree.treeAt({given}, {position}, 48)")
        found = explorer.round(Setting(0, policy, 48, position, *(limits.get(k) for k in ("ranks", "depth"))))
        n = int(found.tree.counts[0])
        assert made["parent"] == found.tree.parents[0, :n].tolist()
        assert made["rank"] == found.tree.ranks[0, :n].tolist()
        np.testing.assert_allclose(made["score"], found.tree.scores[0, :n], atol=1e-6)
        assert made["path"] == found.path[found.path >= 0].tolist()
    curve = explorer.curve(setting)
    rounds = browser.run(f"kdtree.replay({given})")
    np.testing.assert_allclose([r["tau"] for r in rounds], curve.tau, rtol=1e-12)
    assert [r["roots"] for r in rounds] == [r.root.tolist() for r in curve.rounds]
    for cost, context in ((0, 1000), (0, 6000), (1, 0)):
        got = browser.run(f"kdtree.speedups({choice(policy=policy, cost=cost, context=context, **limits)})")
        wanted = explorer.speedup(setting, explorer.costs[cost], context)
        np.testing.assert_allclose(got, wanted, rtol=1e-9)


@needs_browser
def test_temperature_is_pythons(browser, explorer):
    rounds = browser.run(f"kdtree.replay({choice(temperature=1.5)})")
    curve = explorer.curve(Setting(temperature=1.5))
    np.testing.assert_allclose(
        [r["tau"] for r in rounds], curve.tau, rtol=0.01
    )  # exp differs in the last bit
    made = browser.run(f"kdtree.treeAt({choice(temperature=1.5)}, 33, 48)")
    found = explorer.round(Setting(budget=48, position=33, temperature=1.5)).tree
    np.testing.assert_allclose(made["score"], found.scores[0], atol=1e-5)


@needs_browser
def test_clicks(browser, explorer):
    browser.run("location.hash = '#policy=ddtree&budget=16&position=4&trace=0'")
    browser.wait("kdtree.state.position === 4")
    accepted = explorer.round(Setting(budget=16, position=4)).accepted
    browser.wait(f"document.querySelector('#accepted').textContent.startsWith('{accepted} draft')")
    browser.click("#next")
    browser.wait(f"kdtree.state.position === {4 + accepted + 1}")
    browser.click("#previous")
    browser.wait("kdtree.state.position === 4")
    walk = "for (let last = -1; last !== state.position; step(1)) seen.push(last = state.position);"
    seen = browser.run(f"(() => {{ const seen = []; state.position = 0; {walk} return seen; }})()")
    assert seen == explorer.roots(Setting(budget=16)).tolist()
    browser.click("#budget", 0.99)
    browser.wait("kdtree.state.budget === 64 && document.querySelectorAll('#tree circle').length === 65")
    assert browser.run("document.querySelector('#budget-out').textContent") == "64"
    curve = explorer.curve(Setting(budget=64))
    assert browser.run("document.querySelector('#tau-value').textContent") == f"{curve.tau[-1]:.2f}"
    gain = explorer.speedup(Setting(budget=64), explorer.costs[0])[-1]
    assert browser.run("document.querySelector('#speedup-value').textContent") == f"{gain:.2f}"
    assert browser.run("document.querySelector('#mask-title').textContent") == "Ancestor mask, 65 \u00d7 65"
    browser.click("#depth", 0.01)
    browser.wait("kdtree.state.depth === 1 && document.querySelectorAll('#tree circle').length === 33")
    browser.run("policy.value = 'chain'; policy.dispatchEvent(new Event('input'))")
    browser.run("trace.value = 1; trace.dispatchEvent(new Event('input'))")
    browser.wait("kdtree.state.trace === 1 && document.querySelectorAll('#tree circle').length === 2")
    assert "policy=chain" in browser.run("location.hash")
    assert browser.complaints() == []


@needs_browser
def test_a_hostile_hash_is_put_right(browser):
    browser.run(
        "location.hash = '#trace=9&policy=__proto__&budget=-5&position=1e9&ranks=x&cost=-1&temperature=99'"
    )
    browser.wait("kdtree.state.trace === 1")
    state = browser.run("kdtree.state")
    assert (state["policy"], state["budget"], state["cost"], state["temperature"]) == ("ddtree", 1, 0, 2)
    assert browser.complaints() == []


@needs_browser
def test_no_width_makes_the_page_scroll_sideways(browser):
    for width in (1280, 800, 420):
        browser.resize(width, 900)
        browser.run(
            "location.hash = '#trace=0&policy=ddtree&budget=64&position=33&ranks=0&depth=0&temperature=1'"
        )
        browser.wait("document.querySelectorAll('#tree circle').length === 65")
        assert browser.run("document.documentElement.scrollWidth <= innerWidth")
    browser.resize(1280, 1000)


@needs_browser
def test_strings_of_a_trace_are_text(hostile, browser, tmp_path, page):  # noqa: F811
    small = first_sequences(hostile, 10)
    path = write_page(
        Explorer(small, costs=[load_cost(COST)], budgets=(4, 8)), tmp_path / "hostile.html", tokens=10
    )
    browser.open(path.as_uri())
    browser.wait("document.querySelectorAll('#tree circle').length > 1")
    assert browser.run("document.querySelectorAll('img, b b, option b').length") == 0
    assert browser.run("document.querySelector('#passage').textContent.includes('<img')")
    assert browser.run("document.querySelector('#trace option').textContent") == "<b>name</b>"
    assert browser.run("document.title") == "Draft trees of <b>name</b>"
    assert browser.complaints() == []
    browser.open(page.as_uri())
