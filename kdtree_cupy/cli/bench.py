"""``kdtree bench``: measure every stage and the round on this machine, or compare two measurements."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from . import OUR_FAULT

if TYPE_CHECKING:
    from ..bench import Grid


def _numbers(_: click.Context, parameter: click.Parameter, text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise click.BadParameter(f"got {text!r}, wanted numbers such as 16,64,256") from None


def _words(_: click.Context, parameter: click.Parameter, text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(part.strip() for part in text.split(","))


@click.command(name="bench", context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--backend",
    type=click.Choice(["cuda", "host", "numpy"]),
    help="What to measure.  [default: cuda if there is a device, else host and numpy]",
)
@click.option("--quick", is_flag=True, help="One size a stage: seconds on a device.")
@click.option("--budgets", callback=_numbers, help="Draft nodes, such as 16,64,256.")
@click.option("--batches", callback=_numbers, help="Requests.")
@click.option("--prefixes", callback=_numbers, help="Tokens in the cache (attention).")
@click.option("--heads", callback=_numbers, help="Query heads (attention).")
@click.option("--dtypes", callback=_words, help="bfloat16, float16, float32.")
@click.option("--stages", callback=_words, help="Some of the stages; tree is tree_build and tree_accept.")
@click.option("--width", type=click.IntRange(1, 1024), help="Ranks K; at most the budget.")
@click.option("--vocab", type=click.IntRange(2, 1 << 20), help="Vocabulary V.")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("bench"),
    show_default=True,
    help="Folder for bench.csv, bench.json and figures.",
)
@click.option("--figures/--no-figures", "draw", default=True, help="Also draw.")
@click.option("--commit", default="", help="Commit to name in the table.  [default: ask git]")
@click.option("--compare", nargs=2, type=click.Path(exists=True, dir_okay=False, path_type=Path),
              help="Compare two tables (A before, B after) and measure nothing.")  # fmt: skip
@click.option("--across-gpus", is_flag=True, help="Compare rows of different GPUs, too.")
@click.pass_context
def command(
    ctx: click.Context, backend: str | None, quick: bool, out: Path, draw: bool, commit: str,
    compare: tuple[Path, Path] | None, across_gpus: bool, **sizes: Any,
) -> int:  # fmt: skip
    """Check, then time every stage and the round over a grid, on the GPU at hand.

    Every kernel is first compared with its reference on the very input; one that fails is not timed, and
    the exit code is 1.  Times are those of calls inside a replayed CUDA graph, with a cold and, where the
    inputs fit, a warm L2 cache.  Without a GPU the CPU backends are measured on a small grid; their rows and
    figures say so.
    """
    from ..bench import run_bench
    from ..bench_compare import compare as compared
    from ..bench_compare import table
    from ..bench_table import read_bench, write_bench
    from ..selftest import default_backend

    if compare:
        click.echo(table(compared(*map(read_bench, compare), across=across_gpus)))
        return 0
    found = default_backend()
    backends = (
        [backend] if backend else ["cuda"] if found == "cuda" else list(dict.fromkeys([found, "numpy"]))
    )
    said = " ".join(["kdtree bench", *(a for a in sys.argv[2:] if ctx.parent is not None)])
    record: dict[str, Any] = {"rows": [], "samples": [], "wrong": [], "clocks": [], "machine": {}}
    for name in backends:
        grid = _grid(name, quick, sizes)
        one = run_bench(name, grid, command=said, commit=commit, say=click.echo)
        for key, value in record.items():
            record[key] = value | {name: one[key]} if key == "machine" else value + one[key]
    if record["rows"]:
        out.mkdir(parents=True, exist_ok=True)
        for path in write_bench(record, out / "bench.csv"):
            click.echo(f"wrote {path}")
        if draw:
            _draw(out)
    for line in record["wrong"]:
        click.echo(f"WRONG, not timed: {line}", err=True)
    return OUR_FAULT if record["wrong"] else 0


def _grid(backend: str, quick: bool, sizes: dict[str, Any]) -> Grid:
    from ..bench import CPU, CPU_QUICK, QUICK, STAGES, Grid

    base = (QUICK if quick else Grid()) if backend == "cuda" else (CPU_QUICK if quick else CPU)
    given = {name: value for name, value in sizes.items() if value is not None}
    unknown = [s for s in given.get("stages", ()) if s not in STAGES]
    if unknown:
        raise ValueError(f"stages: got {unknown[0]!r}, wanted some of {', '.join(STAGES)}")
    return replace(base, **given)


def _draw(out: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from .. import style
    from ..bench_plots import figures
    from ..bench_table import read_bench

    with style.figure_style():
        for name, figure in figures(read_bench(out / "bench.csv")).items():
            for path in style.save(figure, out, name):
                click.echo(f"wrote {path}")
