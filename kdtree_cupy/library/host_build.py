"""Compile a ``.cu`` file for the CPU: build a shared library of its kernels.

The file is not changed: ``kernels_cu/host/cuda_host.h`` goes before it, a table of its kernels behind it.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..errors import BackendError, CompileError
from . import host_scan
from .host_compiler import Compiler, find_compiler, problem
from .sources import package_folder

__all__ = ["build", "find_compiler", "flags", "problem", "stamp"]

_FLAGS = (
    "-std=c++17", "-O1", "-g", "-fPIC", "-pthread",
    "-fno-strict-aliasing",      # kernels read memory as other types (float4 of floats)
    "-ffp-contract=off",         # the same rounding on every machine
    "-fno-exceptions", "-fno-rtti", "-fno-threadsafe-statics",  # as on a device; no C++ run-time library
    "-fvisibility=hidden",       # two libraries in one process share nothing
    "-Wno-unknown-pragmas", "-Wno-attributes", "-Wno-unused-value", "-fdiagnostics-color=never",
)  # fmt: skip
_SANITIZE = ("-fsanitize=undefined,float-cast-overflow", "-fno-sanitize=vptr", "-DKD_HOST_SANITIZE")
_STUBS = ("cuda_fp16.h", "cuda_bf16.h", "cuda_fp8.h")  # cuda_host.h has their content
_MAIN = "kd_host_main.cpp"
_SECONDS = 900  # ziglang builds its C library at the first use
_ERROR = re.compile(r"^(?P<file>[^:\n]+):(?P<line>\d+):(?:\d+:)? (?:fatal )?error: (?P<text>.*)$", re.M)
_EXTERN_SHARED = re.compile(r"\bextern\s+(?:__align__\s*\([^)]*\)\s*)?__shared__")


def flags(compiler: Compiler, *, sanitize: bool = False) -> tuple[str, ...]:
    """Return the options of every compilation; never for this CPU only, because results are kept."""
    more: tuple[str, ...] = ("-fstack-clash-protection",) if sys.platform == "linux" else ()
    if platform.machine() in ("x86_64", "AMD64", "i686"):
        more += ("-fcf-protection=none",)  # a shadow stack knows nothing of fibers
    if compiler.family == "gcc":
        more += ("-fno-gnu-unique",)
    if compiler.family == "zig":
        more += ("-mcpu=baseline", "-fno-sanitize-trap=undefined" if sanitize else "-fno-sanitize=undefined")
    return (*_FLAGS, *(_SANITIZE if sanitize else ()), *more)


def stamp(*, sanitize: bool = False) -> str:
    """Return a hash of all that goes into a library besides the user's text: compiler, options, host headers.

    Raises
    ------
    BackendError
        There is no compiler.
    """
    compiler = find_compiler()
    h = hashlib.sha256(repr((compiler, flags(compiler, sanitize=sanitize), sys.platform)).encode())
    for path in sorted((package_folder() / "host").glob("*.h")):
        h.update(path.name.encode() + b"\0" + path.read_bytes())
    return h.hexdigest()


def build(
    sources: Mapping[str, str],
    main: str,
    defines: Mapping[str, object],
    *,
    out: Path,
    sanitize: bool = False,
    origins: Mapping[str, str] | None = None,
) -> Path:
    """Compile ``main`` to the shared library ``out``.

    Parameters
    ----------
    sources : mapping of str to str
        Text of ``main`` and of every header it includes, by name relative to one folder.
    main : str
        Such as ``"tree_build.cu"``.
    defines : mapping
        Macros.
    out : Path
        File to write; appears only when complete.
    sanitize : bool
        Check for undefined behaviour (shifts, overflow, alignment, bounds of fixed arrays).
    origins : mapping, optional
        What messages should call each name, such as its path.

    Raises
    ------
    CompileError
        The message is the first error, as ``file:line: text``.
    BackendError
        There is no compiler.
    """
    compiler = find_compiler()
    options = (
        *flags(compiler, sanitize=sanitize),
        "-DKD_HOST=1",
        *(f"-D{k}={v}" for k, v in defines.items()),
    )
    with tempfile.TemporaryDirectory(prefix="kdtree_host_") as name:
        folder = Path(name).resolve()
        for file, text in (*dict.fromkeys(_STUBS, "").items(), *sources.items()):
            path = folder / file
            if not path.resolve().is_relative_to(folder):
                raise ValueError(f"sources: got the name {file!r}, wanted one inside the folder")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        run = _Run(compiler, options, folder, sources, origins or {})
        kernels = run.scan(main)
        table = "\n".join(f'KD_HOST_KERNEL({k}, "{",".join(names)}")' for k, names in kernels.items())
        (folder / _MAIN).write_text(f'#include "{main}"\n{table}\n', encoding="utf-8")
        run.compile()
        handle, temporary = tempfile.mkstemp(dir=out.parent, prefix=f".{out.name}.")
        os.close(handle)
        try:
            shutil.copyfile(folder / "kernels.so", temporary)
            Path(temporary).replace(out)
        finally:
            Path(temporary).unlink(missing_ok=True)
    return out


@dataclass(frozen=True)
class _Run:
    """One compilation in a folder of its own."""

    compiler: Compiler
    options: tuple[str, ...]
    folder: Path
    sources: Mapping[str, str]
    origins: Mapping[str, str]

    def scan(self, main: str) -> dict[str, tuple[str, ...]]:
        """Return the kernels of ``main`` and their parameter names."""
        text = self._command("-E", "-P", f"-D__global__={host_scan.MARK}", "-x", "c++", main)
        if _EXTERN_SHARED.search(text):
            for name, source in self.sources.items():
                if "define DYN_SHARED" in source:
                    continue
                if found := _EXTERN_SHARED.search(source):
                    line = source.count("\n", 0, found.start()) + 1
                    message = (
                        "extern __shared__ cannot run on the CPU; write DYN_SHARED(T, name) of common.cuh"
                    )
                    raise CompileError(f"{self.origins.get(name, name)}:{line}: {message}", "", self.options)
        return host_scan.kernels(text)

    def compile(self) -> None:
        """Make kernels.so; linked apart from compiling, so that -fsanitize adds no run-time library."""
        header = str(package_folder() / "host" / "cuda_host.h")
        self._command("-include", header, "-c", _MAIN, "-o", "kernels.o")
        link = [*self.compiler.command, "-shared", "-pthread", "kernels.o", "-o", "kernels.so", "-lm"]
        self._execute(link)

    def _command(self, *arguments: str) -> str:
        prefix = f"-ffile-prefix-map={self.folder}=."  # the folder's random name stays out of the library
        return self._execute([*self.compiler.command, *self.options, prefix, "-I.", *arguments])

    def _execute(self, command: list[str]) -> str:
        environment = {**os.environ, "LC_ALL": "C"}
        try:
            done = subprocess.run(
                command, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=_SECONDS
            )
        except subprocess.TimeoutExpired:
            raise BackendError(f"{' '.join(self.compiler.command)}: no result after {_SECONDS} s") from None
        if done.returncode != 0:
            raise self._error(done.stderr.replace(f"{self.folder}/", ""))
        return done.stdout

    def _error(self, log: str) -> CompileError:
        log = re.sub(r"^(In file included from |\s+from )?(?:\./)?", lambda m: m[1] or "", log, flags=re.M)
        found = _ERROR.search(log)
        if found is None:
            first = log.strip().splitlines()[:1] or ["the compiler gave no reason"]
            return CompileError(f"{self.compiler.command[-1]}: {first[0]}", log, self.options)
        file, line = found["file"], found["line"]
        if file not in self.sources:  # inside cuda_host.h: name the user's line that led there
            names = "|".join(map(re.escape, self.sources))
            if place := re.search(rf"\b({names}):(\d+)", log):
                file, line = place[1], place[2]
        return CompileError(f"{self.origins.get(file, file)}:{line}: {found['text']}", log, self.options)
