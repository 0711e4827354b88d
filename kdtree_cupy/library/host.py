"""Kernels on the CPU: build and run of the host layer, behind the same content-hash cache as cubins."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import BackendError
from . import host_build
from .arrays import Handle
from .cache import Cache
from .host_run import HostModule
from .sources import Unit

problem = host_build.problem
_FORMAT = 1  # raise when the meaning of a cached entry changes
_GUARDED_BYTES = 1 << 30
"""Arrays larger than this, all together, are not copied into guarded buffers."""

_modules: dict[Path, HostModule] = {}  # a library stays loaded until the process ends


def load(unit: Unit, defines: Mapping[str, str], cache: Cache, *, sanitize: bool = False) -> HostModule:
    """Return the kernels of a unit, built for this CPU or taken from the cache.

    Raises
    ------
    CompileError
        The compiler refused it; the message is its first error, with the user's file and line.
    BackendError
        There is no C++ compiler, or the result cannot be loaded.
    """
    stamp = host_build.stamp(sanitize=sanitize)
    parts = json.dumps([_FORMAT, stamp, unit.main, unit.digest, dict(defines)])
    key = hashlib.sha256(parts.encode()).hexdigest()[:40]
    known = _modules.get(cache.folder / f"{key}.so")
    if known:
        return known
    entry = cache.load(key, ".so")
    if entry:
        try:
            return _modules.setdefault(entry[0], HostModule(entry[0]))
        except BackendError:  # of another version of the host layer: make it again
            entry = None
    with tempfile.TemporaryDirectory(prefix="kdtree_so_") as folder:
        out = Path(folder) / "kernels.so"
        host_build.build(unit.texts, unit.main, defines, out=out, sanitize=sanitize, origins=unit.origins)
        path = cache.store(key, ".so", out.read_bytes(), {"file": unit.main, "compiler": stamp})
    return _modules.setdefault(path, HostModule(path))


class HostKernel:
    """One kernel of a host module, ready to run with checked arguments.

    Parameters
    ----------
    module, name
        The kernel.
    options : dict
        ``seed``, ``os_threads`` and ``timeout`` of :meth:`HostModule.launch`, read at each launch.
    """

    def __init__(self, module: HostModule, name: str, options: Mapping[str, Any]) -> None:
        self._module = module
        self._name = name
        self._options = options

    def run(
        self,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        arguments: Sequence[Handle | np.generic | None],
        shared_bytes: int,
    ) -> None:
        """Run to the end on this thread; faults of the kernel raise ``KernelFault``."""
        plain = [one.numpy() if isinstance(one, Handle) else one for one in arguments]
        size = sum(one.nbytes for one in plain if isinstance(one, np.ndarray))
        options = {k: v for k, v in self._options.items() if k != "sanitize"}
        options.setdefault("guard", size <= _GUARDED_BYTES)
        self._module.launch(self._name, grid, block, plain, shared_bytes=shared_bytes, **options)
