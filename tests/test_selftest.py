"""The self-test passes where it should, and catches a stage that is wrong."""

from __future__ import annotations

import json

import numpy as np
import pytest
from conftest import library_of

import kdtree_cupy as kd
from kdtree_cupy import golden, masks, selftest
from kdtree_cupy.cli import main
from kdtree_cupy.library import KernelLibrary
from kdtree_cupy.library.host_compiler import problem


def test_references_pass_their_own_test():
    record = selftest.selftest("numpy")
    assert record["ok"], record["stages"]
    assert tuple(record["stages"]) == selftest.STAGES
    for result in record["stages"].values():
        assert result["cases"] >= 3 and result["us"] > 0
        assert result["largest_error"] <= result["bound"]


needs_compiler = pytest.mark.skipif(problem() is not None, reason="no C++ compiler for the host backend")


@needs_compiler
def test_kernels_pass_on_the_cpu():
    record = selftest.selftest("host")
    assert record["ok"], record["stages"]
    assert tuple(record["stages"]) == selftest.STAGES + selftest.KERNELS
    for stage, result in record["stages"].items():
        assert result["ran_on"] == ("host" if f"{stage}.cu" in KernelLibrary().sources.files() else "numpy")


@pytest.mark.gpu
def test_kernels_pass_on_the_gpu():
    library_of("cuda")  # skips by name where there is none
    record = selftest.selftest("cuda")
    assert record["ok"], record["stages"]


@needs_compiler
def test_the_check_of_a_kernel_file_is_heeded(monkeypatch):
    def wrong(library):
        raise ValueError(f"{library.backend}: an edge is missing")

    monkeypatch.setattr(masks, "self_check", wrong)
    record = selftest.selftest("host", stages=["tree_accept", "masks"])
    assert [result["ok"] for result in record["stages"].values()] == [True, False]
    assert record["stages"]["masks"]["problem"] == "ValueError: host: an edge is missing"
    with pytest.raises(ValueError, match="with backend numpy, which has no kernels of"):
        selftest.selftest("numpy", stages=["masks"])


def test_a_wrong_integer_is_caught(monkeypatch):
    right = kd.tree_accept

    def wrong(*arguments, **options):
        result = right(*arguments, **options)
        result.path[0, 0] += 1
        return result

    monkeypatch.setattr(kd, "tree_accept", wrong)
    record = selftest.selftest("numpy")
    assert not record["ok"]
    assert not record["stages"]["tree_accept"]["ok"]
    assert "error inf" in record["stages"]["tree_accept"]["problem"]
    assert record["stages"]["tree_build"]["ok"]


@pytest.mark.parametrize("factor", [1 + 2.0**-19, np.nan])
def test_a_logprob_out_of_bounds_is_caught(factor):
    case = golden.load("topk_logprob")["float32"]
    error, bound = selftest.compare(
        case, dict(case.wanted, logprobs=case.wanted["logprobs"] * np.float32(factor))
    )
    assert error > bound
    error, bound = selftest.compare(case, case.wanted)
    assert error == 0.0 and bound == selftest.LOGPROB_BOUND


def test_command_prints_writes_and_exits(tmp_path, capsys, monkeypatch):
    out = tmp_path / "record.json"
    assert main(["selftest", "--backend", "numpy", "--json", "--out", str(out)]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record == json.loads(out.read_text())
    assert {"ok", "backend", "version", "seconds", "machine", "stages"} == set(record)
    monkeypatch.setattr(
        selftest,
        "_stage",
        lambda *_: {
            "ok": False,
            "cases": 1,
            "largest_error": 0.0,
            "bound": 0.0,
            "us": None,
            "problem": "broken on purpose",
        },
    )
    assert main(["selftest", "--backend", "numpy"]) == 1
    assert "broken on purpose" in capsys.readouterr().out


def test_one_stage_alone(capsys):
    assert main(["selftest", "--backend", "numpy", "--stage", "tree_accept", "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)["stages"]) == ["tree_accept"]
