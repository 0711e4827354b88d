"""One warm worker process in which kernels edited by the user run first.

An illegal address makes every later CUDA call of its process fail, an endless loop never returns, a crash on
the host ends the process: in the worker all three become an exception here, and a new worker takes its place.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import weakref
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from ..errors import BackendError

_START_SECONDS = 120.0  # importing CuPy and making a CUDA context can take long on a cold disk
_TAIL = 2000  # characters of the worker's own output to show


class KernelError(BackendError):
    """A kernel under test crashed, did not end in time, or does not agree with its reference."""


class Worker:
    """Start, feed, watch and replace the worker process.

    Parameters
    ----------
    folder : Path
        Cache folder that the worker shares.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._process: subprocess.Popen | None = None
        self._link: Connection | None = None
        self._owner = 0
        self._warm: set[tuple[str, int | None]] = set()
        self._said: Any = None
        self._begin = 0

    @property
    def pid(self) -> int | None:
        """Process id of the running worker, or None."""
        alive = self._process is not None and self._process.poll() is None
        return self._process.pid if alive else None

    def run(self, task: dict[str, Any], what: str, seconds: float) -> Any:
        """Run one task and return its result.

        Parameters
        ----------
        task : dict
            See :mod:`kdtree_cupy.library.worker_main`.
        what : str
            What runs, for messages: kernel, grid and block.
        seconds : float
            Time limit, not counting the start of the worker.

        Raises
        ------
        KernelError
            The task raised, crashed or outlived the limit; the message says which, and the worker is
            replaced at the next call.
        """
        with self._lock:
            if self.pid is None or self._owner != os.getpid():
                self._start()
            place = (task["library"]["backend"], task.get("device"))
            if place not in self._warm:
                self._ask(
                    {"task": "warm", "backend": place[0], "device": place[1]}, "the worker", _START_SECONDS
                )
                self._warm.add(place)
            return self._ask(task, what, seconds)

    def _start(self) -> None:
        self.stop()
        if not sys.executable:
            raise BackendError(
                "edited kernels are checked in a worker process, but sys.executable is not known"
            )
        ours, theirs = socket.socketpair()
        self._said, self._begin = tempfile.TemporaryFile("w+b"), 0  # noqa: SIM115  closed in stop()
        paths = [str(Path(entry).resolve()) for entry in sys.path if entry]
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "kdtree_cupy.library.worker_main", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self._said,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "KDTREE_CACHE": str(self._folder)},
                start_new_session=True,  # Ctrl-C in a notebook must not kill it half-way
            )
        self._link = Connection(ours.detach())
        self._owner = os.getpid()
        self._warm = set()
        self._finalizer = weakref.finalize(self, _end, self._process)
        self._receive("the worker", _START_SECONDS)

    def _ask(self, task: dict[str, Any], what: str, seconds: float) -> Any:
        self._begin = os.fstat(self._said.fileno()).st_size  # what earlier tasks said is not this one's
        try:
            self._link.send(task)
        except OSError:
            raise KernelError(self._dead(what)) from None
        state, value = self._receive(what, seconds)
        if state == "done":
            return value
        kind, message, _ = value
        self.stop()  # a CUDA context is unusable after a fault, and a new process costs a second
        raise KernelError(f"{what} failed in the worker: {kind}: {message}{self._tail}")

    def _receive(self, what: str, seconds: float) -> tuple[str, Any]:
        try:
            if not self._link.poll(seconds):
                self.stop()
                raise KernelError(
                    f"{what} did not end within {seconds:g} s; the worker was replaced{self._tail}"
                )
            return self._link.recv()
        except KeyboardInterrupt:
            self.stop()
            raise
        except (EOFError, OSError, pickle.UnpicklingError):
            raise KernelError(self._dead(what)) from None

    def _dead(self, what: str) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        code = self._process.returncode
        self.stop()
        how = f"exit code {code}"
        if code is not None and code < 0:
            with contextlib.suppress(ValueError):
                how = signal.Signals(-code).name
        return f"{what} ended the worker process ({how}); the worker was replaced{self._tail}"

    _tail = ""

    def stop(self) -> None:
        """End the worker; the next task starts a new one."""
        self._tail = ""
        if self._process is not None and self._owner == os.getpid():
            _end(self._process)
        if self._said is not None:
            self._tail = _last(self._said, self._begin)
            self._said.close()
        if self._link is not None:
            self._link.close()
        self._process = self._link = self._said = None


def _last(file: Any, begin: int) -> str:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(begin, size - _TAIL))
    text = file.read().decode(errors="replace").strip()
    return f"\nlast output of the worker:\n{text}" if text else ""


def _end(process: subprocess.Popen) -> None:
    if process.poll() is None:
        process.kill()
    process.wait()
