"""verify_attn on a GPU: checked against float64 on the very input, then timed by CUDA graph replay.

Inputs are N(0, 1) in bfloat16 with random trees.  A graph holds several calls; "warm" calls read one cache
over and over, "cold" ones walk through copies of it that together exceed the L2 cache.  Floors: operations
over the rate of a large matrix product, and bytes over the copy bandwidth, both measured in the same run.

    python benchmarks/bench_verify_attn.py --out benchmarks/results/verify_attn_h200.csv
"""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from verify_attn_inputs import SCALE, Inputs, errors, make, sdpa

import kdtree_cupy as kd
from kdtree_cupy.library import KernelLibrary, nvrtc
from kdtree_cupy.library.driver import driver

TABLE = {  # shape: (microseconds of the best mask-capable peer, target)
    (1, 8, 33, 2048): (278, None), (1, 8, 65, 2048): (290, 20), (1, 64, 33, 2048): (285, None),
    (1, 64, 65, 2048): (398, 70), (1, 64, 65, 8192): (1179, 250), (1, 8, 65, 32768): (3644, 130),
    (1, 64, 65, 32768): (4504, 950), (1, 8, 17, 131072): (12803, 160), (8, 8, 65, 8192): (1380, 250),
    (8, 64, 33, 2048): (960, None), (32, 64, 17, 2048): (2016, None), (64, 8, 65, 4096): (3675, 950),
    (1, 8, 1, 131072): (None, None),
}  # fmt: skip
MORE = (
    (1, 8, 1, 2048), (1, 16, 1, 32768), (1, 64, 1, 32768), (1, 128, 1, 32768), (1, 8, 129, 8192),
    (1, 64, 129, 8192), (1, 12, 65, 8192), (1, 16, 65, 8192), (1, 128, 65, 8192), (1, 8, 65, 0),
    (1, 64, 65, 0), (1, 64, 65, 131072), (4, 16, 33, 16384), (16, 16, 33, 4096), (64, 16, 1, 8192),
    (64, 128, 1, 4096), (1, 8, 1025, 4096),
)  # fmt: skip
HEAT = tuple((1, 8, n, p) for n in (1, 9, 17, 33, 65, 129) for p in (0, 512, 2048, 8192, 32768, 131072))
BAR = (4e-3, 1e-5, 1e-4)
"""Allowed: relative Frobenius error, 1 - cosine, error of lse (design, numerics)."""


def time_graph(calls: list[Any], estimate_us: float, replays: int = 11) -> tuple[float, float, float, int]:
    """Return median, 20th and 80th percentile in us of one call in a replayed graph, and the replays."""
    count = max(len(calls), int(min(60, max(4, 3000 / estimate_us))))
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        calls[0]()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for i in range(count):
            calls[i % len(calls)]()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    times = []
    with torch.cuda.stream(stream):
        for i in range(replays + 2):
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            if i >= 2:
                times.append(1e3 * begin.elapsed_time(end) / count)
    return *(float(np.percentile(times, p)) for p in (50, 20, 80)), replays


def ceilings() -> tuple[float, float]:
    """Return TFLOP/s of a large bfloat16 product, TB/s of reading a large array and writing another."""
    a = torch.randn(8192, 8192, dtype=torch.bfloat16, device="cuda")
    product = time_graph([lambda: a @ a], 1500)[0]
    big = torch.zeros(2**29, dtype=torch.float64, device="cuda")
    copy = torch.empty_like(big)
    moved = time_graph([lambda: torch.add(big, 1, out=copy)], 2000)[0]
    return 2 * 8192**3 / product / 1e6, 2 * 2**32 / moved / 1e6


def git(*words: str) -> str:
    """Return what git prints; empty without a repository."""
    return subprocess.run(["git", *words], capture_output=True, text=True, check=False).stdout.strip()


def provenance() -> dict[str, Any]:
    """Return what every row says of the machine and the code."""
    return {
        "gpu": torch.cuda.get_device_name(),
        "cuda_driver": ".".join(map(str, driver().version or ())),
        "nvrtc": ".".join(map(str, nvrtc.choose().version)),
        "torch": torch.__version__,
        "git": git("rev-parse", "--short", "HEAD") or "?",
        "dirty": bool(git("status", "--porcelain", "--", "kernels_cu", "kdtree_cupy")),
        "clock": "graph",
    }


