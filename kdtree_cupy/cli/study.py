"""``kdtree study``: replay policies on traces, write a report."""

from __future__ import annotations

import os
import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from . import printable

if TYPE_CHECKING:
    from tqdm import tqdm

    from ..study import StudyResult

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
    "--shootout/--no-shootout",
    default=True,
    help="Also compare all policies in pairs at budgets 16 and 64: shootout.html.",
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
def command(
    more_traces: tuple[str, ...],
    traces: tuple[str, ...],
    budgets: list[int] | None,
    policies: str,
    cost: tuple[str, ...],
    stop_tokens: list[int] | None,
    jobs: int | None,
    dask: str | None,
    shootout: bool,
    seed: int,
    out: Path,
    quiet: bool,
) -> None:
    """Replay tree policies on recorded traces and write a report.

    With no argument: the bundled traces (SmolLM2-135M with a 15-position block drafter, HumanEval prompts,
    greedy and temperature 1), 12 budgets, the policies chain, ddtree and static.

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
    from ..shootout import default_policies, run_shootout
    from ..shootout_report import FIGURES as SHOOTOUT_FIGURES
    from ..study import BUDGETS, run_study
    from ..study_report import output_folder, write_report
    from ..study_text import FIGURES
    from ..trace import bundled_traces, load_trace

    with output_folder(out):
        files = _expand((*traces, *more_traces)) or bundled_traces()
        loaded = [load_trace(path, stop_tokens=stop_tokens) for path in files]
        chosen = () if "none" in cost else (cost or _DEFAULT_COSTS)
        names = list(dict.fromkeys(["chain", *_list(policies)]))
        with _bar(sum(t.tokens.size for t in loaded) * len(names), "replaying", quiet) as bar:
            result = run_study(
                loaded,
                budgets=BUDGETS if budgets is None else budgets,
                policies=names,
                costs=[load_cost(name) for name in chosen],
                jobs=jobs or min(_cores(), len(loaded) * len(names)),
                dask=dask,
                seed=seed,
                progress=bar.update,
                command=shlex.join(["kdtree", *sys.argv[1:]]),
            )
        contest = None
        if shootout:
            with _bar(len(loaded) * (len(default_policies()) + 1), "shoot-out", quiet) as bar:
                more = {"jobs": jobs or _cores(), "dask": dask, "seed": seed, "progress": bar.update}
                contest = run_shootout(loaded, **more)
        pictures = len(FIGURES) + (len(SHOOTOUT_FIGURES) if shootout else 0)
        with _bar(pictures, "drawing", quiet) as bar:
            page = write_report(result, out, shootout=contest, progress=bar.update)
    if not quiet:
        _print_skipped(result)
        _print_table(result)
        click.echo(f"{time.perf_counter() - started:.1f} s. Report, tables and figures:")
    click.echo(str(page))


def _bar(total: int, what: str, quiet: bool) -> tqdm:
    from tqdm import tqdm

    return tqdm(total=total, desc=what, disable=quiet or None, leave=False, unit_scale=True, file=sys.stderr)


def _cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS
        return os.cpu_count() or 1


def _expand(paths: tuple[str, ...]) -> list[Path]:
    """Return the files; a folder stands for the traces in it."""
    out: list[Path] = []
    for name in paths:
        path = Path(name)
        if path.is_dir():
            inside = sorted(p for p in path.iterdir() if p.suffix in (".kdtr", ".npz", ".safetensors"))
            if not inside:
                raise ValueError(f"{path}: the folder holds no .kdtr, .npz or .safetensors file")
            out += inside
        else:
            out.append(path)
    return list(dict.fromkeys(out))


def _print_skipped(result: StudyResult) -> None:
    """Say which budgets a policy does not take."""
    from ..policies import POLICIES

    for name, replayed in result.traces[0].replays.items():
        left = [str(b) for b in result.budgets if b not in replayed.acceptance.budgets]
        if left:
            most = POLICIES[name].max_budget
            click.echo(f"{name} takes budgets up to {most}; skipped: {', '.join(left)}")


def _print_table(result: StudyResult) -> None:
    """Print pooled tau: a line per policy, a column per budget."""
    click.echo("tau = tokens per round, bonus counted, pooled; B = draft nodes, root excluded\n")
    head = "".join(f"{b:>7}" for b in result.budgets)
    for part in result.traces:
        click.echo(f"{printable(part.trace.name):24} B ={head}")
        for name in result.policies:
            rows = result.select(trace=part.trace.name, policy=name, subset="all")
            by_budget = {row["budget"]: f"{row['tau_pooled']:7.3f}" for row in rows}
            click.echo(f"  {name:25} " + "".join(by_budget.get(int(b), " " * 7) for b in result.budgets))
        click.echo()
