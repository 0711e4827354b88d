"""One kernel on one backend: arguments are checked, then it runs."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .arrays import Handle
from .launch import Slot, check, dimensions

Runner = Callable[..., None]
"""Grid, block, arguments, bytes of shared memory; ``early=True`` on a device only."""


@dataclass(slots=True)
class Ready:
    """A launch whose arguments have been checked."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    arguments: list[Handle | np.generic | None]
    shared_bytes: int
    early: bool = False


@dataclass(frozen=True)
class Kernel:
    """A compiled kernel that can be called; :meth:`KernelLibrary.kernel` makes one.

    Unlike :meth:`KernelLibrary.launch` it does not look at the source again: it stays as it was compiled,
    which is what a loop to be timed or captured wants.

    Parameters
    ----------
    file, name : str
        Where it comes from.
    backend : str
        "cuda" or "host".
    device : int or None
        CUDA ordinal, None for the host.
    slots : tuple of Slot or None
        What is known of its parameters; None if nothing is.
    static_shared : int
        Bytes of static shared memory.
    shared_limit : int or None
        Most shared memory of a block, static and dynamic together; None if not known.
    max_threads : int or None
        Threads per block promised by ``__launch_bounds__``.
    """

    file: str
    name: str
    backend: str
    device: int | None
    slots: tuple[Slot, ...] | None
    static_shared: int
    shared_limit: int | None
    max_threads: int | None
    run: Runner

    def __call__(self, grid: Any, block: Any, args: Sequence[Any], *, shared_bytes: int = 0) -> None:
        """Check everything, then launch; does not wait for the device.

        Parameters
        ----------
        grid, block : int or tuple of up to three ints
            Blocks, and threads per block.  A grid with a 0 launches nothing.
        args : sequence
            Arrays, numpy or Python scalars, or None for a null pointer, in the kernel's order.
        shared_bytes : int
            Dynamic shared memory.

        Raises
        ------
        TypeError, ValueError
            A wrong argument; the message names it, what it got and what it wants.
        """
        self.start(self.prepare(grid, block, args, shared_bytes))

    def prepare(self, grid: Any, block: Any, args: Sequence[Any], shared_bytes: int = 0) -> Ready:
        """Return a checked launch; raises as calling does."""
        wanted_grid = dimensions(self.name, "grid", grid)
        wanted_block = dimensions(self.name, "block", block)
        threads = wanted_block[0] * wanted_block[1] * wanted_block[2]
        if self.max_threads and threads > self.max_threads:
            raise ValueError(
                f"{self.name}: block: got {threads} threads, wanted <= {self.max_threads} (__launch_bounds__)"
            )
        size = self._shared(shared_bytes)
        return Ready(wanted_grid, wanted_block, check(self.name, self.slots, args, self.device), size)

    def start(self, ready: Ready) -> None:
        """Launch what :meth:`prepare` returned; a grid with a 0 launches nothing."""
        if 0 not in ready.grid:
            early = {"early": True} if ready.early else {}
            self.run(ready.grid, ready.block, ready.arguments, ready.shared_bytes, **early)

    def _shared(self, given: Any) -> int:
        try:
            size = operator.index(given)
        except TypeError:
            raise TypeError(f"{self.name}: shared_bytes: got {type(given).__name__}, wanted an int") from None
        if size < 0:
            raise ValueError(f"{self.name}: shared_bytes: got {size}, wanted >= 0")
        if self.shared_limit is not None and self.static_shared + size > self.shared_limit:
            raise ValueError(
                f"{self.name}: shared_bytes: got {size} beside {self.static_shared} static, wanted a sum of "
                f"<= {self.shared_limit}, the most that this architecture gives one block"
            )
        return size
