"""verify_attn on a GPU: checked against float64 on the very input, then timed by CUDA graph replay.

Inputs are N(0, 1) in bfloat16 with random trees, KV rows also in 8-bit floats.  Where those become bfloat16
rows first, errors are against the rounded numbers, and in columns "unrounded" against the others.  A graph
holds several calls; "warm" calls read one cache over and over, "cold" ones walk through copies of it that
together exceed the L2 cache.  Floors: operations over the rate of a large matrix product, and bytes over the
bandwidth of a large copy or read, both measured in the same run.

    python benchmarks/bench_verify_attn.py --out benchmarks/results/verify_attn_h200.csv
    python benchmarks/bench_verify_attn.py --shapes heat --every-row --no-peer --out OUT.csv
    python benchmarks/bench_verify_attn.py --shapes rows --every-row --no-peer --out OUT.csv
"""

from __future__ import annotations

import csv
import sys
from itertools import product
from pathlib import Path
from typing import Any

import click
import torch
from torch_graph import time_graph
from verify_attn_inputs import KV_SCALE, ROW_BYTES, SCALE, Inputs, errors, make, rounds_rows, sdpa, with_rows

import kdtree_cupy as kd
from kdtree_cupy.library import KernelLibrary
from kdtree_cupy.timing import Ceilings, ceilings, machine

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
ROWS = ((1, 8, 1, 2048), (1, 8, 4, 131072), (1, 16, 1, 32768), (64, 16, 1, 8192))
"""What 8-bit rows are timed on besides."""
BAR = (4e-3, 1e-5, 1e-4)
"""Allowed: relative Frobenius error, 1 - cosine, error of lse (design, numerics)."""


def measure(
    shape: tuple[int, ...], library: KernelLibrary, splits: Any, warm: bool, x: Inputs, kind: str
) -> dict[str, Any]:
    """Check, then time one shape; the row has no times if it was wrong."""
    x, truth = with_rows(x, kind)
    options = {"scale": SCALE, "library": library, "splits": splits, "kv_scale": KV_SCALE[kind]}
    arguments = lambda cache: (x.q, cache, x.tree_kv, x.mask, x.lengths)  # noqa: E731
    out = kd.verify_attn(*arguments(x.cache), **options)
    row: dict[str, Any] = {}
    if rounds_rows(kind, shape, splits):
        row["frobenius_unrounded"], _, row["lse_error_unrounded"] = errors(truth, out, shape[3])
        truth = truth._replace(cache=truth.cache.bfloat16(), tree_kv=truth.tree_kv.bfloat16())
    worst = errors(truth, out, shape[3])
    row |= dict(zip(("frobenius", "one_minus_cosine", "lse_error"), worst, strict=True))
    if not all(error <= bar for error, bar in zip(worst, BAR, strict=True)):
        return row | {"right": False}
    del truth
    copies = 1 if warm else min(24, 1 + int(120e6 / x.cache.nbytes))
    caches = [x.cache, *(x.cache.clone() for _ in range(copies - 1))]
    calls = [lambda c=c: kd.verify_attn(*arguments(c), **options, out=out) for c in caches]
    found = time_graph(calls)
    return row | {"right": True, **found, "tflops": operations(shape) / found["us"] / 1e6}


def operations(shape: tuple[int, ...]) -> float:
    """Return the operations of a call, with every node of the tree seen."""
    batch, heads, nodes, prefix = shape
    return 2.0 * batch * heads * nodes * (prefix + nodes) * 1088


def base_row(shape: tuple[int, ...], kind: str, most: Ceilings) -> dict[str, Any]:
    """Return the columns that do not depend on who computes: shape, floor, targets."""
    batch, heads, nodes, prefix = shape
    moved = batch * (ROW_BYTES[kind] * (prefix + nodes) + 2176 * heads * nodes)
    peer, target = TABLE.get(shape, (None, None)) if kind == "bfloat16" else (None, None)
    names = dict(zip(("b", "H", "q", "prefix"), shape, strict=True))
    floor = max(moved / most.bytes_per_us, operations(shape) / most.flops_per_us)
    return names | {
        "dtype": kind,
        "bytes": moved,
        "floor_us": floor,
        "published_peer_us": peer,
        "target_us": target,
    }


SHOWN = (
    "b",
    "H",
    "q",
    "prefix",
    "dtype",
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
    for row in rows:
        row["share_of_floor"] = row["floor_us"] / row["us"] if "us" in row else None
    columns = list(dict.fromkeys(key for row in rows for key in row)) + list(common)
    with out.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(row | common for row in rows)


@click.command()
@click.option("--out", type=click.Path(path_type=Path), help="CSV to write.")
@click.option("--shapes", "which", type=click.Choice(["table", "rows", "heat", "all"]), default="all")
@click.option("--every-row/--bfloat16-rows", default=False, help="Also time 8-bit KV rows.")
@click.option("--variant", "variants", multiple=True, default=("",), help="Macros: KD_STAGES=4,KD_LAZY=0.")
@click.option("--splits", default="auto")
@click.option("--cold/--no-cold", default=True, help="Also time with cold caches.")
@click.option("--peer/--no-peer", default=True, help="Also time torch's attention.")
def main(
    out: Path | None, which: str, every_row: bool, variants: tuple[str, ...], splits: str, cold: bool,
    peer: bool,
) -> None:  # fmt: skip
    """Check and time verify_attn; exit code 1 if a result was wrong."""
    most, kinds = ceilings("cuda"), tuple(ROW_BYTES) if every_row else ("bfloat16",)
    common = machine("cuda") | {"torch": torch.__version__, "clock": "graph"}
    common |= {
        "matmul_tflops": round(most.flops_per_us / 1e6, 1),
        "copy_tb_s": round(most.bytes_per_us / 1e6, 3),
    }
    common["command"] = " ".join(["python benchmarks/bench_verify_attn.py", *sys.argv[1:]])
    click.echo(str(common))
    libraries = {
        v: KernelLibrary(backend="cuda", defines=dict(w.split("=") for w in v.split(",") if w))
        for v in variants
    }
    chosen = {
        "table": [*TABLE],
        "rows": [*TABLE, *ROWS],
        "heat": [*TABLE, *HEAT],
        "all": [*TABLE, *MORE, *HEAT],
    }[which]
    rows: list[dict[str, Any]] = []
    for shape in dict.fromkeys(chosen):
        x = make(*shape)
        for kind, (variant, library) in product(kinds, libraries.items()):
            for warm in (True, False) if cold and shape in TABLE else (True,):
                row = base_row(shape, kind, most) | {
                    "provider": "kdtree_cupy",
                    "variant": variant,
                    "splits": splits,
                }
                row["l2"] = "warm" if warm else "cold"
                row |= measure(shape, library, int(splits) if splits.isdigit() else splits, warm, x, kind)
                rows.append(row)
                show(row)
        if peer and shape in TABLE:
            base = base_row(shape, "bfloat16", most) | {"provider": "torch sdpa", "l2": "warm"}
            rows.append(base | time_graph([sdpa(x, shape[3])], 5))
        if out:
            write(out, rows, common)
        del x
        torch.cuda.empty_cache()
    sys.exit(any(row.get("right") is False for row in rows))


if __name__ == "__main__":
    main()
