"""Run kernels that :mod:`host_build` compiled: load, pack arguments, launch, turn faults into exceptions."""

from __future__ import annotations

import ctypes
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import BackendError
from . import host_abi
from .host_abi import Fault, Kernel, KernelFault, Launch

__all__ = ["HostModule", "KernelFault"]

STACK_BYTES = 124 * 1024
MOST_SHARED = 227 * 1024
MOST_ARGUMENTS = 64
MOST_OS_THREADS = 16
_POLL_MS = 100
_KEEP = 8
_lock = threading.Lock()  # a launch borrows the process's signal handlers: one at a time
_loaded: dict[Path, tuple[int, int, int]] = {}  # inode, time and size of what was loaded from each path
_warm: dict[Path, ctypes.CDLL] = {}  # libraries launched last, latest at the end: they keep stacks


class HostModule:
    """The kernels of one shared library.

    Parameters
    ----------
    path : path
        What :func:`host_build.build` wrote.  It stays loaded until the process ends.

    Raises
    ------
    BackendError
        The file belongs to another user, cannot be loaded, or was made by another version.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if self.path.stat().st_uid != os.geteuid():
            raise BackendError(
                f"{path} belongs to user {self.path.stat().st_uid}, not to user {os.geteuid()}"
            )
        try:
            self._library = library = _load(self.path.resolve())
            version = library.kd_host_version()
        except (OSError, AttributeError) as error:
            raise BackendError(f"{path} is no library of kernels: {error}") from None
        if version != host_abi.VERSION:
            raise BackendError(
                f"{path} has interface version {version}, wanted {host_abi.VERSION}: build it again"
            )
        library.kd_host_kernel.restype = ctypes.POINTER(Kernel)
        library.kd_host_kernel.argtypes = [ctypes.POINTER(Kernel)]
        library.kd_host_start.restype = ctypes.c_void_p
        library.kd_host_start.argtypes = [ctypes.POINTER(Launch)]
        library.kd_host_wait.argtypes = [ctypes.c_void_p, ctypes.c_int]
        library.kd_host_cancel.argtypes = [ctypes.c_void_p]
        library.kd_host_cancel.restype = None
        library.kd_host_finish.argtypes = [ctypes.c_void_p, ctypes.POINTER(Fault)]
        self._kernels: dict[str, tuple[list[int], list[bool], list[str]]] = {}
        entry = library.kd_host_kernel(None)
        while entry:
            one = entry.contents
            names = one.parameters.decode().split(",") if one.count else []
            self._kernels[one.name.decode()] = (
                one.sizes[: one.count], [bool(p) for p in one.pointers[: one.count]], names
            )  # fmt: skip
            entry = library.kd_host_kernel(entry)

    def __repr__(self) -> str:
        return f"HostModule({str(self.path)!r}: {', '.join(sorted(self._kernels))})"

    def kernels(self) -> dict[str, list[int]]:
        """Return the size in bytes of each parameter of each kernel, by kernel name."""
        return {name: list(sizes) for name, (sizes, _, _) in sorted(self._kernels.items())}

    def parameters(self, name: str) -> list[str]:
        """Return the parameter names of a kernel.

        Raises
        ------
        ValueError
            No such kernel.
        """
        return list(self._kernel(name)[2])

    def launch(
        self,
        name: str,
        grid: int | Sequence[int],
        block: int | Sequence[int],
        args: Sequence[Any],
        *,
        shared_bytes: int = 0,
        seed: int = 0,
        os_threads: int | None = None,
        guard: bool = True,
        timeout: float | None = None,
        stack_bytes: int = STACK_BYTES,
    ) -> None:
        """Run a kernel and wait for its end.

        Parameters
        ----------
        name : str
            Kernel.
        grid, block : int or up to three ints
            Blocks, and threads per block (at most 1024).
        args : sequence
            Contiguous numpy arrays (changed in place), numpy scalars or bytes of exactly the parameter's
            size, None for a null pointer.
        shared_bytes : int
            Dynamic shared memory of each block.
        seed : int
            0: threads and blocks in ascending order; -1: descending; else shuffled, the same way for the
            same seed.
        os_threads : int, optional
            Blocks in flight at once; default as many as there are CPUs, at most 16.  With 1, blocks run one
            after another in the seed's order.
        guard : bool
            Run on guarded copies of the arrays, so that accesses out of bounds are reported; False runs on
            the arrays themselves, for large ones.
        timeout : float, optional
            Seconds after which the kernel is stopped.
        stack_bytes : int
            Stack of each thread: local arrays and calls.

        Raises
        ------
        KernelFault
            The kernel did something wrong; with ``guard`` the arrays are as they were.
        ValueError, TypeError
            A wrong argument.
        BackendError
            Not enough memory, or no thread could be started.

        Notes
        -----
        Ctrl-C stops the kernel.  Arguments that overlap in memory stay so in the guarded copies.
        """
        sizes, pointers, names = self._kernel(name)
        grid, block = host_abi.dimensions("grid", grid), host_abi.dimensions("block", block)
        if np.prod(block) > 1024:
            raise ValueError(f"{name}: block: got {block}, wanted at most 1024 threads")
        if not 0 <= shared_bytes <= MOST_SHARED:
            raise ValueError(f"{name}: shared_bytes: got {shared_bytes}, wanted 0..{MOST_SHARED}")
        if len(args) != len(sizes) or len(args) > MOST_ARGUMENTS:
            raise TypeError(f"{name}: got {len(args)} arguments, wanted {len(sizes)} ({', '.join(names)})")
        labels = [f"{name}: argument {i} ({n})" for i, n in enumerate(names)]
        slots = zip(labels, sizes, pointers, args, strict=True)
        values = [host_abi.value(*slot) for slot in slots]
        blocks = int(np.prod(grid, dtype=np.int64))
        if blocks == 0:
            return
        workers = max(1, min(blocks, MOST_OS_THREADS, os_threads or _cpus()))
        labels = [label.removeprefix(f"{name}: ") for label in labels]
        arguments, buffers, count = host_abi.pack(labels, values, guard)
        request = Launch(
            name.encode(), grid, block, len(values), count, workers, arguments, buffers,
            shared_bytes, stack_bytes, seed,
        )  # fmt: skip
        with _lock:
            self._run(name, request, timeout)

    def _run(self, name: str, request: Launch, timeout: float | None) -> None:
        library, fault = self._library, Fault()
        handle = library.kd_host_start(request)
        if not handle:
            raise BackendError(f"{name}: no memory or no thread to run on ({request.worker_count} threads)")
        end = None if timeout is None else time.monotonic() + timeout
        try:
            while not library.kd_host_wait(handle, _poll_ms(end)):
                if end is not None and time.monotonic() >= end:
                    self._cancel(handle)
        except BaseException:  # Ctrl-C: the kernel must not outlive the call
            self._cancel(handle)
            raise
        finally:
            library.kd_host_finish(handle, fault)
            self._keep_warm()
        if fault.set:
            block = tuple(fault.block) if fault.kind != b"timeout" or fault.has_thread else None
            text = fault.text.decode(errors="replace")
            if fault.kind == b"timeout":
                text = f"stopped after {timeout:g} s" if timeout is not None else "stopped"
            thread = tuple(fault.thread) if fault.has_thread else None
            raise KernelFault(name, fault.kind.decode(), block, thread, text)

    def _keep_warm(self) -> None:
        """Release the memory of the library that was launched longest ago."""
        _warm.pop(self.path, None)
        _warm[self.path] = self._library
        if len(_warm) > _KEEP:
            _warm.pop(next(iter(_warm))).kd_host_trim()

    def _cancel(self, handle: int) -> None:
        while True:
            self._library.kd_host_cancel(handle)
            if self._library.kd_host_wait(handle, 10):
                return

    def _kernel(self, name: str) -> tuple[list[int], list[bool], list[str]]:
        if name not in self._kernels:
            raise ValueError(f"no kernel {name!r} in this file; there are {', '.join(sorted(self._kernels))}")
        return self._kernels[name]


def _load(path: Path) -> ctypes.CDLL:
    """Load a library; the system's loader would answer a second file of the same name with the first."""
    status = path.stat()
    identity = (status.st_ino, status.st_mtime_ns, status.st_size)
    if _loaded.setdefault(path, identity) == identity:
        return ctypes.CDLL(str(path))
    with tempfile.TemporaryDirectory(prefix="kdtree_so_") as folder:
        return ctypes.CDLL(str(shutil.copy(path, folder)))


def _poll_ms(end: float | None) -> int:
    """Return how long to wait in C before Python looks at signals and the time again."""
    if end is None:
        return _POLL_MS
    return max(1, min(_POLL_MS, int(1000 * (end - time.monotonic())) + 1))


def _cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
