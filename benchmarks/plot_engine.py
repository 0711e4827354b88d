"""Figure of engine rounds from a table of bench_engine.py: how long each stage takes, what a round brings.

python benchmarks/plot_engine.py benchmarks/results/engine_h200.csv
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot
import numpy as np
from matplotlib.figure import Figure

from kdtree_cupy import style
from kdtree_cupy.files import atomic_file

Row = dict[str, Any]
FOLDER = Path(__file__).resolve().parent / "results" / "figures"
STAGES = {
    "draft": "draft", "build": "build trees", "layers": "layers", "head": "output head",
    "accept_commit": "accept, commit", "host": "Python",
}  # fmt: skip
MODELS = {
    "smollm2": "SmolLM2-135M, block drafter, float32",
    "kimi": "4 layers of Kimi K2's shapes, random, float16",
}


def plot_stages(rows: list[Row]) -> Figure:
    """Stacked times of a round's stages; above each bar tokens per round where the model is real."""
    figure, axes = mpl.pyplot.subplots(2, 2, figsize=(8.4, 6.2), layout="constrained", sharex=True)
    for (model, title), across in zip(MODELS.items(), axes, strict=True):
        for batch, ax in zip((1, 8), across, strict=True):
            own = [row for row in rows if row["model"] == model and row["batch"] == str(batch)]
            bottom, places = np.zeros(len(own)), np.arange(len(own))
            for colour, (stage, label) in zip(style.CYCLE, STAGES.items(), strict=False):
                height = np.array([float(row[f"{stage}_ms"]) for row in own])
                ax.bar(places, height, bottom=bottom, color=colour, label=label)
                bottom += height
            for place, top, row in zip(places, bottom, own, strict=True):
                if model == "smollm2":
                    ax.annotate(
                        f"{float(row['tau']):.2f}", (place, top), ha="center", va="bottom", fontsize=7
                    )
            names = [row["mode"] if row["mode"] == "ar" else f"{row['mode']}\n{row['budget']}" for row in own]
            ax.set_xticks(places, names)
            ax.set_title(f"{title}, batch {batch}", fontsize=8)
            ax.set_ylabel("ms a round")
    axes[0, 1].legend(loc="upper left", ncols=2)
    one = rows[0]
    figure.suptitle(
        f"Stages of a round (sums of a run that waits after each); numbers: tokens per round\n"
        f"{one['gpu']}, driver {one['driver']}, CuPy {one['cupy']}, commit {one['commit']}",
        fontsize=8,
    )
    return figure


def main(table: Path) -> None:
    """Draw the figure of a table."""
    mpl.use("agg")
    with table.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    with style.figure_style(), mpl.rc_context({"svg.fonttype": "none"}):
        figure = plot_stages(rows)
        with atomic_file(FOLDER / "engine_stages.svg") as handle:
            figure.savefig(handle, format="svg", metadata={"Date": None})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
