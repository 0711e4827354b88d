"""Measured tables in the documentation say what benchmarks/results says."""

import runpy
from pathlib import Path

import pytest

from kdtree_cupy.acceptance import tau
from kdtree_cupy.policies import chain, ddtree
from kdtree_cupy.replay import acceptance as replay
from kdtree_cupy.replay import jump
from kdtree_cupy.trace import bundled_traces, load_trace

ROOT = Path(__file__).resolve().parents[1]
DOC = runpy.run_path(str(ROOT / "benchmarks" / "doc_tables.py"))


@pytest.mark.parametrize("page", DOC["PAGES"])
def test_tables_are_those_of_the_results(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    assert DOC["MARK"].search(text), "no table"
    assert DOC["renewed"](text) == text, "run: python benchmarks/doc_tables.py"


def test_the_numbers_under_the_first_figure():
    trace = load_trace(bundled_traces()[0])
    said = (ROOT / "README.md").read_text(encoding="utf-8")
    for policy, words in ((ddtree, "DDTree commits {:.2f} tokens"), (chain, "the chain commits {:.2f} and")):
        found = tau(jump(trace, replay(trace, policy, [64]).accepted[:, 0]))
        assert words.format(found.mean) in said
        assert f"{found.pooled:.2f}" in said.split(words.format(found.mean))[1][:60]


def test_every_table_stands_somewhere():
    names = [name for page in DOC["PAGES"] for _, name, _ in DOC["MARK"].findall((ROOT / page).read_text())]
    assert sorted(names) == sorted(DOC["TABLES"])
