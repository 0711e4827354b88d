"""kdtree bench: checks come first, the table has its columns, comparisons tell noise from change."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from conftest import library_of

from kdtree_cupy import bench, bench_plots, timing
from kdtree_cupy.bench import CPU_QUICK, Grid, plan, run_bench
from kdtree_cupy.bench_compare import compare, table
from kdtree_cupy.bench_data import Place
from kdtree_cupy.bench_table import COLUMNS, read_bench, write_bench
from kdtree_cupy.cli import OUR_FAULT, main
from kdtree_cupy.errors import KdtrError
from kdtree_cupy.timing import summary, wall_times

TINY = replace(CPU_QUICK, budgets=(4,), prefixes=(8,), vocab=256, depth=3)


@pytest.fixture(autouse=True)
def few_samples(monkeypatch):
    monkeypatch.setattr(
        bench, "wall_times", lambda call, **more: wall_times(call, seconds=0, least=3, most=3)
    )


@pytest.fixture(scope="module")
def record():
    patch = pytest.MonkeyPatch()
    patch.setattr(bench, "wall_times", lambda call, **more: wall_times(call, seconds=0, least=3, most=3))
    yield run_bench("numpy", TINY, command="kdtree bench")
    patch.undo()


def test_every_stage_and_the_round_are_measured(record):
    assert record["wrong"] == []
    stages = [row["stage"] for row in record["rows"]]
    wanted = [
        "topk_logprob",
        "tree_build",
        "tree_accept",
        "target_token",
        "kv_commit",
        "round",
        "verify_attn",
        "verify_attn_gqa",
    ]
    assert stages == wanted
    for row in record["rows"]:
        assert tuple(row) == COLUMNS
        assert row["us_p20"] <= row["us_median"] <= row["us_p80"] and row["n"] == 3
        assert row["backend"] == "numpy" and row["gpu"].startswith("none (CPU")


def test_the_table_survives_writing(record, tmp_path):
    paths = write_bench(record, tmp_path / "bench.csv")
    assert [p.name for p in paths] == ["bench.csv", "bench.json"]
    head = paths[0].read_text().splitlines()[0]
    assert head == (
        "stage,variant,batch,heads,q_len,prefix,dtype,budget,depth,width,vocab,us_median,us_p20,us_p80,n,"
        "floor_us,cold,backend,gpu,driver,cuda,cupy,commit,dirty,command"
    )
    rows = read_bench(paths[0])
    assert [row["samples"] for row in rows] == record["samples"]
    assert rows[0]["us_median"] == record["rows"][0]["us_median"] and rows[0]["batch"] == 1
    assert json.loads(paths[1].read_text())["machine"]["ceilings"]["bytes_per_us"] > 0
    paths[1].unlink()
    assert read_bench(paths[0])[0]["samples"] is None
    for text in ("", "a,b\n1,2\n", head + "\n" + "x," * 24 + "\n"):
        paths[0].write_text(text)
        with pytest.raises(KdtrError, match=r"bench\.csv"):
            read_bench(paths[0])


def test_kernels_run_on_the_host_with_the_reference_beside():
    library_of("host")
    few = replace(TINY, stages=("tree", "kv_commit", "topk_logprob"))
    rows = run_bench("host", few)["rows"]
    kinds = [(row["stage"], row["variant"], row["backend"]) for row in rows]
    assert ("tree_build", "default", "host") in kinds and ("tree_build", "reference", "numpy") in kinds
    assert all(row["floor_us"] == "" for row in rows if row["variant"] == "reference")


def test_what_fails_its_check_is_not_timed(monkeypatch):
    from kdtree_cupy import bench_cases

    honest = bench_cases.target_token

    def wrong(logits, *, out=None, **options):
        result = honest(logits, out=out, **options)
        result.tokens[0, 0] += 1
        return result

    monkeypatch.setattr(bench_cases, "target_token", wrong)
    record = run_bench("numpy", replace(TINY, stages=("target_token", "tree")))
    assert [row["stage"] for row in record["rows"]] == ["tree_build", "tree_accept"]
    assert len(record["wrong"]) == 1 and "target_token" in record["wrong"][0]


@pytest.mark.parametrize("what", ["caches", "mask", "path"])
def test_the_check_of_the_round_notices_a_wrong_stage(monkeypatch, what):
    from kdtree_cupy import bench_round

    honest = bench_round.decode_round

    def wrong(b, model, **options):
        honest(b, model, **options)
        {"caches": b.caches, "mask": b.built.mask, "path": b.accepted.path}[what][...] += 1

    monkeypatch.setattr(bench_round, "decode_round", wrong)
    record = run_bench("numpy", replace(TINY, stages=("round",)))
    assert record["rows"] == [] and "round" in record["wrong"][0]


def row(us, samples=None, **more):
    base = dict.fromkeys(COLUMNS, 0.0) | {"stage": "tree_build", "variant": "default", "dtype": "float32"}
    base |= {
        "backend": "cuda",
        "gpu": "card",
        "n": 15.0,
        "us_median": us,
        "us_p20": us * 0.99,
        "us_p80": us * 1.01,
    }
    return base | {"samples": samples, "commit": "abc"} | more


def test_compare_tells_noise_from_change():
    rng = np.random.default_rng(0)
    noisy = lambda us: (us * (1 + 0.02 * rng.standard_normal(15))).tolist()  # noqa: E731
    cases = [(10, 10, "same"), (10, 8, "faster"), (10, 12, "slower"), (10, 10.05, "same")]
    a = [row(x, noisy(x), batch=float(i)) for i, (x, _, _) in enumerate(cases)]
    b = [row(y, noisy(y), batch=float(i)) for i, (_, y, _) in enumerate(cases)]
    found = compare(a, b)
    assert [one.verdict for one in found] == [v for _, _, v in cases]
    assert all(one.bootstrap and one.low <= one.high for one in found)
    assert found[1].low < 0.8 < found[1].high or abs(found[1].ratio - 0.8) < 0.02
    bare = compare([x | {"samples": None} for x in a], [x | {"samples": None} for x in b])
    assert [one.verdict for one in bare] == [v for _, _, v in cases] and not bare[0].bootstrap
    assert "1 faster, 1 slower, 2 same, of 4" in table(found)
    assert compare(a, b) == found  # seeded


def test_other_machines_are_not_compared():
    a, b = [row(10.0)], [row(5.0, gpu="another")]
    assert compare(a, b) == []
    assert compare(a, b, across=True)[0].verdict == "faster"
    assert compare(a, [row(5.0, backend="host", gpu="another")], across=True) == []


def test_a_grid_leaves_out_what_is_too_large():
    shapes = [shape for stage, shape, _ in plan(Grid()) if stage == "verify_attn"]
    assert len(shapes) > 20
    pairs = [s.batch * s.heads * (s.budget + 1) * (s.prefix + s.budget + 1) for s in shapes]
    assert max(pairs) <= bench.MOST_PAIRS
    assert all(shape.width <= shape.budget for _, shape, _ in plan(Grid()))


def test_samples_are_summed_up():
    assert summary([3.0, 1.0, 2.0]) == (2.0, pytest.approx(1.4), pytest.approx(2.6), 3)
    before = []
    assert len(wall_times(lambda: None, seconds=0, least=4, before=lambda: before.append(1))) == 4
    assert len(before) == 5
    top = timing.Ceilings(10.0, 100.0, 2.0, 0)
    assert [top.floor_us(*x) for x in ((10, 0), (100, 0), (10, 1000))] == [2.0, 10.0, 10.0]


def test_bfloat16_inputs_are_rounded_to_nearest():
    import ml_dtypes

    place = Place(library_of("numpy"))
    x = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    wanted = x.astype(ml_dtypes.bfloat16)
    got = place.rounded(x.copy(), "bfloat16")
    assert (got.view(np.uint16) == wanted.view(np.uint16)).mean() > 0.99  # ties go up, not to even
    np.testing.assert_array_equal(place.wide(got), got.astype(np.float64))


def test_figures_keep_machines_apart(record):
    rows = [r | {"samples": None} for r in record["rows"]]
    rows += [
        r | {"backend": "cuda", "gpu": "card", "budget": b, "us_median": 2.0} for r in rows for b in (4, 8)
    ]
    found = bench_plots.figures(rows)
    assert {"latency_budget_cuda", "stack_cuda", "roofline_cuda", "stack_numpy", "roofline_numpy"} <= set(
        found
    )
    for name, figure in found.items():
        text = " ".join(t.get_text() for t in figure.findobj(lambda a: hasattr(a, "get_text")))
        assert ("card" in text) == name.endswith("cuda"), name
    import matplotlib.pyplot as plt

    plt.close("all")


def test_the_command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    few = ["--backend", "numpy", "--quick", "--stages", "tree,round", "--vocab", "128", "--no-figures"]
    assert main(["bench", *few, "--out", "a"]) == 0
    assert main(["bench", *few, "--out", "b"]) == 0
    capsys.readouterr()
    assert main(["bench", "--compare", "a/bench.csv", "b/bench.csv"]) == 0
    assert "of 3 measured in both" in capsys.readouterr().out
    assert main(["bench", "--backend", "numpy", "--stages", "tea"]) == 2
    assert "stages: got 'tea'" in capsys.readouterr().err
    assert main(["bench", "--budgets", "x"]) == 2
    monkeypatch.setattr(bench, "plan", lambda grid: [("tree", None, broken)])
    assert main(["bench", *few]) == OUR_FAULT


def broken(place, l2):
    raise ValueError("tree_build: tokens is not the reference's")


@pytest.mark.gpu
def test_quick_bench_on_a_device():
    library_of("cuda")
    quick = replace(bench.QUICK, batches=(1,), vocab=4096, layers=3, prefixes=(256,))
    record = run_bench("cuda", quick, replays=5)
    assert record["wrong"] == []
    assert {r["backend"] for r in record["rows"]} == {"cuda", "numpy"}
