"""Examples in docstrings give what they show."""

from __future__ import annotations

import doctest
import importlib
import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "kdtree_cupy"
MODULES = sorted(
    path.relative_to(PACKAGE.parent).with_suffix("").as_posix().replace("/", ".").removesuffix(".__init__")
    for path in PACKAGE.rglob("*.py")
    if re.search(r">>> (?!.*doctest: \+SKIP)", path.read_text(encoding="utf-8"))
)


@pytest.mark.parametrize("name", MODULES)
def test_examples(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        pytest.skip(f"{error.name} is not installed")
    done = doctest.testmod(module)
    assert done.attempted > 0 and done.failed == 0


def test_there_are_examples_for_every_stage():
    stages = ("topk_logprob", "tree_build", "verify_attn", "target_token", "tree_accept", "kv_commit")
    assert {f"kdtree_cupy.{stage}" for stage in stages} <= set(MODULES)
