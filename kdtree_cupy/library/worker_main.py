"""The worker process: runs kernels that may crash or never end, so that their caller does not.

Started by :mod:`kdtree_cupy.library.worker` as ``python -m kdtree_cupy.library.worker_main FD``; it takes one
task at a time from the socket FD and ends when the other side closes it.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
import time
import traceback
from multiprocessing.connection import Connection
from typing import Any

import numpy as np


def main(descriptor: int) -> None:
    """Serve tasks until the parent goes away; a failed CUDA context cannot be repaired, so end on faults."""
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    link = Connection(descriptor)
    link.send(("ready", None))
    while True:
        try:
            task = link.recv()
        except EOFError:
            return
        try:
            answer = ("done", TASKS[task["task"]](task))
        except Exception as error:  # noqa: BLE001  whatever it is, the caller must hear of it
            link.send(("failed", (type(error).__name__, str(error), traceback.format_exc())))
            continue
        link.send(answer)


def _end_with(parent: int) -> None:
    """End this process, even amid an endless kernel, once its parent is gone."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def _library(spec: dict[str, Any]) -> Any:
    from .kernel_library import KernelLibrary

    library = KernelLibrary(spec["source"], spec["backend"], spec["arch"], spec["defines"])
    for name, text in spec["replaced"].items():
        library.replace(name, text, new=True)
    library.host_options.update(spec["host_options"])
    library.checks_edits = False  # this process is where they are checked
    return library


def warm(task: dict[str, Any]) -> None:
    """Import what the backend needs, outside the time limit of the tasks that follow."""
    if task["backend"] == "cuda":
        import cupy

        cupy.cuda.Device(task["device"]).synchronize()


def run_check(task: dict[str, Any]) -> None:
    """Run a stage's own comparison with its reference on small inputs."""
    importlib.import_module(task["module"]).self_check(_library(task["library"]))
    if task["library"]["backend"] == "cuda":
        sys.modules["cupy"].cuda.Device().synchronize()


def run_launch(task: dict[str, Any]) -> None:
    """Launch one kernel on copies of the caller's arrays and wait for it."""
    library = _library(task["library"])
    arguments = task["args"]
    if task["library"]["backend"] == "cuda":
        import cupy

        cupy.cuda.Device(task["device"]).use()
        moved = {id(a): cupy.asarray(a) for a in arguments if isinstance(a, np.ndarray)}
        arguments = [moved.get(id(a), a) for a in arguments]
    launch = {name: task[name] for name in ("file", "kernel", "grid", "block", "shared_bytes", "defines")}
    library.launch(args=arguments, **launch, backend=task["library"]["backend"], device=task["device"])
    if task["library"]["backend"] == "cuda":
        sys.modules["cupy"].cuda.Device().synchronize()


TASKS = {"warm": warm, "check": run_check, "launch": run_launch}

if __name__ == "__main__":
    main(int(sys.argv[1]))
