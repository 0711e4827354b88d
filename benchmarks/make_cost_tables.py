"""Build the cost tables h200-kimi-h8 and h200-kimi-h64 from tables of results, and draw what they say.

python benchmarks/make_cost_tables.py benchmarks/results/*.csv --figures docs/images
"""

from __future__ import annotations

import json
from pathlib import Path

import click
import matplotlib as mpl

from kdtree_cupy import plots_cost, style
from kdtree_cupy.cost_build import build_table, read_measurements
from kdtree_cupy.cost_study import fixed_and_per_round, load_parts, tau_by_budget
from kdtree_cupy.files import atomic_file
from kdtree_cupy.trace import bundled_traces, load_trace

NAMES = {"h200-kimi-h8": 8, "h200-kimi-h64": 64}
COSTS = Path(__file__).resolve().parents[1] / "kdtree_cupy" / "costs"


@click.command()
@click.argument(
    "tables", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
@click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), default=COSTS, help="Folder of the tables."
)
@click.option("--figures", type=click.Path(file_okay=False, path_type=Path), help="Folder for figures.")
@click.option(
    "--trace", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Acceptance is of this."
)
def main(tables: tuple[Path, ...], out: Path, figures: Path | None, trace: Path | None) -> None:
    """Write a JSON a table, and three figures each."""
    found = read_measurements(tables)
    for name, heads in NAMES.items():
        path = out / f"{name}.json"
        with atomic_file(path) as handle:
            handle.write((json.dumps(build_table(found, name, heads=heads), indent=1) + "\n").encode())
        click.echo(f"wrote {path}")
        if figures:
            draw(name, path, figures, trace or bundled_traces()[0])


def draw(name: str, path: Path, figures: Path, trace_path: Path) -> None:
    """Draw speedup with its stack, best budgets, and budgets per round."""
    mpl.use("Agg")
    figures.mkdir(parents=True, exist_ok=True)
    parts, trace = load_parts(path), load_trace(trace_path)
    budgets = [int(n) for n in parts.table.nodes]
    tau = tau_by_budget(trace, budgets)
    shown = [int(c) for c in parts.table.contexts if c >= 2048][:3]
    rules = fixed_and_per_round(trace, parts.table, budgets)
    title = f"{parts.table.label()}\nacceptance: {trace.name}; 95% bootstrap over sequences"
    with style.figure_style():
        drawn = {
            "speedup": plots_cost.plot_speedup_stack(parts, tau, trace.name, contexts=shown),
            "ridge": plots_cost.plot_ridge(parts, tau, trace.name, batches=(1, 8, 64)),
            "rules": plots_cost.plot_budget_rules(rules, title),
        }
        for what, figure in drawn.items():
            for written in style.save(figure, figures, f"cost_{what}_{name}"):
                click.echo(f"wrote {written}")


if __name__ == "__main__":
    main()
