"""Memory that kernels of one stage share between launches, and the size of the card they run on."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from .library import arrays

if TYPE_CHECKING:
    from .library import Run

Array = Any
HOST_MULTIPROCESSORS = 2
"""What the host counts as: few, so that rows are cut in some slices and slices are longer than a tile."""

_kept: dict[tuple[Any, ...], list[Array]] = {}


@lru_cache(maxsize=16)
def multiprocessors(device: int | None) -> int:
    """Return the multiprocessors of a device; a small number for the host."""
    if device is None:
        return HOST_MULTIPROCESSORS
    import cupy

    return cupy.cuda.Device(device).attributes["MultiProcessorCount"]


def current_stream(run: Run, array: Array) -> int:
    """Return the stream that launches go to, as a number; 0 on the host."""
    if run.device is None:
        return 0
    found = arrays.torch_stream([arrays.handle(array)])
    if found is not None:
        return found
    import cupy

    with cupy.cuda.Device(run.device):
        return cupy.cuda.get_current_stream().ptr


def take(run: Run, stream: int, name: str, size: int, dtype: str, *, zeros: bool = False) -> Array:
    """Return at least ``size`` numbers of scratch memory, the same ones at every call on this stream.

    Parameters
    ----------
    run : Run
        The call's place.
    stream : int
        As :func:`current_stream` gives it: launches on one stream do not run at the same time.
    name : str
        Tells the uses apart.
    size, dtype
        Of the array.
    zeros : bool
        Zero when new.  A kernel that takes such memory leaves it zero.

    Notes
    -----
    Smaller arrays of earlier calls stay alive, for captured graphs that hold them.
    """
    if run.device is None:
        return run.array(np.zeros(size, dtype), dtype) if zeros else run.empty((size,), dtype)
    kept = _kept.setdefault((run.kind, run.device, stream, name, dtype), [])
    if not kept or kept[-1].shape[0] < size:
        kept.append(run.array(np.zeros(size, dtype), dtype) if zeros else run.empty((size,), dtype))
    return kept[-1]


def moved(value: np.ndarray, library: Any) -> Array:
    """Return a copy on the device if ``library`` runs kernels there, else ``value`` itself."""
    if library.backend != "cuda":
        return value
    import cupy

    return cupy.asarray(value)
