"""Attention figures come from a table alone: every kind of rows, wrong rows left out, both ceilings."""

from __future__ import annotations

import csv
import runpy
from pathlib import Path

import pytest
from click.testing import CliRunner

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def script():
    pytest.importorskip("matplotlib")
    return runpy.run_path(str(ROOT / "benchmarks" / "plot_verify_attn.py"))


@pytest.fixture(scope="module")
def table(tmp_path_factory, script):
    common = {
        "b": 1,
        "H": 8,
        "provider": "kdtree_cupy",
        "matmul_tflops": 700,
        "copy_tb_s": 4.5,
        "gpu": "a card",
    }
    common |= {"driver": "1", "cuda": "13.0", "commit": "abc"}
    rows = []
    for kind in script["LABELS"]:
        for nodes, prefix in ((1, 512), (33, 512), (33, 131072), (65, 131072), (1025, 4096)):
            flops = 2 * 8 * nodes * (prefix + nodes) * 1088
            us = 5 + flops / 4e8
            row = {"q": nodes, "prefix": prefix, "dtype": kind, "us": us, "tflops": flops / us / 1e6}
            rows += [
                common | row | {"bytes": 1152 * prefix, "l2": l2, "right": True} for l2 in ("warm", "cold")
            ]
    rows.append(rows[-1] | {"q": 99, "right": False})
    rows.append(rows[-1] | {"q": 98, "right": True, "provider": "torch sdpa"})
    path = tmp_path_factory.mktemp("table") / "table.csv"
    with path.open("w", newline="") as handle:
        writer = csv.DictWriter(handle, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    return path


def test_what_was_wrong_or_of_others_is_left_out(script, table):
    rows = script["read"](table)
    assert len(rows) == 30 and {row["q"] for row in rows} == {1, 33, 65, 1025}


def test_a_panel_for_each_kind_and_a_number_for_each_cell(script, table):
    figure = script["plot_heat"](script["read"](table))
    panels = [ax for ax in figure.axes if ax.get_title()]
    assert [ax.get_title() for ax in panels] == list(script["LABELS"].values())
    assert all(len(ax.texts) == 4 for ax in panels)  # of six cells; a prefix of one shape alone is no part


def test_the_roof_is_both_ceilings(script, table):
    (ax,) = script["plot_roofline"](script["read"](table)).axes
    roof = ax.lines[0]
    for x, y in zip(roof.get_xdata(), roof.get_ydata(), strict=True):
        assert y == pytest.approx(min(700, 4.5 * x))
    assert len(ax.lines) == 1 + len(script["LABELS"])


def test_the_files_are_small(script, table, tmp_path):
    done = CliRunner().invoke(script["main"], [str(table), "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    files = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    assert set(files) == {f"verify_attn_{n}.{s}" for n in ("heat", "roofline") for s in ("png", "svg")}
    assert sum(files.values()) < 200_000
