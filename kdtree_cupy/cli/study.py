"""``kdtree study``: replay policies on traces, write a report."""

from __future__ import annotations

import shlex
import sys
import time
from pathlib import Path

import click

from . import printable
from .study_parts import bar, cores, expand, print_skipped, print_table

_DEFAULT_COSTS = ("caddtree-a800-8b", "ddtree-h200-8b")


def _list(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _integers(value: str | None, example: str) -> list[int] | None:
    if value is None:
        return None
    try:
        return [int(part) for part in _list(value)]
    except ValueError as error:
        raise click.BadParameter(f"got {value!r}, wanted integers and commas, such as {example}") from error


def _budgets(ctx: click.Context, parameter: click.Parameter, value: str | None) -> list[int] | None:
    return _integers(value, "4,16,64")


def _tokens(ctx: click.Context, parameter: click.Parameter, value: str | None) -> list[int] | None:
    return _integers(value, "2,32000")


def _show_costs(ctx: click.Context, parameter: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
    if "list" in value and not ctx.resilient_parsing:
        from ..cost import available, load_cost

        for name in available():
            table = load_cost(name)
            click.echo(f"{name:20}  {table.kind:9}  {table.hardware}; {table.model}")
        ctx.exit(0)
    return value


@click.command(name="study", context_settings={"show_default": True, "help_option_names": ["-h", "--help"]})
@click.argument("more_traces", nargs=-1, metavar="[TRACE]...")
@click.option(
    "--traces",
    "-t",
    multiple=True,
    metavar="PATH",
    help="Trace (.kdtr, .npz, .safetensors) or folder of traces; repeatable.  [default: the bundled ones]",
)
@click.option(
    "--budgets",
    "-b",
    metavar="LIST",
    callback=_budgets,
    help="Draft nodes, root excluded, 0..1024, such as 4,16,64.  [default: 12 sizes from 4 to 1024]",
)
@click.option(
    "--policies",
    "-p",
    default="chain,ddtree,static",
    metavar="LIST",
    help="Policies to replay; chain is always added.",
)
@click.option(
    "--cost",
    "-c",
    multiple=True,
    metavar="NAME|FILE|list",
    callback=_show_costs,
    help="Cost table for predicted speedups, repeatable; 'list' shows the names, 'none' leaves speedups out."
    f"  [default: {', '.join(_DEFAULT_COSTS)}]",
)
@click.option(
    "--stop-tokens",
    metavar="LIST",
    callback=_tokens,
    help="Ids of the tokens that end a response, for traces that do not say.",
)
@click.option(
    "--jobs",
    "-j",
    type=click.IntRange(min=1),
    metavar="N",
    help="Processes.  [default: one per core, at most one per trace and policy]",
)
@click.option(
    "--dask",
    metavar="local|ADDRESS",
    help="Run on a Dask cluster: 'local', or a scheduler such as tcp://host:8786 (trusted networks only).",
)
@click.option(
    "--overlay",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Measured acceptance to draw over the figures, repeatable: a DDTree run (.pt, read without running "
    "code in it), responses of SGLang, vLLM or AIPerf, answers of EAGLE or Medusa (JSON, JSON lines).",
)
@click.option(
    "--shootout/--no-shootout",
    default=None,
    help="Also compare all policies in pairs at budgets 16 and 64: shootout.html; minutes on large traces."
    "  [default: with the bundled traces only]",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, help="Seed of the bootstrap.")
@click.option(
    "--out",
    "-o",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("study"),
    help="Folder for report.html, report.md, results.csv and figures.",
)
@click.option("--quiet", "-q", is_flag=True, help="Print only the path of the report.")
def command(  # noqa: PLR0913 (an option each)
    more_traces: tuple[str, ...],
    traces: tuple[str, ...],
    budgets: list[int] | None,
    policies: str,
    cost: tuple[str, ...],
    stop_tokens: list[int] | None,
    jobs: int | None,
    dask: str | None,
    overlay: tuple[Path, ...],
    shootout: bool | None,
    seed: int,
    out: Path,
    quiet: bool,
) -> None:
    """Replay tree policies on recorded traces and write a report.

    With no argument: the bundled traces (SmolLM2-135M with a 15-position block drafter, HumanEval prompts,
    greedy and temperature 1), 12 budgets, the policies chain, ddtree and static; then all policies against
    each other at budgets 16 and 64 (shootout.html).

    The replay is exact: for a greedy trace it is what a live run would accept, for a sampled one it has the
    same distribution.  No GPU is needed or used.

    \b
    Examples:
      kdtree study
      kdtree study --traces my_trace.kdtr --budgets 8,16,32,64 --out my_study
      kdtree study runs/*.npz --policies chain,ddtree --cost caddtree-a800-4b --stop-tokens 2
    """  # noqa: D301 (click reads the backspace)
    started = time.perf_counter()
    from ..cost import load_cost
    from ..importers import load_measured
    from ..shootout import default_policies, run_shootout
    from ..shootout_report import FIGURES as SHOOTOUT_FIGURES
    from ..study import BUDGETS, run_study
    from ..study_report import output_folder, write_report
    from ..study_text import FIGURES
    from ..trace import bundled_traces, load_trace

    shootout = not (traces or more_traces) if shootout is None else shootout
    with output_folder(out):
        files = expand((*traces, *more_traces)) or bundled_traces()
        loaded = [load_trace(path, stop_tokens=stop_tokens) for path in files]
        measured = [one for path in overlay for one in load_measured(path)]
        chosen = () if "none" in cost else (cost or _DEFAULT_COSTS)
        names = list(dict.fromkeys(["chain", *_list(policies)]))
        with bar(sum(t.tokens.size for t in loaded) * len(names), "replaying", quiet) as shown:
            result = run_study(
                loaded,
                budgets=BUDGETS if budgets is None else budgets,
                policies=names,
                costs=[load_cost(name) for name in chosen],
                jobs=jobs or min(cores(), len(loaded) * len(names)),
                dask=dask,
                seed=seed,
                progress=shown.update,
                command=shlex.join(["kdtree", *sys.argv[1:]]),
                overlays=measured,
            )
        contest = None
        if shootout:
            with bar(len(loaded) * (len(default_policies()) + 1), "shoot-out", quiet) as shown:
                more = {"jobs": jobs or cores(), "dask": dask, "seed": seed, "progress": shown.update}
                contest = run_shootout(loaded, **more)
        pictures = len(FIGURES) + (len(SHOOTOUT_FIGURES) if shootout else 0)
        with bar(pictures, "drawing", quiet) as shown:
            page = write_report(result, out, shootout=contest, progress=shown.update)
    if not quiet:
        for one in measured:
            click.echo(printable(one.describe()))
        print_skipped(result)
        print_table(result)
        click.echo(f"{time.perf_counter() - started:.1f} s. Report, tables and figures:")
    click.echo(str(page))
