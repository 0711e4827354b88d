"""The table of a benchmark: a tidy row a measurement, as CSV; samples and clocks in a JSON beside it."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from . import html_parts
from .errors import KdtrError
from .files import atomic_file

COLUMNS = (
    "stage", "variant", "batch", "heads", "q_len", "prefix", "dtype", "budget", "depth", "width", "vocab",
    "us_median", "us_p20", "us_p80", "n", "floor_us", "cold", "backend", "gpu", "driver", "cuda", "cupy",
    "commit", "dirty", "command",
)  # fmt: skip
"""Columns of the table, in order."""
KEY = (*COLUMNS[:11], "cold", "backend", "gpu")
"""What makes a row comparable with another: all but times, floor and provenance."""
_TEXT = {*COLUMNS[:2], "dtype", *COLUMNS[17:]}


def describe(row: Mapping[str, Any]) -> str:
    """Return one line of text for a row."""
    sizes = [f"{k} {row[k]}" for k in ("batch", "budget", "heads", "prefix", "width") if row[k]]
    share = f"{row['floor_us'] / row['us_median']:4.0%} of floor" if row["floor_us"] else ""
    heat = "cold" if row["cold"] else "warm"
    what = f"{row['stage']:13} {row['variant']:10} {row['backend']:5} {heat}"
    return f"{what} {row['us_median']:11.2f} us {share:14} {row['dtype']:8} {', '.join(sizes)}"


class Rows(list):
    """Rows of a benchmark: a list of dicts that a notebook shows as a table."""

    def _repr_html_(self) -> str:
        shown = ("stage", "variant", "batch", "budget", "heads", "prefix", "dtype", "backend")
        head = [*shown, "cache", "us", "p20", "p80", "of floor", "gpu"]
        lines = []
        for row in self:
            share = row["floor_us"] / row["us_median"] if row["floor_us"] and row["us_median"] else None
            sizes = [int(row[k]) if isinstance(row[k], float) else row[k] or None for k in shown]
            times = [float(row[k]) for k in ("us_median", "us_p20", "us_p80")]
            floor = "-" if share is None else f"{share:.0%}"
            lines.append([*sizes, "cold" if row["cold"] else "warm", *times, floor, row["gpu"]])
        return html_parts.table(head, lines, text=2)


def write_bench(record: Mapping[str, Any], path: Path) -> list[Path]:
    """Write the table to ``path`` and samples, clocks and ceilings to the ``.json`` beside it."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(record["rows"])
    side = path.with_suffix(".json")
    rest = {name: record[name] for name in ("machine", "clocks", "wrong", "samples")}
    for target, content in ((path, text.getvalue()), (side, json.dumps(rest) + "\n")):
        with atomic_file(target) as handle:
            handle.write(content.encode())
    return [path, side]


def read_bench(path: Path) -> Rows:
    """Return the rows of a table, numbers as numbers, each with its ``samples`` if they lie beside it.

    Raises
    ------
    KdtrError
        No readable table of these columns.
    """
    try:
        text = path.read_text(encoding="utf-8")
        rows = list(csv.DictReader(io.StringIO(text)))
        missing = [name for name in COLUMNS if not rows or rows[0].get(name) is None]
        if missing:
            raise KdtrError(f"{path}: no benchmark table: no rows, or no column {missing[0]!r}")
        out = Rows(
            {k: v if k in _TEXT else float(v) if v else None for k, v in row.items() if k in COLUMNS}
            for row in rows
        )
        side = path.with_suffix(".json")
        samples = json.loads(side.read_text(encoding="utf-8"))["samples"] if side.exists() else []
    except (OSError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, KdtrError):
            raise
        raise KdtrError(f"{path}: no readable benchmark table: {error}") from error
    for i, row in enumerate(out):
        row["samples"] = samples[i] if len(samples) == len(out) else None
    return out


def stored(name: str = "bench_h200.csv") -> Path | None:
    """Return a table of the checkout's ``benchmarks/results``; None in an installed package."""
    path = Path(__file__).resolve().parents[1] / "benchmarks" / "results" / name
    return path if path.is_file() else None
