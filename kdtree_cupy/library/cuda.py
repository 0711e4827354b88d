"""Load cubins with CuPy and launch them: the only module of the library that imports CuPy by itself."""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import BackendError
from .arrays import Handle, torch_stream
from .cache import Cache, unsafe
from .compiled import Compiled, KernelInfo
from .driver import driver
from .early import launch_early

INSTALL = "pip install 'kdtree-cupy[cuda12]' (or cuda13 for a driver of CUDA 13 or newer)"
_OPT_IN_SHARED = 48 * 1024  # more than this per block must be asked for
_MODULES = 64
"""Modules kept loaded, over all devices; the least recently used one goes first."""


def cupy_cache_problem() -> str | None:
    """Return why CuPy's own cache folder, as it is set now, cannot be used; None if it can.

    ``import cupy`` makes that folder and fails if it cannot, even with its in-memory cache.
    """
    chosen = os.environ.get("CUPY_CACHE_DIR")
    try:
        folder = Path(chosen) if chosen else Path.home() / ".cupy" / "kernel_cache"
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return None
    except (OSError, RuntimeError) as error:
        return str(error)


def import_cupy(cache: Cache) -> Any:
    """Import CuPy, with its cache folder moved beside ours if its own cannot be written.

    Raises
    ------
    BackendError
        CuPy is missing or broken; the message says what to install.
    """
    if "cupy" in sys.modules:
        return sys.modules["cupy"]
    if cupy_cache_problem() is not None:
        own = cache.folder / "cupy"
        if unsafe(own) is None:
            os.environ["CUPY_CACHE_DIR"] = str(own)
    try:
        import cupy
    except ImportError as error:
        broken = "" if isinstance(error, ModuleNotFoundError) else f" ({error})"
        raise BackendError(
            f"backend 'cuda' needs CuPy, which cannot be imported{broken}: {INSTALL}"
        ) from None
    except OSError as error:
        raise BackendError(
            f"importing CuPy failed: {error}; set CUPY_CACHE_DIR to a folder of yours"
        ) from None
    return cupy


def require_device(cache: Cache) -> Any:
    """Return CuPy if there is a device to run on; BackendError with the reason and the cure otherwise."""
    found = driver()
    if not found.devices:
        reason = found.problem or "the driver sees no device"
        raise BackendError(
            f"backend 'cuda' cannot run: {reason}; use backend='auto' with numpy arrays here, "
            "or see what `kdtree doctor` says"
        )
    return import_cupy(cache)


def capability(device: int) -> tuple[int, int]:
    """Return the compute capability of a device that holds an array."""
    devices = driver().devices
    if device < len(devices):
        return devices[device].capability
    import cupy

    digits = cupy.cuda.Device(device).compute_capability
    return int(digits[:-1]), int(digits[-1])


class Modules:
    """Loaded modules by device and content, the least recently used dropped first."""

    def __init__(self, most: int = _MODULES) -> None:
        self.most = most
        self._modules: OrderedDict[tuple[int, str], Any] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, cupy: Any, device: int, compiled: Compiled) -> Any:
        """Return the ``cupy.RawModule`` of a cubin on a device, loading it at first need."""
        key = (device, compiled.key)
        with self._lock:
            module = self._modules.get(key)
            if module is None:
                with cupy.cuda.Device(device):
                    module = cupy.RawModule(path=str(compiled.path))
                self._modules[key] = module
            self._modules.move_to_end(key)
            while len(self._modules) > self.most:
                self._modules.popitem(last=False)
        return module

    def clear(self) -> None:
        """Drop all modules, CuPy's own memo of them too, so that the driver can unload them."""
        with self._lock:
            self._modules.clear()
        if "cupy" in sys.modules:
            sys.modules["cupy"].clear_memo()

    def __len__(self) -> int:
        return len(self._modules)


MODULES = Modules()


class _Stream:
    """A stream of torch's, in the protocol that CuPy accepts."""

    def __init__(self, pointer: int) -> None:
        self._pointer = pointer

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._pointer


class CudaKernel:
    """One kernel on one device, ready to launch with checked arguments."""

    def __init__(self, cupy: Any, device: int, module: Any, info: KernelInfo) -> None:
        self._cupy = cupy
        self._device = device
        self._static = info.static_shared
        self._allowed = _OPT_IN_SHARED
        with cupy.cuda.Device(device):
            self._function = module.get_function(info.name)

    def run(
        self,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        arguments: Sequence[Handle | np.generic | None],
        shared_bytes: int,
        early: bool = False,
    ) -> None:
        """Launch on the current stream of CuPy, or of torch if an argument is torch's; does not wait.

        ``early``: by :func:`~kdtree_cupy.library.early.launch_early` where the device can.
        """
        cupy = self._cupy
        packed = tuple(map(pack, arguments))
        stream = torch_stream([one for one in arguments if isinstance(one, Handle)])
        with ExitStack() as stack:
            if cupy.cuda.runtime.getDevice() != self._device:
                stack.enter_context(cupy.cuda.Device(self._device))
            if stream is not None and stream != cupy.cuda.get_current_stream().ptr:
                stack.enter_context(cupy.cuda.Stream.from_external(_Stream(stream)))
            if self._static + shared_bytes > self._allowed:
                self._function.max_dynamic_shared_size_bytes = shared_bytes
                self._allowed = self._static + shared_bytes
            if early and capability(self._device) >= (9, 0):
                current = cupy.cuda.get_current_stream().ptr
                if launch_early(self._function.kernel.ptr, grid, block, packed, shared_bytes, current):
                    return
            self._function(grid, block, packed, shared_mem=shared_bytes)


def pack(argument: Handle | np.generic | None) -> Any:
    """Return what CuPy puts into the parameter buffer: a pointer's or a scalar's exact bytes."""
    if argument is None:
        return np.uint64(0)
    if isinstance(argument, Handle):
        return np.uint64(argument.pointer)
    if argument.dtype.kind == "V" and argument.dtype.itemsize in (1, 2):  # bfloat16, float8: CuPy wants ints
        return argument.view(np.uint16 if argument.dtype.itemsize == 2 else np.uint8)
    return np.asarray(argument) if isinstance(argument, np.void) else argument
