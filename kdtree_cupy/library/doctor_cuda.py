"""The part of the doctor that looks at NVRTC, its headers, CuPy and torch."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

from ..errors import BackendError, CompileError
from . import cuda, nvrtc
from .cache import Cache, unsafe
from .compiled import Compiled
from .driver import driver
from .findings import FAULT, INFO, OK, WARNING, Finding

_CUPY = re.compile(r"cupy(-cuda\d+x|-rocm[\w-]*)?")
_LEAST_CUPY = (14, 2)
_ASK_CUPY = """
import json, cupy
from cupy.cuda import nvrtc, runtime
said = {"version": cupy.__version__, "runtime": runtime.runtimeGetVersion(), "nvrtc": None}
try:
    said["nvrtc"] = nvrtc.getVersion()
except Exception as error:
    said["problem"] = str(error)
print(json.dumps(said))
"""


def check_nvrtc(compile_probe: Callable[[], Compiled]) -> Iterator[Finding]:
    """Find NVRTC and its headers, and compile a kernel with it."""
    try:
        chosen = nvrtc.choose()
    except BackendError as error:
        reason, _, cure = str(error).partition(": ")
        status = FAULT if driver().devices else INFO
        yield Finding("nvrtc", status, f"{reason}; no kernel can be compiled for a GPU", cure)
        return
    newest = f"sm_{max(chosen.archs)}"
    yield Finding("nvrtc", OK, f"{chosen.name}, up to {newest}")
    yield from _others(chosen)
    yield from _headers(chosen)
    try:
        made = compile_probe()
    except BackendError as error:
        yield Finding("nvrtc", FAULT, f"cannot compile for this device: {error}", nvrtc.CURE)
    except CompileError as error:
        yield Finding("nvrtc", FAULT, f"a small kernel does not compile: {error}", nvrtc.CURE)
    else:
        how = "from the cache" if made.cached else f"in {made.seconds:.2f} s"
        yield Finding("compile", OK, f"a small kernel for {made.arch}, {how}")


def _others(chosen: nvrtc.Nvrtc) -> Iterator[Finding]:
    others = [path for path in nvrtc.candidates() if path != chosen.path]
    if not others:
        return
    described = []
    for path in others:
        try:
            described.append(nvrtc.load(path).name)
        except BackendError as error:
            described.append(str(error))
    cure = "none needed; KDTREE_NVRTC=/path/to/libnvrtc.so chooses another"
    yield Finding("nvrtc", WARNING, f"{len(others)} more beside it, not used: {'; '.join(described)}", cure)


def _headers(chosen: nvrtc.Nvrtc) -> Iterator[Finding]:
    if chosen.include is None:
        cure = f"{nvrtc.CURE} brings NVRTC and headers of one version"
        yield Finding(
            "headers", FAULT, f"no CUDA headers of version {chosen.version[0]} for {chosen.path}", cure
        )
        return
    number = nvrtc.header_version(chosen.include)
    version = (number // 1000, number % 1000 // 10)
    detail = f"CUDA {version[0]}.{version[1]} in {chosen.include}"
    if version == chosen.version:
        yield Finding("headers", OK, detail)
    else:
        wanted = ".".join(map(str, chosen.version))
        cure = f"install the CUDA runtime headers of {wanted} beside this NVRTC"
        yield Finding("headers", WARNING, f"{detail}, but NVRTC is {wanted}", cure)


def cupy_distributions() -> list[str]:
    """Return ``name version`` of every installed distribution of CuPy."""
    found = {}
    for one in importlib.metadata.distributions():
        name = (one.metadata["Name"] or "").lower().replace("_", "-")
        if _CUPY.fullmatch(name):
            found[name] = one.version
    return [f"{name} {version}" for name, version in sorted(found.items())]


def check_cupy() -> Iterator[Finding]:
    """Look for CuPy, exactly one of it, and import it in a process of its own."""
    installed = cupy_distributions()
    devices = driver().devices
    if not installed:
        yield Finding(
            "cupy", WARNING if devices else INFO, "CuPy is not installed: no launches on a GPU", cuda.INSTALL
        )
        return
    if len(installed) > 1:
        names = " ".join(one.split()[0] for one in installed)
        cure = f"pip uninstall {names}, then install one of them again (in conda: conda remove cupy, too)"
        yield Finding(
            "cupy", FAULT, f"{len(installed)} CuPys overwrite each other: {', '.join(installed)}", cure
        )
    said = ask_cupy()
    if "error" in said:
        yield Finding(
            "cupy", FAULT, f"{installed[0]} cannot be imported: {said['error']}", "install it again"
        )
        return
    version, runtime = said["version"], said["runtime"]
    detail = f"{installed[0]}, built for CUDA {runtime // 1000}.{runtime % 1000 // 10}"
    newest = driver().version
    if newest and runtime // 1000 > newest[0]:
        cure = f"pip uninstall {installed[0].split()[0]}; pip install 'kdtree-cupy[cuda{newest[0]}]'"
        yield Finding("cupy", FAULT, f"{detail}, newer than the driver's {newest[0]}.{newest[1]}", cure)
    elif tuple(map(int, re.findall(r"\d+", version)[:2])) < _LEAST_CUPY:
        yield Finding("cupy", WARNING, detail, "pip install -U to CuPy 14.2 or newer")
    else:
        yield Finding("cupy", OK, detail)
    yield from _cupy_nvrtc(said)


def _cupy_nvrtc(said: dict[str, Any]) -> Iterator[Finding]:
    if said["nvrtc"] is None:
        detail = "CuPy itself finds no NVRTC: our kernels run, cupy's own operations do not"
        yield Finding("cupy", WARNING, detail, nvrtc.CURE)
        return
    try:
        ours = nvrtc.choose().version
    except BackendError:
        return
    if tuple(said["nvrtc"]) != ours:
        theirs = ".".join(map(str, said["nvrtc"]))
        detail = f"CuPy's own operations use NVRTC {theirs}, our kernels {ours[0]}.{ours[1]}"
        yield Finding(
            "cupy", WARNING, detail, "harmless; uninstall one of the NVRTC packages to have one only"
        )


def ask_cupy() -> dict[str, Any]:
    """Import CuPy in a child process and return what it says, or ``{"error": ...}``."""
    environment = dict(os.environ)
    if cuda.cupy_cache_problem():
        own = Cache().folder / "cupy"
        if unsafe(own) is None:
            environment["CUPY_CACHE_DIR"] = str(own)
    try:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", _ASK_CUPY], capture_output=True, text=True, timeout=120,
            env=environment, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return {"error": "no answer within 120 s"}
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        return {"error": last[0]}
    return json.loads(done.stdout.splitlines()[-1])


def check_torch() -> Iterator[Finding]:
    """Name torch's version (it is not imported: that takes seconds)."""
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return
    yield Finding("torch", OK, f"torch {version}")
