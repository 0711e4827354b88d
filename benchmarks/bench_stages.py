"""topk_logprob, target_token, kv_commit on a GPU: checked on the very input, then timed by graph replay.

A CUDA graph holds several calls in a row; "warm" calls read the same arrays over and over, "cold" ones walk
through copies that together exceed the L2 cache.  Floor: bytes that must move over the bandwidth of a copy.

    python benchmarks/bench_stages.py --out benchmarks/results/stages_h200.csv
"""

from __future__ import annotations

import csv
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import click
import torch
from stage_inputs import (
    DEPTH,
    VOCAB,
    copies_of,
    copy_bandwidth,
    logits_of,
    tokens_are_right,
    topk_is_right,
)
from torch_graph import time_graph

import kdtree_cupy as kd
from kdtree_cupy.library import KernelLibrary, nvrtc
from kdtree_cupy.library.driver import driver

LIBRARY = KernelLibrary(backend="cuda")
STAGES = ("topk_logprob", "target_token", "kv_commit")
TOPK = (
    (1, 64, 12, "bfloat16"),
    (8, 64, None, "bfloat16"),
    (64, 64, 117, "bfloat16"),
    (1, 1024, 60, "bfloat16"),
    (1, 64, None, "float32"),
    (1, 8, None, "bfloat16"),
    (64, 1024, None, "bfloat16"),
)
"""Batch, k, target in us, number type."""
TREE = ((64, 20), (1024, 150))
"""Budget, target in us."""
TARGET = ((1, 0.0, 1.0, 1.6), (1, 1.0, 1.0, 3), (3, 1.0, 0.9, 5), (1, 1.0, 0.9, 5))
"""Standard deviation of the logits, temperature, top-p, target as a multiple of the floor."""
COMMIT = ((61, 1, 1152, None, 6), (61, 1, 1152, 64, 6), (61, 64, 1152, 64, None), (61, 64, 656, 64, None),
          (122, 32, 2048, None, None), (61, 64, 1152, 1, None))  # fmt: skip
"""Layers, batch, bytes of a row, page size, target in us."""
PATH = (0, 2, 3, 7, 11, 20, 33, 60)


def timed(
    base: dict[str, Any], x: torch.Tensor, call: Callable[[torch.Tensor], Any], lasting: bool
) -> Iterator[dict[str, Any]]:
    """Yield a row for warm and cold inputs; only cold for those that exceed the L2 cache anyway."""
    for cold in (False, True) if lasting else (True,):
        calls = [partial(call, copy) for copy in copies_of(x, cold)]
        yield base | {"l2": "cold" if cold else "warm", **time_graph(calls, 9)}


def topk(batch: int, k: int, target: float | None, dtype: str) -> Iterator[dict[str, Any]]:
    """Time topk_logprob, and torch's functions for the same."""
    x = logits_of((batch, DEPTH), dtype=dtype)
    out = kd.topk_logprob(x, k, library=LIBRARY)
    shape = f"{batch}x{DEPTH}x{VOCAB} k={k}"
    base = {"stage": "topk_logprob", "shape": shape, "dtype": dtype, "target_us": target,
            "bytes": x.numel() * x.element_size() + 8 * out.ids.numel()}  # fmt: skip
    right = {"right": topk_is_right(x, out)}
    call = partial(kd.topk_logprob, k=k, library=LIBRARY, out=out)
    yield from timed(base | right, x, call, batch < 64)
    if dtype == "bfloat16" and k <= 64:
        peer = time_graph([lambda: (torch.topk(x, k), torch.logsumexp(x, -1))], 5)
        yield base | {"provider": "torch topk, logsumexp", "l2": "warm", **peer}


def logits_to_tree(budget: int, target: float) -> Iterator[dict[str, Any]]:
    """Time topk_logprob and tree_build, one after the other."""
    x = logits_of((1, DEPTH), 3.0)
    roots = torch.zeros(1, dtype=torch.int32, device="cuda")
    out = kd.topk_logprob(x, budget, library=LIBRARY)
    tree = kd.tree_build(out.ids, out.logprobs, roots, budget, library=LIBRARY)

    def both(copy: torch.Tensor) -> None:
        kd.topk_logprob(copy, budget, library=LIBRARY, out=out)
        kd.tree_build(out.ids, out.logprobs, roots, budget, library=LIBRARY, out=tree)

    base = {"stage": "logits to tree", "shape": f"1x{DEPTH}x{VOCAB} B={budget}", "dtype": "bfloat16",
            "right": topk_is_right(x, out) and int(tree.tree.counts[0]) == budget + 1,
            "bytes": x.numel() * 2, "target_us": target}  # fmt: skip
    yield from timed(base, x, both, True)


