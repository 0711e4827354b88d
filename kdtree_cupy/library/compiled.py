"""Compile a unit with NVRTC, or take it from the cache; either way with its registers, spills and sizes."""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from .. import limits
from ..errors import CompileError
from . import cubin
from .cache import Cache
from .nvrtc import CURE, Nvrtc
from .sources import Unit

_FORMAT = 1  # raise when the meaning of a cached entry changes
_NAME = re.compile(r"[A-Za-z_]\w*")
_FUNCTION = re.compile(r"(?:Compiling entry function '|Function properties for )([\w$.]+)")
_FACTS = {
    "registers": re.compile(r"Used (\d+) registers"),
    "stack_bytes": re.compile(r"(\d+) bytes stack frame"),
    "static_shared": re.compile(r"(\d+) bytes smem"),
}
_SPILLS = re.compile(r"(\d+) bytes spill (?:stores|loads)")
_FIRST_ERROR = re.compile(
    r"^(?P<file>[^\n]*?)\((?P<line>\d+)\): (?:catastrophic )?error(?: #[\w-]+)?: (?P<text>[^\n]*)",
    re.MULTILINE,
)
_LOCATION = re.compile(r"^([^\s(][^\n(]*)(?=\(\d+\): )", re.MULTILINE)
_BARE_ERROR = re.compile(r"^[^\n]*\b(?:error|fatal)\b[^\n]*", re.MULTILINE)


@dataclass(frozen=True)
class KernelInfo:
    """What the compiler says of one kernel; ``params`` is None where the cubin could not be read."""

    name: str
    registers: int
    spill_bytes: int
    stack_bytes: int
    static_shared: int
    max_threads: int | None
    params: tuple[int, ...] | None


@dataclass(frozen=True)
class Compiled:
    """A cubin on disk and what is known about it, the same whether just compiled or found in the cache."""

    key: str
    path: Path
    file: str
    arch: str
    kernels: Mapping[str, KernelInfo]
    log: str
    options: tuple[str, ...]
    nvrtc: str
    seconds: float
    cached: bool


def define_texts(*layers: Mapping[str, object]) -> dict[str, str]:
    """Merge layers of macros, later ones winning, into text; the first layer is :mod:`kdtree_cupy.limits`.

    Raises
    ------
    ValueError
        A name is not an identifier.
    TypeError
        A value is not bool, int, float or str.
    """
    merged: dict[str, str] = {
        f"KD_{k}": str(v) for k, v in vars(limits).items() if k.isupper() and type(v) is int
    }
    for name, value in (item for layer in layers for item in layer.items()):
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ValueError(f"defines: got the name {name!r}, wanted a C identifier such as 'KD_BLOCK'")
        if isinstance(value, bool):
            merged[name] = str(int(value))
        elif isinstance(value, int | float | str):
            merged[name] = str(value)
        else:
            raise TypeError(f"defines[{name!r}]: got {type(value).__name__}, wanted bool, int, float or str")
    return dict(sorted(merged.items()))


_known: dict[tuple[str, Path], Compiled] = {}


def compile_unit(unit: Unit, nvrtc: Nvrtc, arch: str, defines: Mapping[str, str], cache: Cache) -> Compiled:
    """Return ``unit`` compiled for exactly one architecture.

    Raises
    ------
    CompileError
        The compiler refused it; the message is its first error, with the user's file and line.
    BackendError
        This NVRTC cannot compile for ``arch``.
    """
    nvrtc.check_arch(arch)
    options = [f"-arch={arch}", "--std=c++17", "--ptxas-options=-v"]
    if nvrtc.version >= (13, 0):
        options.append("--no-cache")  # with a driver present it answers from its own cache, with an empty log
    options += [f"-D{name}={value}" for name, value in defines.items()]
    key = _key(unit, nvrtc, options)
    known = _known.get((key, cache.folder))
    if known and known.path.exists():
        return known
    entry = cache.load(key, ".cubin")
    if entry:
        try:
            compiled = _from_entry(key, *entry)
        except (KeyError, TypeError, ValueError):  # another version's entry: make it again
            compiled = None
    if not entry or compiled is None:
        compiled = _compile(key, unit, nvrtc, arch, options, cache)
    _known[key, cache.folder] = replace(compiled, cached=True)
    return compiled


