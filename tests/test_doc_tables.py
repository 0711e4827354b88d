"""Measured tables in the documentation say what benchmarks/results says."""

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
DOC = runpy.run_path(str(ROOT / "benchmarks" / "doc_tables.py"))


@pytest.mark.parametrize("page", DOC["PAGES"])
def test_tables_are_those_of_the_results(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    assert DOC["MARK"].search(text), "no table"
    assert DOC["renewed"](text) == text, "run: python benchmarks/doc_tables.py"


def test_every_table_stands_somewhere():
    names = [name for page in DOC["PAGES"] for _, name, _ in DOC["MARK"].findall((ROOT / page).read_text())]
    assert sorted(names) == sorted(DOC["TABLES"])
