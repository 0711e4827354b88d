"""``%tree`` and ``%study``: a tree of a trace, and a small acceptance study, below the cell."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from .. import cli, style
from ..cli.study import command as study_command
from ..cli.study_parts import expand, print_table
from ..progress import bar, in_notebook
from ..tree import DraftTree
from .run import Call

_HELP = {"help_option_names": ["-h", "--help"]}
_COSTS = ("caddtree-a800-8b", "ddtree-h200-8b")
BUDGETS = (4, 8, 16, 32, 64, 128)


@dataclass(frozen=True)
class TreeView:
    """The tree of one round: a drawing in a notebook, indented lines in a terminal."""

    explorer: Any
    setting: Any

    @property
    def tree(self) -> DraftTree:
        """The record itself."""
        return self.explorer.round(self.setting).tree

    def __repr__(self) -> str:
        found, trace = self.explorer.round(self.setting), self.explorer.traces[self.setting.trace]
        head = f"{trace.name}, position {self.setting.position}: {found.accepted} drafts accepted"
        text = lambda token: cli.printable(trace.text(token))  # noqa: E731
        return f"{head}\n{found.tree.to_text(text=text, path=found.path, max_nodes=60)}"

    def _repr_html_(self) -> str:
        from ..explorer import view

        parts = (part(self.explorer, self.setting) for part in (view.headline, view.passage, view.tree))
        return "".join(parts)


@click.command(context_settings=_HELP)
@click.argument("name", required=False, metavar="[NAME]")
@click.option("--trace", "-t", metavar="PATH", help="Trace file.  [default: the first bundled one]")
@click.option(
    "--position", "-n", type=click.IntRange(min=0), help="Root of the round.  [default: one of interest]"
)
@click.option("--budget", "-b", type=click.IntRange(0, 1024), default=16, help="Draft nodes.  [default: 16]")
@click.option("--policy", "-p", default="ddtree", metavar="POLICY", help="Tree policy.  [default: ddtree]")
@click.option("--ranks", "-k", type=click.IntRange(min=1), help="Ranks that may be used.  [default: all]")
@click.option("--depth", "-d", type=click.IntRange(min=1), help="Deepest node.  [default: all]")
@click.option("--temperature", type=float, default=1.0, help="Of the drafter's rows.  [default: 1]")
@click.pass_obj
def tree(
    call: Call,
    name: str | None,
    trace: str | None,
    position: int | None,
    budget: int,
    policy: str,
    ranks: int | None,
    depth: int | None,
    temperature: float,
) -> Any:
    """Draw the draft tree of one round of a trace, with what the target then said in orange.

    \b
    %tree --budget 32 --policy ddtree --position 33
    %tree NAME         a DraftTree or a Trace of this notebook
    """  # noqa: D301
    from ..explorer import Explorer, Setting
    from ..explorer.show import check_setting, interesting
    from ..trace import Trace, bundled_traces

    given: Any = bundled_traces()[0] if trace is None else trace
    if name is not None:
        given = call.variable(name, (DraftTree, Trace))
        if isinstance(given, DraftTree):
            return given
    explorer = Explorer(given, policies=[policy], budgets=[budget])
    setting = Setting(0, policy, budget, position or 0, ranks, depth, temperature)
    check_setting(explorer, setting)
    at = interesting(explorer, setting) if position is None else position
    return TreeView(explorer, Setting(0, policy, budget, at, ranks, depth, temperature))


class _Study(click.Command):
    """``kdtree study`` with its options, run here."""

    def invoke(self, ctx: click.Context) -> Any:
        return run_inline(ctx)


study = _Study(
    "study", params=study_command.params, context_settings=_HELP, callback=lambda **_: None,
    help="Replay tree policies on traces: table and figure below the cell.\n\n"
    "Options are those of `kdtree study`.  Without any: the first bundled trace, six budgets, chain, ddtree; "
    "with --out the report is written as well.  Returns the StudyResult.",
)  # fmt: skip


def run_inline(ctx: click.Context) -> Any:
    """Run a study and show its figure; return the result, which shows its table."""
    from ..cost import load_cost
    from ..importers import load_measured
    from ..plots import plot_tau
    from ..study import run_study
    from ..study_report import write_report
    from ..trace import bundled_traces, load_trace

    given = ctx.params
    chosen = {p for p in given if ctx.get_parameter_source(p) == click.core.ParameterSource.COMMANDLINE}
    files = expand((*given["traces"], *given["more_traces"])) or bundled_traces()[:1]
    traces = [load_trace(path, stop_tokens=given["stop_tokens"]) for path in files]
    policies = given["policies"].split(",") if "policies" in chosen else ["chain", "ddtree"]
    names = list(dict.fromkeys(["chain", *(name.strip() for name in policies)]))
    costs = () if "none" in given["cost"] else given["cost"] or _COSTS
    with bar(sum(t.tokens.size for t in traces) * len(names), "replaying", given["quiet"]) as shown:
        result = run_study(
            traces, budgets=given["budgets"] or BUDGETS, policies=names, costs=[load_cost(c) for c in costs],
            jobs=given["jobs"] or 1, dask=given["dask"], seed=given["seed"], progress=shown.update,
            command="%study", overlays=[one for path in given["overlay"] for one in load_measured(path)],
        )  # fmt: skip
    if in_notebook():
        with style.figure_style():
            _display(plot_tau(result))
    else:
        print_table(result)
    if "out" in chosen:
        click.echo(str(write_report(result, Path(given["out"]))))
    return result


def _display(figure: Any) -> None:
    import matplotlib.pyplot as plt
    from IPython.display import display

    display(figure)
    plt.close(figure)
