"""Cost tables from measurements: made-up tables of results go in, the arithmetic is done again by hand."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest

from kdtree_cupy import cost_study, plots_cost
from kdtree_cupy.bench_table import COLUMNS
from kdtree_cupy.cost import load_cost, round_in_ar_steps
from kdtree_cupy.cost_build import Measurements, build_table, read_measurements, tree_work
from kdtree_cupy.cost_model import Model
from kdtree_cupy.cost_study import fixed_and_per_round, load_parts
from kdtree_cupy.errors import KdtrError
from kdtree_cupy.trace import bundled_traces, load_trace

ROWS, PREFIXES = (1, 9, 17, 65), (512, 8192)


def write(path, rows):
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(dict.fromkeys(k for row in rows for k in row)))
        writer.writeheader()
        writer.writerows(rows)
    return path


def attention_us(rows, prefix):
    return 10 + rows * prefix / 1000


def bench_rows(gpu="NVIDIA Test"):
    blank = dict.fromkeys(COLUMNS, 0) | {"gpu": gpu, "backend": "cuda", "batch": 1, "commit": "abc"}
    rows = [
        blank | {"stage": "verify_attn", "dtype": "bfloat16", "heads": 8, "q_len": r, "prefix": p,
                 "us_median": attention_us(r, p) - (0 if cold else 1), "cold": cold}
        for r in ROWS for p in PREFIXES for cold in (0, 1)
    ]  # fmt: skip
    for stage in ("tree_build", "tree_accept", "kv_commit", "target_token"):
        rows += [blank | {"stage": stage, "budget": b, "us_median": us} for b, us in ((8, 4.0), (64, 11.0))]
    rows += [blank | {"stage": "topk_logprob", "width": k, "us_median": 12.0} for k in (8, 64)]
    noise = blank | {"stage": "verify_attn", "heads": 8, "q_len": 65, "prefix": 512, "us_median": 9e9}
    return [
        *rows,
        noise | {"backend": "host", "dtype": "bfloat16"},
        noise | {"batch": 8, "dtype": "bfloat16"},
    ]


@pytest.fixture
def table(tmp_path):
    path = write(tmp_path / "bench.csv", bench_rows())
    side = {"machine": {"cuda": {"ceilings": {"bytes_per_us": 4e6}}}}
    (tmp_path / "bench.json").write_text(json.dumps(side))
    data = build_table(read_measurements([path]), "made-up", heads=8)
    (tmp_path / "made-up.json").write_text(json.dumps(data))
    return tmp_path / "made-up.json"


def test_the_arithmetic(table):
    cost, parts, model = load_cost(table), load_parts(table), Model()
    assert (
        cost.kind == "measured"
        and cost.nodes.tolist() == [0, 8, 16, 64]
        and cost.contexts.tolist() == [512, 8192]
    )
    for c, prefix in enumerate(PREFIXES):
        one = model.bytes_read(1, gpus=8, split_attention=True) / 4e6 / 1e3
        assert cost.ar_ms[c] == pytest.approx(61 * attention_us(1, prefix) / 1e3 + one, rel=1e-4)
        for i, rows in enumerate(ROWS):
            rest = model.bytes_read(rows, gpus=8, split_attention=True) / 4e6 / 1e3
            stage = np.interp(rows - 1, (8, 64), (4, 11))
            tree = (12 + 3 * stage + stage * (1 / 9 if rows == 1 else 1)) / 1e3
            wanted = 61 * attention_us(rows, prefix) / 1e3 + rest + tree
            assert cost.verify_ms[c, i] == pytest.approx(wanted, rel=1e-4)
    assert parts.attention_ar_ms == pytest.approx([61 * attention_us(1, p) / 1e3 for p in PREFIXES], rel=1e-3)
    at_batch_1 = parts.speedup(np.ones(4), 8192, 1)
    assert 1 / round_in_ar_steps(cost, cost.nodes, context=8192) == pytest.approx(at_batch_1, rel=1e-3)
    assert "measured" in cost.note and "bandwidth" in cost.note


def test_sizes_of_the_model():
    model = Model()
    expert = 3 * 7168 * 2048
    assert 60 * 384 * expert == pytest.approx(1.015e12, rel=1e-3)  # a trillion weights are routed experts
    active = 61 * model.attention_parameters() + 60 * 9 * expert + 3 * 7168 * 18_432 + 163_840 * 7168
    assert active == pytest.approx(31.6e9, rel=0.02)  # the published 32B, but for embeddings
    read = [model.bytes_read(n, gpus=1, split_attention=False) for n in (1, 2, 1000)]
    assert read[0] < read[1] < read[2] and read[2] <= 60 * 384 * expert * 0.5 + 60e9
    assert model.bytes_read(1, gpus=8, split_attention=True) == pytest.approx(read[0] / 8)


def test_tables_of_the_benchmark_scripts(tmp_path):
    base = {"gpu": "NVIDIA Test", "git": "abc", "copy_tb_s": 4.2, "provider": "kdtree_cupy"}
    attention = [
        base | {"b": 1, "H": 64, "q": r, "prefix": p, "us": attention_us(r, p), "variant": ""}
        for r in ROWS for p in (0, *PREFIXES)
    ]  # fmt: skip
    attention += [attention[0] | {"provider": "torch sdpa", "us": 1e9}, attention[0] | {"b": 8, "us": 1e9}]
    card = {"gpu": base["gpu"]}
    tree = [
        card | {"stage": s, "version": v, "batch": b, "budget": n, "us_median": 5 + 900 * (v == 1)}
        for s in ("tree_build", "tree_accept") for v in (1, 2) for b in (1, 8) for n in (16, 64)
    ]  # fmt: skip
    stages = [
        base | {"stage": "topk_logprob", "shape": "1x15x163840 k=64", "dtype": "bfloat16", "us": 12},
        base | {"stage": "topk_logprob", "shape": "64x15x163840 k=64", "dtype": "bfloat16", "us": 117},
        base | {"stage": "target_token", "shape": "1x65x163840 t=0 p=1 std=1", "dtype": "bfloat16", "us": 13},
        base
        | {"stage": "kv_commit", "shape": "61 layers 1x8 rows page=None", "dtype": "1152 bytes", "us": 6},
    ]
    names = {"verify_attn_h200": attention, "tree_h200": tree, "stages_h200": stages}
    found = read_measurements([write(tmp_path / f"{n}.csv", rows) for n, rows in names.items()])
    assert found.attention[64, 17, 512] == attention_us(17, 512) and found.gpu == "NVIDIA Test"
    assert found.tree["tree_build"] == {16: 5.0, 64: 5.0} and found.tree["topk_logprob"] == {64: 12.0}
    data = build_table(found, "x", heads=64)
    assert data["contexts"] == [512, 8192]  # a prefix of 0 is no context to decode in
    work = tree_work(found, np.array([64, 129]))
    assert work == pytest.approx([(12 + 5 + 13 + 5 + 6) / 1e3, (12 + 5 + 13 * 130 / 65 + 5 + 6) / 1e3])


def test_what_cannot_be_built_says_why(tmp_path):
    with pytest.raises(KdtrError, match="no table of results"):
        read_measurements([write(tmp_path / "x.csv", [{"a": 1}])])
    with pytest.raises(KdtrError, match="measured on Other"):
        read_measurements(
            [write(tmp_path / "a.csv", bench_rows()), write(tmp_path / "b.csv", bench_rows("Other"))]
        )
    found = read_measurements([tmp_path / "a.csv"])
    with pytest.raises(KdtrError, match="64 heads at 0 row counts"):
        build_table(found, "x", heads=64)
    with pytest.raises(KdtrError, match="topk_logprob: no measurement"):
        tree_work(Measurements(sources=["a.csv"]), np.array([8]))
    with pytest.raises(KdtrError, match="has no parts"):
        load_parts("caddtree-a800-8b")


def test_figures_and_rules(table):
    trace, parts = load_trace(bundled_traces()[0]), load_parts(table)
    budgets = [0, 8, 16, 64]
    tau = cost_study.tau_by_budget(trace, budgets)
    assert (np.diff(tau) > 0).all()
    found = fixed_and_per_round(trace, parts.table, budgets)
    assert [one.budget for one in found] == [0, 8, 16, 64, None, None]
    for one, t in zip(found, tau, strict=False):
        price = float(round_in_ar_steps(parts.table, float(one.budget)))
        assert one.speedup == pytest.approx(t / price) and one.low <= one.speedup <= one.high
    best = max(one.speedup for one in found[:4])
    assert found[5].speedup > 0.9 * best and found[4].mean_nodes <= 64
    ridge = plots_cost.plot_ridge(parts, tau, trace.name, batches=(1, 64))
    assert len(ridge.axes) == 2
    stack = plots_cost.plot_speedup_stack(parts, tau, trace.name, contexts=(512, 8192))
    assert any("measured" in t.get_text() for t in stack.axes[2].get_legend().get_texts())
    rules = plots_cost.plot_budget_rules(found, "x")
    assert len(rules.axes[0].get_legend().get_texts()) == 3
    import matplotlib.pyplot as plt

    plt.close("all")
