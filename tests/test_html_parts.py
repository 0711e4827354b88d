"""What notebooks show: tables that escape and say what they leave out; progress bars that fit."""

from __future__ import annotations

import re
import sys
from types import SimpleNamespace

import pytest

from kdtree_cupy import html_parts, progress
from kdtree_cupy.bench_table import Rows, read_bench, stored
from kdtree_cupy.library.report import Report, Row
from kdtree_cupy.policies import ddtree
from kdtree_cupy.study import run_study
from kdtree_cupy.trace import bundled_traces, load_trace

BAD = "<script>alert('x')</script>&"


def rows_of(html: str) -> int:
    """Return the rows of a table; fail if a tag is left open."""
    for tag in ("table", "tr", "td", "th"):
        assert len(re.findall(rf"<{tag}[ >]", html)) == html.count(f"</{tag}>"), tag
    return html.count("<tr>")


def test_a_table_escapes_and_counts_what_it_leaves_out():
    html = html_parts.table([BAD, "n"], [(BAD, i) for i in range(70)], caption=BAD, most=10)
    assert "<script" not in html
    assert html.count("&lt;script") == 12
    assert "... and 60 more rows" in html
    assert rows_of(html) == 12


def test_a_report_is_a_table():
    row = Row(BAD, BAD, "sm_120", 40, 0, 0, 0, None, 128, 0.5, None, False)
    html = Report((row,))._repr_html_()
    assert "<script" not in html
    assert rows_of(html) == 2
    assert "50%" in html
    assert repr(Report((row,))) == str(Report((row,)))


def test_a_study_is_a_table():
    trace = load_trace(bundled_traces()[0])
    object.__setattr__(trace, "name", BAD)
    result = run_study([trace], budgets=[4], policies=["ddtree"])
    html = result._repr_html_()
    assert "<script" not in html
    assert rows_of(html) == 3
    tau = result.select(policy="ddtree", subset="all")[0]["tau_pooled"]
    assert f">{tau:.3f}<" in html
    assert len(repr(result)) < 200


def test_benchmarks_are_a_table():
    base = dict.fromkeys(("stage", "variant", "dtype", "backend", "gpu"), BAD)
    sizes = dict.fromkeys(("batch", "budget", "heads", "prefix"), 2.0)
    times = {"us_median": 4.0, "us_p20": 3.0, "us_p80": 5.0, "floor_us": 1.0, "cold": 1}
    html = Rows([base | sizes | times])._repr_html_()
    assert "<script" not in html
    assert ">25%<" in html
    assert ">cold<" in html
    path = stored()
    if path is not None:
        assert rows_of(read_bench(path)._repr_html_()) > 2


def test_a_tree_is_a_drawing():
    import numpy as np

    logprobs = np.log(np.float32([[[0.6, 0.3], [0.5, 0.4]]] * 2))
    tree = ddtree(np.int32([[[7, 8], [9, 5]]] * 2), logprobs, [1, 2], 3)
    html = tree._repr_html_()
    assert html.count("<circle") == 4
    assert "request 0 of 2" in html
    assert "DraftTree(batch=2" in html


@pytest.mark.parametrize("widgets", [True, False])
def test_progress_bars_suit_their_place(monkeypatch, capsys, widgets):
    assert not progress.in_notebook()
    with progress.bar(3, "counting") as bar:  # not a terminal: nothing
        bar.update(3)
    assert capsys.readouterr().err == ""
    shell = SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    assert progress.in_notebook()
    with progress.bar(3, "counting", quiet=True) as bar:
        bar.update(3)
    assert capsys.readouterr().err == ""
    if not widgets:
        monkeypatch.setattr(progress.importlib.util, "find_spec", lambda name: None)
        with progress.bar(3, "counting") as bar:
            bar.update(3)
        assert "counting" in capsys.readouterr().err