def _key(unit: Unit, nvrtc: Nvrtc, options: list[str]) -> str:
    parts = json.dumps([_FORMAT, nvrtc.stamp, unit.main, unit.digest, options])
    return hashlib.sha256(parts.encode()).hexdigest()[:40]


def _compile(key: str, unit: Unit, nvrtc: Nvrtc, arch: str, options: list[str], cache: Cache) -> Compiled:
    include = [f"-I{nvrtc.include}"] if nvrtc.include else []
    headers = {spelled: _numbered(name, unit.texts[name]) for spelled, name in unit.spellings.items()}
    begin = time.perf_counter()
    binary, log = nvrtc.compile(
        _numbered(unit.main, unit.texts[unit.main]), unit.main, headers, options + include
    )
    seconds = time.perf_counter() - begin
    if binary is None:
        raise compile_error(unit, log, (*options, *include), nvrtc)
    kernels = read_kernels(binary, log)
    entry = {
        "file": unit.main,
        "arch": arch,
        "kernels": [asdict(kernel) for kernel in kernels.values()],
        "log": log,
        "options": options + include,
        "nvrtc": nvrtc.name,
        "seconds": round(seconds, 4),
    }
    path = cache.store(key, ".cubin", binary, entry)
    return Compiled(
        key, path, unit.main, arch, kernels, log, tuple(options + include), nvrtc.name, seconds, False
    )


def _from_entry(key: str, path: Path, entry: dict) -> Compiled:
    kernels = {}
    for facts in entry["kernels"]:
        params = facts["params"]
        info = KernelInfo(**{**facts, "params": None if params is None else tuple(params)})
        kernels[info.name] = info
    same = {name: entry[name] for name in ("file", "arch", "log", "nvrtc", "seconds")}
    return Compiled(key, path, kernels=kernels, options=tuple(entry["options"]), cached=True, **same)


def _numbered(name: str, text: str) -> str:
    """Start ``text`` with its own name, so that messages name it however it was included."""
    return f'#line 1 "{name}"\n{text}'


def read_kernels(binary: bytes, log: str) -> dict[str, KernelInfo]:
    """Join what ``ptxas -v`` wrote with what the cubin holds."""
    facts: dict[str, dict[str, int]] = {}
    current: dict[str, int] = {}
    for line in log.splitlines():
        if found := _FUNCTION.search(line):
            current = facts.setdefault(found[1], {})
        for name, pattern in _FACTS.items():
            if found := pattern.search(line):
                current[name] = int(found[1])
        if spills := _SPILLS.findall(line):
            current["spill_bytes"] = sum(map(int, spills))
    kernels = {}
    for name, read in sorted(cubin.parse(binary).kernels.items()):
        if "registers" in facts.get(name, {}):  # device functions have no such line
            said = {fact: facts[name].get(fact, 0) for fact in (*_FACTS, "spill_bytes")}
            kernels[name] = KernelInfo(name, max_threads=read.max_threads, params=read.params, **said)
    return kernels


def compile_error(unit: Unit, log: str, options: tuple[str, ...], nvrtc: Nvrtc | None) -> CompileError:
    """Build the exception: first error, in the user's own file, and the log with the same file names."""
    log = _LOCATION.sub(lambda found: unit.origins.get(found[1], found[1]), log)
    if found := _FIRST_ERROR.search(log):
        message = f"{found['file']}:{found['line']}: {found['text']}"
    else:
        said = _BARE_ERROR.search(log)
        message = f"{unit.origins[unit.main]}: {said[0].strip() if said else 'the compiler gave no reason'}"
    if nvrtc and nvrtc.include is None and "open source file" in message:
        message += f" (no CUDA headers of version {nvrtc.version[0]} beside {nvrtc.path}: {CURE})"
    return CompileError(message, log, options)
