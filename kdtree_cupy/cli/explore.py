"""``kdtree explore``: rounds of a trace on one self-contained page."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import click

from .study import _budgets, _show_costs
from .study_parts import expand


@click.command(name="explore", context_settings={"show_default": True, "help_option_names": ["-h", "--help"]})
@click.option(
    "--html", "out", type=click.Path(dir_okay=False, path_type=Path), required=True, metavar="OUT",
    help="The page to write.",
)  # fmt: skip
@click.option(
    "--trace",
    "--traces",
    "-t",
    "traces",
    multiple=True,
    metavar="PATH",
    help="Trace (.kdtr, .npz, .safetensors) or folder of traces; repeatable.  [default: the bundled ones]",
)
@click.option(
    "--budgets", "-b", metavar="LIST", callback=_budgets,
    help="Draft nodes to choose from, such as 4,16,64.  [default: 16 sizes from 1 to 256]",
)  # fmt: skip
@click.option(
    "--cost", "-c", multiple=True, metavar="NAME|FILE|list", callback=_show_costs,
    help="Cost table for predicted speedups, repeatable; 'list' shows the names.  [default: all]",
)  # fmt: skip
@click.option(
    "--tokens", type=click.IntRange(min=1), default=480, metavar="N",
    help="Tokens of each trace on the page, at least one whole sequence: about 4 KB each.",
)  # fmt: skip
def command(
    out: Path, traces: tuple[str, ...], budgets: list[int] | None, cost: tuple[str, ...], tokens: int
) -> None:
    """Write a page to look at rounds of a trace by hand: sliders, tree, mask, tau, predicted speedup.

    The page needs no server and loads nothing; it builds trees and replays them itself.  In a notebook the
    same is kdtree_cupy.explore(trace).

    \b
    Examples:
      kdtree explore --html explore.html
      kdtree explore --html mine.html --trace mine.kdtr --budgets 4,16,64 --cost caddtree-a800-8b
    """  # noqa: D301 (click reads the backspace)
    from ..cost import load_cost
    from ..explorer import BUDGETS, Explorer
    from ..explorer.page import write_page

    costs = [load_cost(name) for name in cost] if cost else None
    explorer = Explorer(expand(traces) or None, costs=costs, budgets=BUDGETS if budgets is None else budgets)
    command_line = shlex.join(["kdtree", *sys.argv[1:]])
    click.echo(str(write_page(explorer, out, tokens=tokens, command=command_line)))
