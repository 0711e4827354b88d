"""How a trial of a kernel reads: one line, a table, and compiler errors on the lines they mean."""

from __future__ import annotations

import html
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .bench_cases import Shape
    from .errors import CompileError
    from .library import KernelLibrary
    from .library.report import Report, Row

_NVRTC = re.compile(
    r"^(?P<file>[^\n]+?)\((?P<line>\d+)\): (?:catastrophic )?error(?: #[\w-]+)?: (?P<text>.*)$", re.M
)
_GCC = re.compile(r"^(?P<file>[^:\n]+):(?P<line>\d+):(?:\d+:)? (?:fatal )?error: (?P<text>.*)$", re.M)
_MESSAGE = re.compile(r"^(?P<file>.+?):(?P<line>\d+): (?P<text>.*)", re.S)
MOST_ERRORS = 5


@dataclass(repr=False)
class Trial:
    """What came of an edit; prints as one line, shows as a table in a notebook.

    Parameters
    ----------
    file : str
        What was edited.
    files : tuple of str
        The kernels that this changes.
    backend : str
        Where they ran: "cuda", "host" or "numpy".
    library : KernelLibrary
        Runs what was tried.
    report : Report or None
        Registers, spills, shared memory; None without NVRTC.
    checked : dict of str to bool
        True: equal to the reference; False: its stage has no check.  Empty if no check was asked for.
    check_seconds : float
    times : dict of str to (float, Shape)
        Median microseconds of a stage's call.
    notes : list of str
        What could not be done, and why.
    """

    file: str
    files: tuple[str, ...]
    backend: str
    library: KernelLibrary
    report: Report | None = None
    checked: dict[str, bool] = field(default_factory=dict)
    check_seconds: float = 0.0
    times: dict[str, tuple[float, Shape]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def us(self, stage: str) -> float:
        """Return the median microseconds of a stage's call."""
        return self.times[stage][0]

    def parts(self) -> list[str]:
        """Return the verdict in pieces: right or not, resources, times."""
        out = []
        if self.checked:
            right = [name for name, good in self.checked.items() if good]
            if right:
                what = (
                    "equals the reference" if len(right) == 1 else f"{len(right)} files equal the reference"
                )
                out.append(f"{what} ({self.backend}, {self.check_seconds:.1f} s)")
            if loose := [name for name, good in self.checked.items() if not good]:
                whose = "" if self.files == tuple(loose) else f"{', '.join(loose)}: "
                out.append(f"compiles; {whose}no reference to be checked against")
        else:
            out.append("compiles; not checked" if self.backend != "numpy" or self.report else "not compiled")
        if self.report is not None and self.report.rows:
            out.append(_resources(self.report.rows))
        clock = "device time" if self.backend == "cuda" else "CPU execution: no GPU speed"
        out += [f"{stage} {us:,.1f} us a call ({clock})" for stage, (us, _) in self.times.items()]
        return out

    def __str__(self) -> str:
        name = self.file if self.files == (self.file,) else f"{self.file} in {', '.join(self.files)}"
        return "\n".join([f"{name}: {'; '.join(self.parts())}", *self.notes])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        good = all(self.checked.values()) and bool(self.checked)
        colour = "#009E73" if good else "#6b6b6b"
        mark = "&#10003;" if good else "&#8226;"
        lines = [html.escape(line) for line in str(self).splitlines()]
        head = f'<div><b style="color:{colour}">{mark}</b> {"<br>".join(lines)}</div>'
        return head + (self.report._repr_html_() if self.report is not None and self.report.rows else "")


def _resources(rows: tuple[Row, ...]) -> str:
    """Return registers, spills and shared memory of the largest kernel in words."""
    arch = ", ".join(dict.fromkeys(row.arch for row in rows))
    registers = max(row.registers for row in rows)
    spilling = {row.name: row.spill_bytes for row in rows if row.spill_bytes}
    spills = ", ".join(f"{name} spills {size} bytes" for name, size in spilling.items()) or "no spills"
    shared = max(row.static_shared + (row.dynamic_shared or 0) for row in rows)
    most = "up to " if len(rows) > 1 else ""
    return f"{arch}: {most}{registers} registers, {spills}, {most}{shared:,} bytes of shared memory"


def errors_of(error: CompileError) -> list[tuple[str, int, str]]:
    """Return (file, line, text) of every error that a compiler reported, in order."""
    found = [
        (match["file"].strip(), int(match["line"]), match["text"].strip())
        for pattern in (_NVRTC, _GCC)
        for match in pattern.finditer(error.log)
    ]
    if not found and (match := _MESSAGE.match(str(error))):
        found = [(match["file"], int(match["line"]), match["text"].strip())]
    return list(dict.fromkeys(found))


def on_the_cell(error: CompileError, file: str, cell: str) -> str:
    """Return compiler errors with the lines of a notebook cell whose first line is the magic.

    Parameters
    ----------
    error : CompileError
    file : str
        The file that the cell stands for.
    cell : str
        Its text, the line of the magic left out.
    """
    lines = cell.splitlines()
    out = []
    found = errors_of(error)
    for name, line, text in found[:MOST_ERRORS]:
        own = name.removesuffix(" (replaced)").rpartition("/")[2] == file.rpartition("/")[2]
        if own and 1 <= line <= len(lines):
            out.append(f"cell line {line + 1} ({file}:{line}): {text}\n    {lines[line - 1].strip()}")
        else:
            out.append(f"{name}:{line}: {text}")
    if len(found) > MOST_ERRORS:
        out.append(f"... and {len(found) - MOST_ERRORS} more")
    return "\n".join(out) or str(error)
