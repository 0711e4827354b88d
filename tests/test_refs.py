"""The references stand alone and speak the package's language."""

from __future__ import annotations

import ast
import inspect
import sys
from importlib import import_module
from pathlib import Path

import pytest

import kdtree_cupy as kd
from kdtree_cupy import limits
from kdtree_cupy.refs import status, tree_accept

REFS = Path(__file__).resolve().parents[1] / "refs"
STAGES = (
    "topk_logprob", "tree_build", "verify_attn", "verify_attn_gqa",
    "target_token", "tree_accept", "kv_commit",
)  # fmt: skip
PUBLIC_ONLY = {"library", "out", "out_dtype", "check", "splits"}


@pytest.mark.parametrize("path", sorted(REFS.glob("*.py")), ids=lambda p: p.name)
def test_only_numpy_and_the_standard_library_are_imported(path):
    allowed = {*sys.stdlib_module_names, "numpy", "ml_dtypes"}
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            assert {alias.name.split(".")[0] for alias in node.names} <= allowed
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            assert node.module.split(".")[0] in allowed


@pytest.mark.parametrize("stage", STAGES)
def test_arguments_have_the_same_names_in_the_same_order(stage):
    public = inspect.signature(getattr(kd, stage)).parameters
    reference = inspect.signature(getattr(import_module(f"kdtree_cupy.refs.{stage}"), stage)).parameters
    assert [name for name in public if name not in PUBLIC_ONLY] == list(reference)
    for name, parameter in reference.items():
        assert parameter.kind == public[name].kind and parameter.default == public[name].default


def test_limits_and_status_bits_are_the_same():
    bits = {name: value for name, value in vars(status).items() if name.isupper()}
    assert bits == {name: getattr(limits, f"STATUS_{name}") for name in bits}
    assert len(bits) == len(limits.STATUS_TEXT)
    assert tree_accept.MAX_DEPTH == limits.MAX_DEPTH
