"""NVRTC through ctypes: one code path with or without CuPy, with or without a GPU.

CuPy's own compile step is not used: it adds a second ``-arch`` (NVRTC 12.8, 12.9 and 13 each resolve that
differently), its disk cache does not see included files, and it needs a device even to compile.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from ..errors import BackendError
from .driver import driver

CURE = "pip install 'kdtree-cupy[compile]'"
_ARCH = re.compile(r"sm_(\d{2,3})([af]?)")
_HEADER_VERSION = re.compile(rb"^#define\s+CUDART_VERSION\s+(\d+)", re.MULTILINE)


@dataclass(frozen=True)
class Nvrtc:
    """One loaded NVRTC library.

    Parameters
    ----------
    path : Path
        The library file.
    version : tuple of int
        For example ``(12, 9)``.
    archs : tuple of int
        Architectures it can compile for, such as 90 or 120.
    include : Path or None
        Folder of the CUDA headers (``cuda_bf16.h``) that belong to it.
    """

    path: Path
    version: tuple[int, int]
    archs: tuple[int, ...]
    include: Path | None
    _lib: ctypes.CDLL = field(repr=False, compare=False)

    @property
    def name(self) -> str:
        """For messages: version and file."""
        return f"NVRTC {self.version[0]}.{self.version[1]} ({self.path})"

    @property
    def stamp(self) -> str:
        """Tell builds apart in cache keys: version, size of the library, version of the headers."""
        return (
            f"{self.version[0]}.{self.version[1]}-{self.path.stat().st_size}-{header_version(self.include)}"
        )

    def check_arch(self, arch: str) -> str:
        """Return ``arch`` if this library can compile for it.

        Raises
        ------
        ValueError
            Not of the form ``sm_120``, ``sm_120a`` or ``sm_120f``.
        BackendError
            This library is too old or too new for it.
        """
        number, suffix = split_arch(arch)
        needed = {"a": (12, 0), "f": (12, 9)}.get(suffix, (0, 0))
        if number in self.archs and self.version >= needed:
            return arch
        known = ", ".join(f"sm_{n}" for n in self.archs)
        if number in self.archs:
            cure = f"suffix {suffix!r} needs NVRTC {needed[0]}.{needed[1]} or newer"
        elif number > max(self.archs):
            least = {100: "12.8", 101: "12.8", 120: "12.8", 103: "12.9", 121: "12.9"}.get(number, "13")
            wheel = "nvidia-cuda-nvrtc" if least == "13" else "nvidia-cuda-nvrtc-cu12"
            cure = f"{arch} needs NVRTC {least} or newer: pip install -U '{wheel}>={least}'"
        else:
            cure = "use an architecture from this list, or an older NVRTC"
        raise BackendError(f"{self.name} cannot compile for {arch}: it knows {known}. {cure}")

    def compile(
        self, source: str, name: str, headers: Mapping[str, str], options: Sequence[str]
    ) -> tuple[bytes | None, str]:
        """Compile to a cubin; return ``(cubin, log)``, with ``None`` for the cubin if there were errors."""
        lib, program = self._lib, ctypes.c_void_p()
        texts = (ctypes.c_char_p * len(headers))(*(text.encode() for text in headers.values()))
        names = (ctypes.c_char_p * len(headers))(*(spelled.encode() for spelled in headers))
        arguments = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        self._call("nvrtcCreateProgram", ctypes.byref(program), source.encode(), name.encode(),
                   ctypes.c_int(len(headers)), texts, names)  # fmt: skip
        try:
            code = lib.nvrtcCompileProgram(program, ctypes.c_int(len(options)), arguments)
            log = self._text("nvrtcGetProgramLogSize", "nvrtcGetProgramLog", program).rstrip(b"\0")
            cubin = None
            if code == 0:
                cubin = self._text("nvrtcGetCUBINSize", "nvrtcGetCUBIN", program)
            said = log.decode(errors="replace")
            if code and not said.strip():
                said = f"error: {self._error(code)}"
            return cubin or None, said
        finally:
            lib.nvrtcDestroyProgram(ctypes.byref(program))

    def _text(self, size_of: str, get: str, program: ctypes.c_void_p) -> bytes:
        size = ctypes.c_size_t()
        self._call(size_of, program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(max(size.value, 1))
        self._call(get, program, buffer)
        return buffer.raw[: size.value]

    def _call(self, function: str, *arguments: object) -> None:
        code = getattr(self._lib, function)(*arguments)
        if code:
            raise BackendError(f"{self.name}: {function} failed: {self._error(code)}")

    def _error(self, code: int) -> str:
        return self._lib.nvrtcGetErrorString(code).decode(errors="replace")


def split_arch(arch: str) -> tuple[int, str]:
    """Split ``"sm_120a"`` into ``(120, "a")``; ValueError for anything else."""
    found = _ARCH.fullmatch(arch) if isinstance(arch, str) else None
    if not found:
        raise ValueError(f"arch: got {arch!r}, wanted 'auto' or a name like 'sm_90', 'sm_120' or 'sm_120a'")
    return int(found[1]), found[2]


@lru_cache(maxsize=8)
def header_version(include: Path | None) -> int:
    """Return CUDART_VERSION of a header folder, such as 12090; 0 if it cannot be read."""
    try:
        found = _HEADER_VERSION.search((include / "cuda_runtime_api.h").read_bytes()) if include else None
    except OSError:
        found = None
    return int(found[1]) if found else 0


def candidates() -> list[Path]:
    """Return every NVRTC file in sight: ``$KDTREE_NVRTC`` alone if set, else wheels, then other places."""
    if chosen := os.environ.get("KDTREE_NVRTC"):
        return [Path(chosen)]
    patterns = ("nvidia/cuda_nvrtc/lib/libnvrtc.so.1?", "nvidia/cu1?/lib/libnvrtc.so.1?")
    found = [
        path
        for entry in sys.path
        if entry
        for pattern in patterns
        for path in sorted(Path(entry).glob(pattern))
    ]
    roots = [Path(p) for name in ("CONDA_PREFIX", "CUDA_HOME", "CUDA_PATH") if (p := os.environ.get(name))]
    roots.append(Path("/usr/local/cuda"))
    for root in roots:
        for folder in ("lib64", "lib", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib"):
            found += sorted((root / folder).glob("libnvrtc.so.1?"))
    return list({path.resolve(): path for path in reversed(found)}.values())[::-1]


def _pathfinder() -> list[Path]:
    """Ask cuda-pathfinder, which also knows places that we do not look at."""
    try:
        from cuda import pathfinder
    except ImportError:
        return []
    try:
        found = pathfinder.load_nvidia_dynamic_lib("nvrtc").abs_path
    except (pathfinder.DynamicLibNotFoundError, OSError, RuntimeError):
        return []
    return [Path(found)] if found else []


@lru_cache(maxsize=16)
def load(path: Path) -> Nvrtc:
    """Load one library file; BackendError if that fails."""
    try:
        lib = ctypes.CDLL(str(path))
        lib.nvrtcGetErrorString.restype = ctypes.c_char_p
        major, minor, count = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
        lib.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
        lib.nvrtcGetNumSupportedArchs(ctypes.byref(count))
    except (OSError, AttributeError) as error:
        raise BackendError(f"NVRTC at {path} cannot be used: {error}. {CURE}") from None
    archs = (ctypes.c_int * count.value)()
    lib.nvrtcGetSupportedArchs(archs)
    return Nvrtc(path, (major.value, minor.value), tuple(sorted(archs)), _include(path, major.value), lib)


def _include(path: Path, major: int) -> Path | None:
    """Return the header folder that belongs to a library: from the same wheels or the same toolkit."""
    folder = path.resolve().parent
    near = [folder.parents[1] / "cuda_runtime/include" if folder.parent.name == "cuda_nvrtc" else None]
    near += [folder.parent / "include", folder.parent / "targets/x86_64-linux/include"]
    for include in near:
        if include is not None and (include / "cuda_runtime_api.h").is_file():
            return include
    try:
        from cuda import pathfinder

        found = pathfinder.find_nvidia_header_directory("cudart")
    except (ImportError, AttributeError, RuntimeError):
        return None
    if found and header_version(Path(found)) // 1000 == major:
        return Path(found)
    return None


def choose() -> Nvrtc:
    """Return the NVRTC to use: the newest whose CUDA is not newer than the driver's.

    A cubin from a newer major CUDA than the driver's may not load, so with several libraries in one
    environment (torch brings its own) the newest is not always the right one.

    Raises
    ------
    BackendError
        None is installed, or none can be loaded; the message says how to get one.
    """
    paths = candidates() or _pathfinder()
    if not paths:
        raise BackendError(f"no NVRTC library (libnvrtc.so) is installed: {CURE}")
    return _choose(tuple(paths))


@lru_cache(maxsize=8)
def _choose(paths: tuple[Path, ...]) -> Nvrtc:
    loaded, problems = [], []
    for path in paths:
        try:
            loaded.append(load(path))
        except BackendError as error:
            problems.append(error)
    if not loaded:
        raise problems[0]
    newest = driver().version
    fitting = [lib for lib in loaded if newest is None or lib.version[0] <= newest[0]]
    return max(fitting or loaded, key=lambda lib: lib.version)
