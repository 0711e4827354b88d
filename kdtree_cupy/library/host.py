"""Kernels on the CPU: the host layer's build and run, behind the same content-hash cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import BackendError
from .arrays import Handle
from .cache import Cache
from .sources import Unit


def problem() -> str | None:
    """Return why kernels cannot be built for the CPU here, or None."""
    return "the host layer is not here yet"


def load(unit: Unit, defines: Mapping[str, str], cache: Cache) -> Any:
    """Return the loaded host module of a unit."""
    raise BackendError("the host layer is not here yet")


class HostKernel:
    """One kernel of a host module, ready to run with checked arguments."""

    def __init__(self, module: Any, name: str) -> None:
        self._module = module
        self._name = name

    def run(
        self,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        arguments: Sequence[Handle | np.generic | None],
        shared_bytes: int,
    ) -> None:
        """Run to the end on this thread."""
        plain = [one.numpy() if isinstance(one, Handle) else one for one in arguments]
        self._module.launch(self._name, grid, block, plain, shared_bytes=shared_bytes)
