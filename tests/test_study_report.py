"""The study's report and command: files, escapes, bad input, interruptions."""

from __future__ import annotations

import csv
import errno
import os
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from tiny import small_study, tiny_arrays

from kdtree_cupy import kdtr, study_report
from kdtree_cupy.cli import main
from kdtree_cupy.study import BUDGETS


@pytest.fixture(scope="module")
def small_result():
    return small_study()


@pytest.fixture
def one_figure(monkeypatch):
    """Draw one figure instead of nine where the figures are not what is tested."""
    monkeypatch.setattr(study_report, "FIGURES", study_report.FIGURES[:1])


def write_trace(path, header=None, **changes):
    kdtr.write(path, tiny_arrays() | changes, {"vocab_size": 12} | (header or {}))
    return str(path)


def run(*arguments, capsys=None):
    code = main(["study", "--no-shootout", *map(str, arguments)])
    return code, (capsys.readouterr() if capsys else None)


def test_report_files(small_result, tmp_path):
    page = study_report.write_report(small_result, tmp_path / "out")
    text = page.read_text()
    assert "<script" not in text
    assert re.findall(r'(?:src|href)="(?!data:|#)', text) == []  # self-contained: nothing is fetched
    assert text.count("<figure>") == 9
    names = {p.name for p in (tmp_path / "out").iterdir()}
    assert names == {"report.html", "report.md", "results.csv", "speedup.csv", "figures"}
    figures = {p.suffix for p in (tmp_path / "out" / "figures").iterdir()}
    assert figures == {".png", ".svg"}
    for link in re.findall(r"\]\((figures/[^)]+)\)", (tmp_path / "out" / "report.md").read_text()):
        assert (tmp_path / "out" / link).is_file()
    with (tmp_path / "out" / "results.csv").open() as handle:
        rows = list(csv.DictReader(handle))
    assert len(rows) == len(small_result.rows)
    assert rows[0]["certified_share"] == ""  # the chain has no certificate: empty, not nan


def test_a_table_with_parts_adds_its_figures(tmp_path, capsys, one_figure):
    path = write_trace(tmp_path / "t.kdtr", {"name": "mine"})
    costs = ("--cost", "h200-kimi-h8", "--cost", "caddtree-a800-8b")
    code, _ = run(path, "--out", tmp_path / "out", "--budgets", "2,4", *costs, capsys=capsys)
    assert code == 0
    drawn = {p.name for p in (tmp_path / "out" / "figures").iterdir() if "cost_" in p.name}
    assert drawn == {
        f"cost_{what}_h200-kimi-h8.{kind}" for what in ("stack", "ridge", "rules") for kind in ("png", "svg")
    }
    text = (tmp_path / "out" / "report.md").read_text()
    assert (
        len(re.findall(r"^#.*\(h200-kimi-h8\)$", text, re.MULTILINE)) == 3
    )  # a published table has no parts, so no such figures
    assert "Acceptance is that of mine" in text


def test_strings_of_a_trace_are_escaped(tmp_path, capsys, one_figure):
    evil = "<script>alert(1)</script> | `x`\x1b[2J"
    header = {
        "name": evil,
        "source": evil,
        "licence": evil,
        "target": evil,
        "drafter": "<img src=x onerror=y>",
    }
    path = write_trace(tmp_path / "t.kdtr", header)
    code, shown = run(path, "--out", tmp_path / "out", "--budgets", "2,4", capsys=capsys)
    assert code == 0
    for name in ("report.html", "report.md"):
        text = (tmp_path / "out" / name).read_text()
        assert "<script" not in text
        assert "<img src=x" not in text
    assert "\x1b" not in shown.out


def test_unwritable_output_folder(tmp_path, capsys):
    (tmp_path / "file").write_text("not a folder")
    code, shown = run(write_trace(tmp_path / "t.kdtr"), "--out", tmp_path / "file" / "out", capsys=capsys)
    assert code == 2
    assert "output folder cannot be written" in shown.err
    assert "Traceback" not in shown.err


def test_full_disk_leaves_the_old_report(tmp_path, capsys, monkeypatch, one_figure):
    out = tmp_path / "out"
    assert run(write_trace(tmp_path / "t.kdtr"), "--out", out, "-b", "2")[0] == 0
    before = {p: p.read_bytes() for p in out.rglob("*") if p.is_file()}

    def full(*arguments, **options):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(study_report, "write_csv", full)
    code, shown = run(tmp_path / "t.kdtr", "--out", out, "-b", "4", capsys=capsys)
    assert code == 2
    assert "No space left" in shown.err and str(out) in shown.err
    assert {p: p.read_bytes() for p in out.rglob("*") if p.is_file()} == before


