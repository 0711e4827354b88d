"""The first run of an edited kernel, in the worker process, before it may touch the user's own data.

A stage module may have ``self_check(library)``: it runs the stage on small inputs and raises if the result
is not the reference's.  A kernel of a file without such a module is rehearsed with copies of its own
arguments, which finds crashes and endless loops but knows no right answer.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from .arrays import Handle, handle
from .compiled import define_texts
from .kernel import Kernel, Ready
from .signature import numpy_dtype
from .sources import Unit
from .stage_hooks import hook
from .worker import Worker

if TYPE_CHECKING:
    from .kernel_library import KernelLibrary

LARGEST_BYTES = 64 << 20
"""Arguments larger than this, all together, are not copied to the worker."""
SECONDS = 60.0
"""Time limit of one check; small inputs take milliseconds."""

_workers: dict[str, Worker] = {}


def worker(library: KernelLibrary) -> Worker:
    """Return the one worker of this process (one per cache folder, and there is one of those)."""
    folder = library.cache.folder
    return _workers.setdefault(str(folder), Worker(folder))


def describe_library(library: KernelLibrary, unit: Unit, backend: str) -> dict[str, Any]:
    """Return what the worker needs to build the same library, with the unit's text as it is now."""
    return {
        "source": [str(folder) for folder in library.sources.folders],
        "backend": backend,
        "arch": library.arch,
        "defines": dict(library.defines),
        "host_options": dict(library.host_options),
        "replaced": {**library.sources.replaced, **unit.texts},
    }


def first_run(
    library: KernelLibrary, unit: Unit, kernel: Kernel, ready: Ready, defines: Mapping[str, Any]
) -> None:
    """Run an edited kernel in the worker, once per content, and remember that it passed.

    Raises
    ------
    KernelError
        It crashed, did not end, or its stage does not agree with the reference.
    """
    macros = define_texts(library.defines, defines)
    if check_stage(library, unit, kernel.backend, kernel.device, macros):
        return
    key = _key(unit, kernel.backend, kernel.device, kernel.name, macros)
    if key in library.passed:
        return
    task = {"library": describe_library(library, unit, kernel.backend), "device": kernel.device}
    if 0 not in ready.grid:
        run_copy(library, {**task, "file": unit.main, "defines": dict(defines)}, kernel, ready)
    library.passed.add(key)


def _key(unit: Unit, backend: str, device: int | None, name: str | None, macros: Mapping[str, str]) -> Any:
    return unit.digest, backend, device, name, tuple(macros.items())


def check_stage(
    library: KernelLibrary, unit: Unit, backend: str, device: int | None, macros: Mapping[str, str]
) -> bool:
    """Run the ``self_check`` of a unit's stage in the worker, once per content; False if it has none.

    Raises
    ------
    KernelError
        It crashed, did not end, or does not agree with the reference.
    """
    check = hook(unit.main, "self_check")
    if check is None:
        return False
    key = _key(unit, backend, device, None, macros)  # a stage's check covers all its kernels
    if key not in library.passed:
        task = {"library": describe_library(library, unit, backend), "device": device}
        what = f"the check of {unit.main} against its reference"
        worker(library).run({**task, "task": "check", "module": check.__module__}, what, SECONDS)
        library.passed.add(key)
    return True


def run_copy(library: KernelLibrary, task: dict[str, Any], kernel: Kernel, ready: Ready) -> None:
    """Launch once in the worker on copies of the arguments; only warns if they are too large to copy."""
    handles = {id(one.array): one for one in ready.arguments if isinstance(one, Handle)}
    size = sum(numpy_bytes(one) for one in handles.values())
    if size > LARGEST_BYTES:
        warnings.warn(
            f"{kernel.name} was edited and runs unchecked: its arguments ({size >> 20} MiB) are too large to "
            "try it on copies. Call it once on smaller arrays to have it checked",
            stacklevel=4,
        )
        return
    copies = {key: to_numpy(one) for key, one in handles.items()}  # one array given twice stays one array
    args = [copies[id(a.array)] if isinstance(a, Handle) else a for a in ready.arguments]
    launch = {"grid": ready.grid, "block": ready.block, "shared_bytes": ready.shared_bytes}
    what = f"{task['file']}: {kernel.name} with grid {ready.grid}, block {ready.block}"
    worker(library).run(
        {**task, **launch, "task": "launch", "kernel": kernel.name, "args": args}, what, SECONDS
    )


def numpy_bytes(one: Handle) -> int:
    """Return the bytes of an array."""
    return int(np.prod(one.shape, dtype=np.int64)) * numpy_dtype(one.dtype).itemsize


def to_numpy(one: Handle) -> np.ndarray:
    """Return a copy in host memory of any array; waits for the device."""
    if one.device is None:
        return one.numpy().copy()
    if one.kind == "torch":
        cpu = handle(one.array.detach().cpu())
        return cpu.numpy()
    if one.kind == "cupy":
        return one.array.get()
    import cupy

    return cupy.asarray(one.array).get()
