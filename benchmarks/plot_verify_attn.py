"""Figures of verify_attn from tables of bench_verify_attn.py: latency over tree and prefix, roofline.

python benchmarks/plot_verify_attn.py benchmarks/results/verify_attn_h200.csv --figure heat
python benchmarks/plot_verify_attn.py benchmarks/results/verify_attn_fp8_h200.csv --figure roofline
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import matplotlib as mpl
import matplotlib.pyplot
import numpy as np
from matplotlib.figure import Figure
from PIL import Image

from kdtree_cupy import style
from kdtree_cupy.files import atomic_file

Row = dict[str, Any]
FOLDER = Path(__file__).resolve().parent / "results" / "figures"
LABELS = {
    "bfloat16": "bfloat16 rows",
    "fp8 scaled": "fp8 rows of 656 bytes",
    "fp8 plain": "fp8 rows of 576 bytes",
}
DPI = 110
"""Of the PNG files: they lie in the repository."""


def read(path: Path) -> list[Row]:
    """Return the rows of verify_attn that were right, numbers as numbers."""
    with path.open(encoding="utf-8", newline="") as handle:
        rows = [r for r in csv.DictReader(handle) if r["provider"] == "kdtree_cupy" and r["right"] == "True"]
    numbers = ("b", "H", "q", "prefix", "us", "tflops", "bytes", "matmul_tflops", "copy_tb_s")
    return [row | {name: float(row[name]) for name in numbers} for row in rows]


def machine(rows: Sequence[Row]) -> str:
    """Return what the figures say of their origin."""
    one = rows[0]
    return f"{one['gpu']}, driver {one['driver']}, NVRTC {one['cuda']}, commit {one['commit']}"


def plot_heat(rows: Sequence[Row], heads: int = 8) -> Figure:
    """Latency of one request over nodes and prefix, a panel for each kind of KV rows."""
    own = [r for r in rows if r["b"] == 1 and r["H"] == heads and r["l2"] == "warm"]
    among = {p: {r["q"] for r in own if r["prefix"] == p} for p in {r["prefix"] for r in own}}
    own = [r for r in own if len(among[r["prefix"]]) > 1]  # lone shapes are no part of the map
    nodes, prefixes = (sorted({r[name] for r in own}) for name in ("q", "prefix"))
    kinds = [kind for kind in LABELS if any(r["dtype"] == kind for r in own)]
    across = min(2, len(kinds))
    down = -(-len(kinds) // across)
    figure, axes = mpl.pyplot.subplots(
        down, across, figsize=(1 + 3.4 * across, 0.6 + 2.7 * down), sharex=True, sharey=True, squeeze=False,
        layout="constrained",
    )  # fmt: skip
    norm = mpl.colors.LogNorm(min(r["us"] for r in own), max(r["us"] for r in own))
    for ax, kind in zip(axes.flat, kinds, strict=False):
        grid = np.full((len(nodes), len(prefixes)), np.nan)
        for r in own:
            if r["dtype"] == kind:
                grid[nodes.index(r["q"]), prefixes.index(r["prefix"])] = r["us"]
        image = ax.imshow(grid, norm=norm, aspect="auto", origin="lower")
        for (i, j), us in np.ndenumerate(grid):
            if np.isfinite(us):
                colour = "white" if norm(us) < 0.6 else "black"
                ax.text(j, i, f"{us:.0f}", ha="center", va="center", fontsize=7, color=colour)
        ax.set_xticks(range(len(prefixes)), [f"{p / 1024:g}k" if p >= 1024 else f"{p:g}" for p in prefixes])
        ax.set_yticks(range(len(nodes)), [f"{n:g}" for n in nodes])
        ax.set_title(LABELS[kind])
        ax.grid(visible=False)
    for ax in axes[-1]:
        ax.set_xlabel("prefix: KV rows")
    for ax in axes[:, 0]:
        ax.set_ylabel("N: nodes, root included")
    figure.colorbar(image, ax=axes, label="us a call")
    figure.suptitle(f"verify_attn, one request, {heads} heads\n{machine(rows)}", fontsize=8)
    return figure


def plot_roofline(rows: Sequence[Row]) -> Figure:
    """Operations per second against operations per byte, under both ceilings of the same run."""
    own = [r for r in rows if r["l2"] == "cold" or r["prefix"] * r["b"] * 656 > 1e8]
    figure, ax = mpl.pyplot.subplots(figsize=(6.0, 4.0), layout="constrained")
    reach, bandwidth = own[0]["matmul_tflops"], own[0]["copy_tb_s"]
    intensity = np.array([r["tflops"] * 1e6 * r["us"] / r["bytes"] for r in own])
    x = np.geomspace(intensity.min() / 1.5, intensity.max() * 1.5, 100)
    ax.plot(x, np.minimum(reach, bandwidth * x), color=style.GREY, label="ceiling")
    corner = reach / bandwidth
    ax.annotate(
        f"{bandwidth:.2f} TB/s",
        (x[0] * 1.2, bandwidth * x[0] * 1.2),
        xytext=(4, -14),
        textcoords="offset points",
    )
    ax.annotate(f"{reach:.0f} TFLOP/s", (corner, reach), xytext=(0, 5), textcoords="offset points")
    for i, (kind, label) in enumerate(LABELS.items()):
        chosen = [j for j, r in enumerate(own) if r["dtype"] == kind]
        reached = [own[j]["tflops"] for j in chosen]
        ax.plot(intensity[chosen], reached, style.MARKERS[i], color=style.CYCLE[i], markersize=4, label=label)
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlabel("operations per byte that must move")
    ax.set_ylabel("TFLOP/s, cold cache")
    ax.set_title(f"verify_attn; {machine(rows)}", fontsize=8)
    ax.legend(loc="lower right")
    return figure


def save(figure: Figure, folder: Path, name: str) -> None:
    """Write a PNG of 64 colours and an SVG whose text is text: both small."""
    raw, small = io.BytesIO(), io.BytesIO()
    figure.savefig(raw, format="png", dpi=DPI)
    Image.open(raw).convert("RGB").quantize(64).save(small, format="png", optimize=True)
    with atomic_file(folder / f"{name}.png") as handle:
        handle.write(small.getvalue())
    with mpl.rc_context({"svg.fonttype": "none"}), atomic_file(folder / f"{name}.svg") as handle:
        figure.savefig(handle, format="svg", metadata={"Date": None})


FIGURES = {"heat": plot_heat, "roofline": plot_roofline}


@click.command()
@click.argument("table", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--figure", "figures", multiple=True, default=tuple(FIGURES), type=click.Choice(list(FIGURES)))
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), default=FOLDER, show_default=False)
def main(table: Path, figures: tuple[str, ...], out: Path) -> None:
    """Draw the figures of TABLE."""
    mpl.use("agg")
    rows = read(table)
    with style.figure_style():
        for name in figures:
            save(FIGURES[name](rows), out, f"verify_attn_{name}")


if __name__ == "__main__":
    main()
