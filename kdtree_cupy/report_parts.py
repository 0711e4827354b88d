"""What report pages share: figures drawn and embedded, tables as CSV, templates filled."""

from __future__ import annotations

import base64
import csv
import io
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from . import style
from .files import encodable

_TEMPLATES = Path(__file__).resolve().parent / "templates"


def draw_figures(
    result: Any, figures: Sequence[tuple[Any, ...]], folder: Path, progress: Callable[[int], object] | None
) -> Iterator[dict[str, Any]]:
    """Draw (name, short title, title, function, text) of ``result``; yield what a template needs.

    A function that returns None has nothing to show; a text may be a function of the result.
    """
    import matplotlib as mpl

    mpl.use("Agg", force=False)
    import matplotlib.pyplot as plt

    for name, short, title, function, text in figures:
        with style.figure_style():
            figure = function(result)
        if figure is None:
            continue
        paths = style.save(figure, folder, name)
        plt.close(figure)
        svg = base64.b64encode(paths[1].read_bytes()).decode("ascii")
        said = text if isinstance(text, str) else text(result)
        yield {"name": name, "short": short, "title": title, "text": said, "svg": svg}
        if progress is not None:
            progress(1)


def write_csv(path: Path, columns: Sequence[str], rows: Sequence[dict[str, Any]]) -> None:
    """Write rows as CSV: floats with six digits, None as nothing."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: _plain(row[key]) for key in columns} for row in rows)
    path.write_text(buffer.getvalue(), encoding="utf-8")


def _plain(value: Any) -> Any:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else value


def render(template: str, context: dict[str, Any], *, html: bool) -> str:
    """Return a template filled with ``context``; strings are escaped for HTML, or for Markdown."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=html,
        undefined=StrictUndefined,
        keep_trailing_newline=True,
    )
    if not html:  # strings from a trace must not become markup in a Markdown viewer either
        environment.finalize = lambda value: _markdown(value) if isinstance(value, str) else value
    return encodable(environment.get_template(template).render(context))


def _markdown(text: str) -> str:
    for mark, safe in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("|", "&#124;"), ("`", "'")):
        text = text.replace(mark, safe)
    return " ".join(text.splitlines()) if "\n" in text.strip() else text
