"""Find a C++ compiler for the host backend."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec

from ..errors import BackendError

CURE = (
    "install one: 'apt install g++', 'xcode-select --install', 'conda install cxx-compiler', or without root "
    "\"pip install 'kdtree-cupy[host]'\" (ziglang, about 100 MB); or set CXX"
)


@dataclass(frozen=True)
class Compiler:
    """A C++ compiler: its command, first line of ``--version``, and family (gcc, clang or zig)."""

    command: tuple[str, ...]
    version: str
    family: str


def find_compiler() -> Compiler:
    """Return ``$CXX``, g++, clang++ or ziglang, whichever is found first.

    Raises
    ------
    BackendError
        None of them works; the message says how to get one.
    """
    return _find(os.environ.get("CXX", ""), os.environ.get("PATH", ""))


def problem() -> str | None:
    """Return why there is no compiler, or None if there is one."""
    try:
        find_compiler()
    except BackendError as error:
        return str(error)
    return None


@lru_cache(maxsize=8)
def _find(cxx: str, path: str) -> Compiler:
    if cxx.strip():
        wanted = tuple(shlex.split(cxx))
        if found := _probe(wanted, path):
            return found
        raise BackendError(f"CXX={cxx!r} does not run; unset it, or {CURE}")
    for command in (("g++",), ("clang++",), ("c++",)):
        if found := _probe(command, path):
            return found
    # As `zig cc`: nothing of libc++ is used, and `zig c++` would build it from source first.
    if find_spec("ziglang") and (found := _probe((sys.executable, "-m", "ziglang", "cc"), path)):
        return found
    raise BackendError(f"no C++ compiler (tried $CXX, g++, clang++, c++, ziglang): {CURE}")


def _probe(command: tuple[str, ...], path: str) -> Compiler | None:
    program = shutil.which(command[0], path=path)
    if program is None:
        return None
    try:
        done = subprocess.run(
            [program, *command[1:], "--version"], capture_output=True, text=True, timeout=120
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode != 0 or not done.stdout.strip():
        return None
    family = "zig" if "ziglang" in command else "clang" if "clang" in done.stdout else "gcc"
    if family == "zig":
        from importlib.metadata import version

        return Compiler((program, *command[1:]), f"ziglang {version('ziglang')}", family)
    return Compiler((program, *command[1:]), done.stdout.splitlines()[0].strip(), family)
