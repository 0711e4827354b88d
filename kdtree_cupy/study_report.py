"""Write a study to a folder: report.html, report.md, results.csv, speedup.csv, figures (PNG and SVG)."""

from __future__ import annotations

import platform
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from .report_parts import draw_figures, render, write_csv
from .shootout import Shootout
from .shootout_report import write_page
from .study import StudyResult
from .study_costs import cost_figures
from .study_table import COLUMNS, SPEEDUP_COLUMNS
from .study_text import FIGURES, cards, facts, method, tables
from .trace import LOOP_THRESHOLD
from .version import __version__


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
    result: StudyResult,
    folder: Path,
    *,
    shootout: Shootout | None = None,
    progress: Callable[[int], object] | None = None,
) -> Path:
    """Write all files of a study, with the shoot-out's page if there is one; return ``report.html``.

    Files are made in a hidden folder first and moved into place when all are complete, so an interruption
    or a full disk leaves what was there before.

    Parameters
    ----------
    result : StudyResult
    folder : Path
        Created if missing.
    shootout : Shootout, optional
        Adds ``shootout.html`` and ``shootout.csv``.
    progress : callable, optional
        Called with 1 per figure.
    """
    with output_folder(folder), _staged(folder) as stage:
        pictures = stage / "figures"
        pictures.mkdir()
        figures = list(draw_figures(result, _shown(result), pictures, progress))
        write_csv(stage / "results.csv", COLUMNS, result.rows)
        if result.speedups:
            write_csv(stage / "speedup.csv", SPEEDUP_COLUMNS, result.speedups)
        if shootout is not None:
            write_page(shootout, stage, result.command, progress)
        context = _context(result, figures) | {"shootout": shootout is not None}
        for name, escape in (("report.html", True), ("report.md", False)):
            (stage / name).write_text(render(f"{name}.j2", context, html=escape), encoding="utf-8")
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


def _shown(result: StudyResult) -> list[tuple[Any, ...]]:
    shown = [figure for figure in FIGURES if figure[0] != "speedup" or result.costs]
    after = next((i + 1 for i, figure in enumerate(shown) if figure[0] == "speedup"), 0)
    return shown[:after] + cost_figures(result) + shown[after:]


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
