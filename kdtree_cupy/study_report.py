"""Write a study to a folder: report.html, report.md, results.csv, speedup.csv, figures (PNG and SVG)."""

from __future__ import annotations

import base64
import csv
import io
import platform
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from . import style
from .study import StudyResult
from .study_table import COLUMNS, SPEEDUP_COLUMNS
from .study_text import FIGURES, cards, facts, method, tables
from .trace import LOOP_THRESHOLD
from .version import __version__

_TEMPLATES = Path(__file__).resolve().parent / "templates"


@contextmanager
def output_folder(folder: Path) -> Iterator[None]:
    """Fail now, not after minutes of work, if ``folder`` cannot be written; leave no empty folder behind.

    Raises
    ------
    OSError
        Names the folder and the reason.
    """
    missing = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".kdtree-"):
            pass
    except OSError as error:
        raise OSError(
            error.errno, f"output folder cannot be written: {error.strerror}", str(folder)
        ) from error
    try:
        yield
    finally:
        if missing and not any(folder.iterdir()):
            folder.rmdir()


def write_report(
    result: StudyResult, folder: Path, *, progress: Callable[[int], object] | None = None
) -> Path:
    """Write all files of a study; return the path of ``report.html``.

    Files are made in a hidden folder first and moved into place when all are complete, so an interruption
    or a full disk leaves what was there before.

    Parameters
    ----------
    result : StudyResult
    folder : Path
        Created if missing.
    progress : callable, optional
        Called with 1 per figure.
    """
    with output_folder(folder), _staged(folder) as stage:
        pictures = stage / "figures"
        pictures.mkdir()
        figures = list(_draw(result, pictures, progress))
        _write_csv(stage / "results.csv", COLUMNS, result.rows)
        if result.speedups:
            _write_csv(stage / "speedup.csv", SPEEDUP_COLUMNS, result.speedups)
        context = _context(result, figures)
        for name, escape in (("report.html", True), ("report.md", False)):
            (stage / name).write_text(_render(f"{name}.j2", context, html=escape), encoding="utf-8")
    return folder / "report.html"


@contextmanager
def _staged(folder: Path) -> Iterator[Path]:
    stage = Path(tempfile.mkdtemp(dir=folder, prefix=".partial-"))
    try:
        yield stage
        for path in sorted(stage.rglob("*")):
            target = folder / path.relative_to(stage)
            if path.is_dir():
                target.mkdir(exist_ok=True)
            else:
                path.replace(target)
    except OSError as error:
        if error.filename is not None and str(stage) not in str(error.filename):
            raise
        raise OSError(error.errno, error.strerror, str(folder)) from error
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def _draw(
    result: StudyResult, folder: Path, progress: Callable[[int], object] | None
) -> Iterator[dict[str, Any]]:
    import matplotlib as mpl

    mpl.use("Agg", force=False)
    import matplotlib.pyplot as plt

    for name, short, title, function, text in FIGURES:
        if name == "speedup" and not result.costs:
            continue
        with style.figure_style():
            figure = function(result)
        if figure is None:
            continue
        paths = style.save(figure, folder, name)
        plt.close(figure)
        svg = base64.b64encode(paths[1].read_bytes()).decode("ascii")
        yield {"name": name, "short": short, "title": title, "text": text(result), "svg": svg}
        if progress is not None:
            progress(1)


def _write_csv(path: Path, columns: Sequence[str], rows: Sequence[dict[str, Any]]) -> None:
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: _plain(row[key]) for key in columns} for row in rows)
    path.write_text(buffer.getvalue(), encoding="utf-8")


def _plain(value: Any) -> Any:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else value


def _context(result: StudyResult, figures: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "names": [part.trace.name for part in result.traces],
        "cards": cards(result),
        "figures": figures,
        "tables": tables(result),
        "facts": facts(result),
        "method": method(result),
        "command": result.command,
        "loop_threshold": LOOP_THRESHOLD,
        "version": __version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
    }


def _render(template: str, context: dict[str, Any], *, html: bool) -> str:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=html,
        undefined=StrictUndefined,
        keep_trailing_newline=True,
    )
    if not html:  # strings from a trace must not become markup in a Markdown viewer either
        environment.finalize = lambda value: _markdown(value) if isinstance(value, str) else value
    return environment.get_template(template).render(context)


def _markdown(text: str) -> str:
    for mark, safe in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("|", "&#124;"), ("`", "'")):
        text = text.replace(mark, safe)
    return " ".join(text.splitlines()) if "\n" in text.strip() else text