def target(batch: int, deviation: float, temperature: float, top_p: float, allowed: float) -> Iterator[dict]:
    """Time argmax and draws."""
    x, u = logits_of((batch, 65), deviation), torch.rand(batch, 65, device="cuda")
    options = {"temperature": temperature, "top_p": top_p, "uniforms": u, "library": LIBRARY}
    out = kd.target_token(x, **options)
    base = {"stage": "target_token", "dtype": "bfloat16", "bytes": x.numel() * 2, "allowed": allowed,
            "shape": f"{batch}x65x{VOCAB} t={temperature:g} p={top_p:g} std={deviation}",
            "right": tokens_are_right(x, out, temperature, top_p, u)}  # fmt: skip
    call = partial(kd.target_token, out=out, **options)
    yield from timed(base, x, call, batch == 1)


def commit(layers: int, batch: int, width: int, page: int | None, target: float | None) -> dict[str, Any]:
    """Time kv_commit on a list of layers."""
    size, length, rows = page or 256, 150, len(PATH)
    pages = batch * 256 // size
    caches = torch.randint(0, 255, (layers, pages, size, width), dtype=torch.uint8, device="cuda")
    table = torch.randperm(pages, device="cuda").int().view(batch, -1) if page else None
    path = torch.full((batch, DEPTH + 1), -1, dtype=torch.int32, device="cuda")
    path[:, :rows] = torch.tensor(PATH, dtype=torch.int32)
    counts = torch.full((batch,), rows, dtype=torch.int32, device="cuda")
    lengths = torch.full_like(counts, length)

    def dense() -> torch.Tensor:
        gathered = caches if table is None else caches[:, table.long()]
        return gathered.reshape(layers, batch, -1, width)[:, :, length:]

    wanted = dense()[:, :, list(PATH)].clone()
    call = partial(kd.kv_commit, list(caches), path, counts, lengths, page_table=table, library=LIBRARY)
    out = call()
    right = bool((dense()[:, :, :rows] == wanted).all()) and out.lengths.tolist() == [length + rows] * batch
    moved = 2 * (rows - 1) * layers * batch * width  # the first row stays where it is
    return {"stage": "kv_commit", "shape": f"{layers} layers {batch}x{rows} rows page={page}", "bytes": moved,
            "dtype": f"{width} bytes", "l2": "warm" if moved < 3e7 else "cold", "target_us": target,
            "allowed": 1.6 if moved >= 16e6 else None, "right": right,
            **time_graph([partial(call, out=out)], 9)}  # fmt: skip


def all_rows() -> Iterator[dict[str, Any]]:
    """Yield every row of the table."""
    for case in TOPK:
        yield from topk(*case)
    for case in TREE:
        yield from logits_to_tree(*case)
    for batch in (1, 64):
        for case in TARGET:
            yield from target(batch, *case)
    for case in COMMIT:
        yield commit(*case)


def show(row: dict[str, Any]) -> str:
    """Return one line of text."""
    limit = row.get("target_us") or (row["allowed"] * row["floor_us"] if row.get("allowed") else None)
    verdict = "" if limit is None else f"target {limit:.0f} {'met' if row['us'] <= limit else 'MISSED'}"
    what = f"{row['provider']:12.12} {row['stage']:14} {row['shape']:38} {row['dtype']:10} {row['l2']}"
    return f"{what} {row['us']:9.2f} us, {row['times_floor']:5.2f} floors, right={row.get('right')} {verdict}"


def git(*words: str) -> str:
    """Return what git prints; empty without a repository."""
    return subprocess.run(["git", *words], capture_output=True, text=True, check=False).stdout.strip()


@click.command()
@click.option("--out", type=click.Path(path_type=Path), help="CSV to write.")
@click.option("--commit", "version", default="", help="Commit to name in the table; default: ask git.")
@click.option("--check-only", is_flag=True, help="Only compare kernels with references on small inputs.")
def main(out: Path | None, version: str, check_only: bool) -> None:
    """Check and time; exit code 1 if a result was wrong."""
    for stage in STAGES:
        sys.modules[f"kdtree_cupy.{stage}"].self_check(LIBRARY)
    if check_only:
        click.echo("kernels agree with the references")
        return
    bandwidth = copy_bandwidth()
    common = {"gpu": torch.cuda.get_device_name(), "cuda_driver": ".".join(map(str, driver().version or ())),
              "nvrtc": ".".join(map(str, nvrtc.choose().version)), "torch": torch.__version__,
              "copy_tb_s": round(bandwidth, 3), "git": version or git("rev-parse", "--short", "HEAD") or "?",
              "command": "python benchmarks/bench_stages.py", "clock": "graph"}  # fmt: skip
    click.echo(str(common))
    rows = []
    for row in all_rows():
        floor = row["bytes"] / bandwidth / 1e6
        rows.append({"provider": "kdtree_cupy", **row, "floor_us": floor, "times_floor": row["us"] / floor})
        click.echo(show(rows[-1]))
    if out:
        with out.open("w", newline="") as file:
            writer = csv.DictWriter(file, [*dict.fromkeys(key for row in rows for key in row), *common])
            writer.writeheader()
            writer.writerows(row | common for row in rows)
    sys.exit(any(row.get("right") is False for row in rows))


if __name__ == "__main__":
    main()