def test_failure_leaves_no_empty_folder(tmp_path, capsys):
    code, _ = run(tmp_path / "missing.kdtr", "--out", tmp_path / "out", capsys=capsys)
    assert code == 2
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(os.name != "posix", reason="sends SIGINT")
def test_interrupt_in_the_middle(tmp_path):
    out = tmp_path / "out"
    command = [
        sys.executable,
        "-m",
        "kdtree_cupy",
        "study",
        "--no-shootout",
        "--out",
        str(out),
        "--jobs",
        "1",
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not out.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 2, error
    assert "Interrupted" in error and "Traceback" not in error
    assert not out.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--budgets", "4,-1"], "budgets: got -1"),
        (["--budgets", "4,x"], "wanted integers"),
        (["--policies", "nonsense"], "policies: got 'nonsense'"),
        (["--cost", "nonsense"], "unknown; have"),
        (["--jobs", "0"], "not in the range"),
        (["--traces", "/nonexistent/trace.kdtr"], "no such file"),
    ],
)
def test_bad_arguments_exit_with_two(arguments, message, tmp_path, capsys):
    code, shown = run(*arguments, "--out", tmp_path / "out", capsys=capsys)
    assert code == 2
    assert message in shown.err
    assert "Traceback" not in shown.err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokens": tiny_arrays()["tokens"] + 100}, "tokens[0]"),
        ({"draft_logprobs": tiny_arrays()["draft_logprobs"] + 9}, "draft_logprobs[0, 0, 0]"),
        (
            {"draft_logprobs": np.full_like(tiny_arrays()["draft_logprobs"], np.nan)},
            "draft_logprobs[0, 0, 0]",
        ),
        ({"draft_ids": np.zeros_like(tiny_arrays()["draft_ids"])}, "draft_ids[0, 0]"),
        ({"sequence_offsets": np.int32([0, 5])}, "sequence_offsets"),
    ],
)
def test_bad_traces_name_file_array_and_index(change, message, tmp_path, capsys):
    path = write_trace(tmp_path / "bad.kdtr", **change)
    code, shown = run(path, "--out", tmp_path / "out", capsys=capsys)
    assert code == 2
    assert message in shown.err and "bad.kdtr" in shown.err


def test_trace_without_a_single_round_is_refused(tmp_path, capsys):
    arrays = tiny_arrays(lengths=(1, 0, 1))
    kdtr.write(tmp_path / "short.kdtr", arrays, {"vocab_size": 12})
    code, shown = run(tmp_path / "short.kdtr", "--out", tmp_path / "out", "-b", "4", capsys=capsys)
    assert code == 2
    assert "no sequence has two tokens" in shown.err
    assert not (tmp_path / "out").exists()


def test_budget_zero_alone_draws_every_figure(tmp_path, recwarn):
    kdtr.write(tmp_path / "t.kdtr", tiny_arrays(), {"vocab_size": 12})
    assert run(tmp_path / "t.kdtr", "--out", tmp_path / "out", "-b", "0", "-q")[0] == 0
    assert not [w for w in recwarn if issubclass(w.category, UserWarning)]


def test_one_sequence_says_that_nothing_was_fitted(tmp_path, one_figure):
    kdtr.write(tmp_path / "t.kdtr", tiny_arrays(lengths=(12,)), {"vocab_size": 12})
    assert run(tmp_path / "t.kdtr", "--out", tmp_path / "out", "-b", "4", "-q")[0] == 0
    assert "one sequence only" in (tmp_path / "out" / "report.md").read_text()


@pytest.mark.parametrize(("depth", "width"), [(1, 1), (1, 3), (4, 1)])
def test_smallest_shapes(depth, width, tmp_path):
    arrays = tiny_arrays(depth=depth, width=width)
    kdtr.write(tmp_path / "t.kdtr", arrays, {"vocab_size": 12})
    assert run(tmp_path / "t.kdtr", "--out", tmp_path / "out", "-b", "0,1,8", "-q")[0] == 0


def test_cost_list_and_default_budgets(capsys):
    code, shown = run("--cost", "list", capsys=capsys)
    assert code == 0
    assert "caddtree-a800-8b" in shown.out
    assert len(BUDGETS) == 12 and BUDGETS[0] == 4 and BUDGETS[-1] == 1024
