"""Resource table of kernels for any architecture, without a GPU: what the compiler and the source say.

The compiler knows registers, spills, stack and static shared memory.  Block size and dynamic shared memory
are decided at launch; a kernel states them in its header comment, where a person reads them as well::

    // Launch  tree_build_v2: grid batch, block 256, dynamic shared 12 * KD_MAX_NODES

Without the name the line holds for every kernel of the file that has no line of its own.  Where the number is
no expression over macros, the stage's module can say it (:mod:`kdtree_cupy.library.stage_hooks`).
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass

from .. import html_parts
from .compiled import Compiled, KernelInfo
from .nvrtc import split_arch
from .sources import Unit
from .stage_hooks import hook

_LAUNCH = re.compile(
    r"(?:(\w+):[ \t]*)?(?:any[ \t]+)?\bgrid\b[^\n]*?,[ \t]*block[ \t]+([^\n,.;]+)"
    r"(?:,[ \t]*dynamic shared[ \t]+([^\n.;]+))?"
)
_COMMENT = re.compile(r"^[ \t]*(?://|\*)[^\n]*$", re.MULTILINE)
_DEFINE = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)[ \t]+([^\n]+?)[ \t]*(?://[^\n]*)?$", re.MULTILINE)
_DYNAMIC = re.compile(r"^(?![ \t]*#)[^\n]*\b(?:DYN_SHARED|extern\s+__shared__)\b", re.MULTILINE)
_OPERATORS: dict[type, Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.LShift: operator.lshift,
}

# CUDA C++ programming guide: threads, blocks, shared KiB of a multiprocessor; shared KiB of a block
_LIMITS = {
    70: (2048, 32, 96, 96),
    75: (1024, 16, 64, 64),
    80: (2048, 32, 164, 163),
    86: (1536, 16, 100, 99),
    87: (1536, 16, 164, 163),
    89: (1536, 24, 100, 99),
    90: (2048, 32, 228, 227),
    100: (2048, 32, 228, 227),
    103: (2048, 32, 228, 227),
    110: (1536, 24, 228, 227),
    120: (1536, 24, 100, 99),
    121: (1536, 24, 100, 99),
}
_REGISTERS, _RESERVED, _WARP = 65536, 1024, 32


@dataclass(frozen=True)
class LaunchLine:
    """Block size and largest dynamic shared memory that a kernel asks for; None where it is not known."""

    block: int | None
    dynamic_shared: int | None


@dataclass(frozen=True)
class Row:
    """One kernel on one architecture; bytes throughout, ``occupancy`` is a share of resident threads."""

    file: str
    name: str
    arch: str
    registers: int
    spill_bytes: int
    stack_bytes: int
    static_shared: int
    dynamic_shared: int | None
    block: int | None
    occupancy: float | None
    params: tuple[int, ...] | None
    cached: bool


@dataclass(frozen=True, repr=False)
class Report:
    """Rows of the resource table; prints as text, shows as a table in a notebook."""

    rows: tuple[Row, ...]

    def to_json(self) -> list[dict[str, object]]:
        """Return one dict a row, ready for ``json.dumps``."""
        return [asdict(row) for row in self.rows]

    def _cells(self) -> list[tuple[str, ...]]:
        head = ("kernel", "arch", "regs", "spill", "stack", "shared", "+dynamic", "block", "occupancy")
        out = [head]
        for r in self.rows:
            share = "?" if r.occupancy is None else f"{r.occupancy:.0%}"
            unknown = tuple("?" if x is None else str(x) for x in (r.dynamic_shared, r.block))
            facts = (r.registers, r.spill_bytes, r.stack_bytes, r.static_shared)
            out.append((f"{r.file}:{r.name}", r.arch, *map(str, facts), *unknown, share))
        return out

    def __str__(self) -> str:
        cells = self._cells()
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = []
        for row in cells:
            first = "  ".join(cell.ljust(w) for cell, w in zip(row[:2], widths, strict=False))
            rest = "  ".join(cell.rjust(w) for cell, w in zip(row[2:], widths[2:], strict=True))
            lines.append(f"{first}  {rest}")
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        head, *cells = self._cells()
        return html_parts.table(head, cells, text=2, most=400)


def shared_limit(arch: str) -> int | None:
    """Return the most shared memory one block may have, static and dynamic together; None if not known."""
    limits = _LIMITS.get(split_arch(arch)[0])
    return limits[3] * 1024 if limits else None


def occupancy(arch: str, registers: int, shared: int, block: int) -> float | None:
    """Estimate the share of a multiprocessor's threads that can be resident; None if ``arch`` is not known.

    Parameters
    ----------
    arch : str
        Such as ``"sm_120"``.
    registers : int
        Per thread.
    shared : int
        Static and dynamic bytes of a block.
    block : int
        Threads of a block.

    Notes
    -----
    Registers are handed out per warp in units of 256, a quarter of them to each of four schedulers; each
    block pays 1 KiB of shared memory for the system.  The driver's own answer may be a little different.
    """
    limits = _LIMITS.get(split_arch(arch)[0])
    if limits is None or not 0 < block <= 1024:
        return None
    threads, blocks, per_multiprocessor, _ = limits
    warps = -(-block // _WARP)
    per_warp = -(-max(registers, 1) * _WARP // 256) * 256
    by_registers = (_REGISTERS // 4 // per_warp) * 4 // warps
    by_shared = per_multiprocessor * 1024 // (-(-(shared + _RESERVED) // 128) * 128)
    resident = min(blocks, threads // (warps * _WARP), by_registers, by_shared)
    return resident * warps * _WARP / threads


def launch_lines(unit: Unit, defines: Mapping[str, str], kernels: Iterable[str]) -> dict[str, LaunchLine]:
    """Return what the header comment, or else the stage's module, says of the launch of each kernel.

    A line that names no kernel holds for all that have none of their own; ``v1:`` is short for ``stage_v1:``.
    """
    macros: dict[str, str] = {}
    for text in unit.texts.values():
        macros.update(_DEFINE.findall(text))
    macros.update(defines)
    comment = "\n".join(_COMMENT.findall(unit.texts[unit.main]))
    said = {found[1]: (found[2], found[3]) for found in _LAUNCH.finditer(comment)}
    asked = hook(unit.main, "DYNAMIC_SHARED") or {}
    code = (text for name, text in unit.texts.items() if name != "common.cuh")
    default = None if any(map(_DYNAMIC.search, code)) else 0
    lines = {}
    for kernel in kernels:
        own = [
            line for name, line in said.items() if name and (kernel == name or kernel.endswith(f"_{name}"))
        ]
        block, shared = own[0] if own else said.get(None, ("", ""))
        unsaid = 0 if own else default  # a line of its own that does not mention it means none
        dynamic = asked.get(kernel, _value(shared, macros) if shared else unsaid)
        lines[kernel] = LaunchLine(_value(block, macros), dynamic)
    return lines


def _value(text: str, macros: Mapping[str, str]) -> int | None:
    """Evaluate an integer expression over macros; None if it is anything else."""
    text = re.sub(r"\bbytes\b.*", "", text).strip()
    try:
        return _number(ast.parse(text, mode="eval").body, macros, 8)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError):
        return None


def _number(node: ast.expr, macros: Mapping[str, str], depth: int) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.Name) and node.id in macros and depth:
        return _number(ast.parse(macros[node.id].strip(), mode="eval").body, macros, depth - 1)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        left, right = _number(node.left, macros, depth), _number(node.right, macros, depth)
        return _OPERATORS[type(node.op)](left, right)
    raise ValueError("not an integer expression")


def rows(compiled: Compiled, lines: Mapping[str, LaunchLine], seen: Mapping[str, int]) -> list[Row]:
    """Return the rows of one file; ``seen`` holds the largest dynamic shared memory launched so far."""
    kernels = sorted(compiled.kernels.items())
    return [_row(compiled, info, lines[name], seen.get(name)) for name, info in kernels]


def _row(compiled: Compiled, info: KernelInfo, line: LaunchLine, seen: int | None) -> Row:
    known = [x for x in (line.dynamic_shared, seen) if x is not None]
    dynamic = max(known) if known else None
    block = line.block or info.max_threads
    share = None
    if block:
        share = occupancy(compiled.arch, info.registers, info.static_shared + (dynamic or 0), block)
    return Row(
        compiled.file,
        info.name,
        compiled.arch,
        info.registers,
        info.spill_bytes,
        info.stack_bytes,
        info.static_shared,
        dynamic,
        block,
        share,
        info.params,
        compiled.cached,
    )
