"""docs/acceptance.md: its examples run as printed, in order, and it names every policy and verifier."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kdtree_cupy.policies import POLICIES

TEXT = (Path(__file__).resolve().parents[1] / "docs" / "acceptance.md").read_text(encoding="utf-8")


def test_the_examples_run():
    space = {"__name__": "example"}
    blocks = re.findall(r"```python\n(.*?)```", TEXT, re.S)
    assert len(blocks) == 5
    for number, code in enumerate(blocks, 1):
        assert "assert " in code
        exec(compile(code, f"docs/acceptance.md, block {number}", "exec"), space)


@pytest.mark.parametrize("name", [*POLICIES, "traversal", "rrs", "kseq", "transport"])
def test_every_policy_and_verifier_is_named(name):
    assert re.search(rf"[`\"]{name}[`\"]", TEXT)


def test_two_pages():
    assert len(TEXT.split()) < 1800