def measure(
    shape: tuple[int, ...], library: KernelLibrary, splits: Any, warm: bool, x: Inputs
) -> dict[str, Any]:
    """Check, then time one shape; the row has no times if it was wrong."""
    batch, heads, nodes, prefix = shape
    arguments = lambda cache: (x.q, cache, x.tree_kv, x.mask, x.lengths)  # noqa: E731
    out = kd.verify_attn(*arguments(x.cache), scale=SCALE, library=library, splits=splits)
    worst = errors(x, out, prefix)
    row = dict(zip(("frobenius", "one_minus_cosine", "lse_error"), worst, strict=True))
    if not all(error <= bar for error, bar in zip(worst, BAR, strict=True)):
        return row | {"right": False}
    copies = 1 if warm else min(12, 1 + int(120e6 / (x.cache.numel() * 2)))
    caches = [x.cache, *(x.cache.clone() for _ in range(copies - 1))]
    calls = [
        lambda c=c: kd.verify_attn(*arguments(c), scale=SCALE, library=library, splits=splits, out=out)
        for c in caches
    ]
    flops = 2 * batch * heads * nodes * (prefix + nodes) * (576 + 512)
    median, low, high, n = time_graph(calls, max(15, flops / 400e6))
    return row | {
        "right": True,
        "us": median,
        "us_p20": low,
        "us_p80": high,
        "n": n,
        "tflops": flops / median / 1e6,
    }


def base_row(shape: tuple[int, ...], rate: float, bandwidth: float) -> dict[str, Any]:
    """Return the columns that do not depend on who computes: shape, floor, targets."""
    batch, heads, nodes, prefix = shape
    flops, rows = 2 * batch * heads * nodes * (prefix + nodes) * 1088, batch * (prefix + nodes)
    floor = max(flops / rate / 1e6, (1152 * rows + 2176 * batch * heads * nodes) / bandwidth / 1e6)
    peer, target = TABLE.get(shape, (None, None))
    names = dict(zip(("b", "H", "q", "prefix"), shape, strict=True))
    return names | {"dtype": "bfloat16", "floor_us": floor, "published_peer_us": peer, "target_us": target}


SHOWN = (
    "b",
    "H",
    "q",
    "prefix",
    "variant",
    "l2",
    "us",
    "tflops",
    "floor_us",
    "right",
    "frobenius",
    "target_us",
)


def show(row: dict[str, Any]) -> None:
    """Print one line."""
    text = {k: f"{v:.4g}" if isinstance(v, float) else v for k, v in row.items() if k in SHOWN}
    click.echo(" ".join(f"{k}={v}" for k, v in text.items()))


def write(out: Path, rows: list[dict[str, Any]], common: dict[str, Any]) -> None:
    """Write all rows as CSV."""
    columns = list(dict.fromkeys(key for row in rows for key in row)) + list(common)
    with out.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(row | common for row in rows)


@click.command()
@click.option("--out", type=click.Path(path_type=Path), help="CSV to write.")
@click.option("--shapes", "which", type=click.Choice(["table", "all"]), default="all")
@click.option("--variant", "variants", multiple=True, default=("",), help="Macros: KD_STAGES=4,KD_LAZY=0.")
@click.option("--splits", default="auto")
@click.option("--cold/--no-cold", default=True, help="Also time with cold caches.")
@click.option("--peer/--no-peer", default=True, help="Also time torch's attention.")
def main(
    out: Path | None, which: str, variants: tuple[str, ...], splits: str, cold: bool, peer: bool
) -> None:
    """Check and time verify_attn; exit code 1 if a result was wrong."""
    rate, bandwidth = ceilings()
    common = provenance() | {"matmul_tflops": round(rate, 1), "copy_tb_s": round(bandwidth, 3)}
    click.echo(str(common))
    libraries = {
        v: KernelLibrary(backend="cuda", defines=dict(w.split("=") for w in v.split(",") if w))
        for v in variants
    }
    rows: list[dict[str, Any]] = []
    for shape in dict.fromkeys([*TABLE, *MORE, *HEAT] if which == "all" else TABLE):
        x, base = make(*shape), base_row(shape, rate, bandwidth)
        for variant, library in libraries.items():
            for warm in (True, False) if cold and shape in TABLE else (True,):
                row = base | {"provider": "kdtree_cupy", "variant": variant, "splits": splits}
                row["l2"] = "warm" if warm else "cold"
                row |= measure(shape, library, int(splits) if splits.isdigit() else splits, warm, x)
                rows.append(row)
                show(row)
        if peer and shape in TABLE:
            median, low, high, n = time_graph([sdpa(x, shape[3])], 1000, 5)
            times = {"us": median, "us_p20": low, "us_p80": high, "n": n}
            rows.append(base | {"provider": "torch sdpa", "l2": "warm"} | times)
        del x
        torch.cuda.empty_cache()
    for row in rows:
        row["share_of_floor"] = row["floor_us"] / row["us"] if "us" in row else None
    if out:
        write(out, rows, common)
    sys.exit(any(row.get("right") is False for row in rows))


if __name__ == "__main__":
    main()
