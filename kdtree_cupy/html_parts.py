"""Small pieces of HTML for notebooks: tables that escape what they show and say what they leave out."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import Any

MOST_ROWS = 60
_CELL = (
    "padding:2px 10px;border-bottom:1px solid #d9dee3;white-space:nowrap;font-variant-numeric:tabular-nums"
)


def number(value: Any, digits: int = 3) -> str:
    """Return a value for a cell: floats with ``digits`` digits behind the point, None as a dash.

    >>> number(2.64999), number(7), number(None), number("a")
    ('2.650', '7', '-', 'a')
    """
    if value is None or (isinstance(value, float) and value != value):
        return "-"
    return f"{value:.{digits}f}" if isinstance(value, float) else str(value)


def table(
    head: Sequence[str],
    rows: Iterable[Sequence[Any]],
    *,
    text: int = 1,
    caption: str = "",
    most: int = MOST_ROWS,
) -> str:
    """Return an HTML table; every cell is escaped.

    Parameters
    ----------
    head : sequence of str
        Names of the columns.
    rows : iterable of sequences
        Cells, as :func:`number` shows them.
    text : int
        How many of the first columns are text, set to the left.
    caption : str
    most : int
        Further rows are counted instead of shown.
    """
    rows = list(rows)

    def line(cells: Sequence[Any], tag: str, more: str = "") -> str:
        sides = ("left" if i < text else "right" for i in range(len(cells)))
        inner = (
            f'<{tag} style="text-align:{side};{_CELL}{more}">{html.escape(number(cell))}</{tag}>'
            for side, cell in zip(sides, cells, strict=True)
        )
        return f"<tr>{''.join(inner)}</tr>"

    parts = ['<table style="border-collapse:collapse;font-size:13px">']
    if caption:
        parts.append(f'<caption style="text-align:left;padding:4px 10px">{html.escape(caption)}</caption>')
    parts.append(line(head, "th", ";background:#f4f6f8;color:#1b1f24"))
    parts += [line(row, "td") for row in rows[:most]]
    if len(rows) > most:
        parts.append(
            f'<tr><td colspan="{len(head)}" style="{_CELL}">... and {len(rows) - most} more rows</td></tr>'
        )
    return "".join([*parts, "</table>"])
