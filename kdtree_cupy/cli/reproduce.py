"""``kdtree reproduce``: published numbers, recomputed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from ..reproduce import Row


def _shown(value: Any, digits: int) -> str:
    if isinstance(value, list):
        inner = ", ".join(_shown(v, digits) if isinstance(v, float) else str(v) for v in value)
        return f"[{inner}]"
    return f"{value:.{digits}f}" if digits else f"{value:g}"


@click.command("reproduce")
@click.argument("name", metavar="NAME|all")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list of {name, published, ours, digits}.")
@click.option("--failed", is_flag=True, help="Print only numbers that do not agree.")
def command(name: str, as_json: bool, failed: bool) -> None:
    """Recompute published numbers from published inputs and compare them, digit by digit.

    NAME is ddtree, sequoia, medusa, eagle, single_node, caddtree, leviathan, traversal, or all. The numbers
    and their sources lie in kdtree_cupy/published. The exit code is 1 if a number does not agree.

    \b
    Examples:
      kdtree reproduce all
      kdtree reproduce sequoia --json
    """  # noqa: D301 (click reads the backspace)
    from ..reproduce import reproduce

    rows = reproduce(name)
    bad = [row for row in rows if not row.agrees]
    shown = bad if failed else rows
    if as_json:
        click.echo(json.dumps([row.to_json() for row in shown], indent=1))
    else:
        _table(shown)
        click.echo(f"{len(rows) - len(bad)} of {len(rows)} numbers agree within their printed digits")
    if bad:
        raise click.exceptions.Exit(1)


def _table(rows: list[Row]) -> None:
    if not rows:
        return
    cells = [(r.name, _shown(r.published, r.digits), _shown(r.ours, r.digits), r) for r in rows]
    name, published = (max(len(c[i]) for c in cells) for i in (0, 1))
    for text, wanted, ours, row in cells:
        mark = "" if row.agrees else "   DIFFERS"
        note = f"   ({row.note})" if row.note else ""
        click.echo(f"{text:{name}}  published {wanted:>{published}}  ours {ours}{mark}{note}")
