"""Look at everything kernels need here: system, driver, compilers, caches.  Nothing is changed."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from ..errors import BackendError, CompileError
from . import cuda, doctor_cuda, host_build
from .cache import Cache
from .driver import LIBRARIES, driver
from .findings import FAULT, INFO, OK, WARNING, Finding
from .kernel_library import KernelLibrary

_PROBE = """
#include "common.cuh"
extern "C" __global__ void doctor_v1(int* x, float y)
{
    x[threadIdx.x] = int(to_float(from_float<__nv_bfloat16>(y)));
}
"""
_LEAST_FOR_BLACKWELL = (12, 8)


def findings() -> list[Finding]:
    """Return the findings of every check; a check that itself fails is a finding too."""
    found: list[Finding] = []
    for check in CHECKS:
        try:
            found += check()
        except (OSError, ValueError, RuntimeError) as error:
            name = check.__name__.removeprefix("check_")
            found.append(Finding(name, WARNING, f"could not be checked: {type(error).__name__}: {error}"))
    return found


def check_python() -> Iterator[Finding]:
    """Name the versions that a report of a problem needs."""
    try:
        version = importlib.metadata.version("kdtree-cupy")
    except importlib.metadata.PackageNotFoundError:
        version = "not installed as a package"
    detail = f"Python {platform.python_version()} ({sys.executable}), numpy {np.__version__}"
    system = f"{platform.system()} {platform.machine()}"
    yield Finding("python", OK, f"{detail}, kdtree_cupy {version}, {system}")


def check_driver() -> Iterator[Finding]:
    """Ask the driver for its version and devices."""
    found = driver()
    if found.library is None:
        cure = "none needed for the CPU and for compiling; to launch on a GPU, install NVIDIA's driver"
        yield Finding("driver", INFO, found.problem or "no driver", cure)
        return
    version = ".".join(map(str, found.version)) if found.version else "unknown"
    detail = f"{found.library}, supports CUDA {version}"
    if found.problem:
        cure = (
            "run nvidia-smi; in a container, start it with --gpus all; after an update of the driver, reboot"
        )
        yield Finding("driver", FAULT, f"{detail}: {found.problem}", cure)
        return
    yield Finding("driver", OK, detail)
    if not found.devices:
        cure = "look at CUDA_VISIBLE_DEVICES, and at the options of the container or the batch system"
        yield Finding("devices", WARNING, "the driver sees no device", cure)
    for one in found.devices:
        detail = f"{one.ordinal}: {one.name}, {one.arch}, {one.memory >> 30} GiB"
        if one.capability >= (10, 0) and (found.version or (99, 0)) < _LEAST_FOR_BLACKWELL:
            yield Finding("devices", FAULT, detail, "this chip needs a driver of CUDA 12.8 (R570) or newer")
        else:
            yield Finding("devices", OK, detail)


def check_wsl(version: Path = Path("/proc/version"), root: Path = Path("/")) -> Iterator[Finding]:
    """On WSL the driver is Windows' own; a Linux driver installed beside it hides that."""
    try:
        inside = "microsoft" in version.read_text().lower()
    except OSError:
        inside = False
    if not inside:
        return
    if not (root / LIBRARIES[1].lstrip("/")).exists():
        cure = "install NVIDIA's driver in Windows (not in Linux), then `wsl --update` and `wsl --shutdown`"
        yield Finding("wsl", WARNING, f"WSL without {LIBRARIES[1]}", cure)
        return
    others = [p for p in (root / "usr/lib").glob("*-linux-gnu/libcuda.so.1")]
    if others:
        cure = "remove the Linux driver (apt remove 'libnvidia-*'), or set LD_LIBRARY_PATH=/usr/lib/wsl/lib"
        yield Finding(
            "wsl", FAULT, f"a second driver beside that of WSL: {', '.join(map(str, others))}", cure
        )
    else:
        yield Finding("wsl", OK, f"driver of Windows at {LIBRARIES[1]}")


def check_cache() -> Iterator[Finding]:
    """Say where compiled kernels are kept, and whether that is where the user wants them."""
    cache = Cache()
    entries = [path for path in cache.folder.iterdir() if path.suffix in (".cubin", ".so")]
    size = sum(path.stat().st_size for path in cache.folder.iterdir() if path.is_file())
    detail = f"{cache.folder}: {len(entries)} kernels, {size / 2**20:.1f} MiB"
    if cache.reason:
        cure = "make it a folder of yours with mode 700, or set KDTREE_CACHE to one"
        yield Finding("cache", WARNING, f"{cache.reason}; using {detail}", cure)
    else:
        yield Finding("cache", OK, detail, "delete the folder to start afresh" if size > 1 << 30 else "")
    problem = cuda.cupy_cache_problem()
    if problem:
        detail = f"CuPy's own folder cannot be used ({problem}); {cache.folder / 'cupy'} is used instead"
        yield Finding("cupy cache", WARNING, detail, "set CUPY_CACHE_DIR to a folder of yours")


def check_compiler() -> Iterator[Finding]:
    """Find the C++ compiler of the host backend, and build and run a kernel with it."""
    try:
        compiler = host_build.find_compiler()
    except BackendError as error:
        reason, _, cure = str(error).partition(": ")
        status = FAULT if os.environ.get("CXX", "").strip() else INFO
        yield Finding("compiler", status, f"{reason}; kernels run as numpy references on the CPU", cure)
        return
    detail = f"{compiler.version} ({' '.join(compiler.command)})"
    library = _probe("host")
    x = np.zeros(4, np.int32)
    try:
        library.launch("doctor.cu", "doctor_v1", 1, 4, (x, np.float32(3)))
    except (CompileError, BackendError) as error:
        cure = "set CXX to another compiler, or install g++"
        yield Finding("compiler", FAULT, f"{detail} cannot run a kernel: {error}", cure)
        return
    yield Finding("compiler", OK if x.tolist() == [3] * 4 else FAULT, f"{detail}, built and ran a kernel")


def check_nvrtc() -> Iterator[Finding]:
    """Find NVRTC and its headers, and compile a kernel for the device (or for ``sm_120``)."""
    yield from doctor_cuda.check_nvrtc(lambda: _probe("auto").compile("doctor.cu"))


def _probe(backend: str) -> KernelLibrary:
    library = KernelLibrary(backend=backend)
    library.checks_edits = False
    library.replace("doctor.cu", _PROBE, new=True)
    return library


CHECKS: tuple[Callable[[], Iterator[Finding]], ...] = (
    check_python,
    check_driver,
    check_wsl,
    check_nvrtc,
    doctor_cuda.check_cupy,
    doctor_cuda.check_torch,
    check_compiler,
    check_cache,
)
