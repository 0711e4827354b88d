"""Launch a kernel before the one ahead of it in the stream has ended: programmatic dependent launch.

CuPy has no way to ask for it, so this calls the driver.  The kernel must wait by itself
(``griddepcontrol.wait``) before it touches what earlier kernels write; until then it may set itself up.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from .driver import driver

_SERIALIZATION = 6  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION


class _Attribute(ctypes.Structure):
    _fields_ = (("id", ctypes.c_int), ("padding", ctypes.c_int), ("value", ctypes.c_int * 16))


class _Config(ctypes.Structure):
    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("count", ctypes.c_uint),
    )


@lru_cache(maxsize=1)
def _entry() -> Any:
    """Return the driver's cuLaunchKernelEx, or None if it has none."""
    name = driver().library
    return None if name is None else getattr(ctypes.CDLL(name), "cuLaunchKernelEx", None)


def launch_early(
    function: int,
    grid: Sequence[int],
    block: Sequence[int],
    arguments: Sequence[np.generic],
    shared_bytes: int,
    stream: int,
) -> bool:
    """Launch ``function`` (a CUfunction) on ``stream``; False: nothing was launched.

    Parameters
    ----------
    arguments : sequence of numpy scalars
        Of exactly the parameters' sizes; pointers as ``np.uint64``.
    """
    entry = _entry()
    if entry is None:
        return False
    values = [ctypes.create_string_buffer(one.tobytes(), one.nbytes) for one in arguments]
    places = (ctypes.c_void_p * max(len(values), 1))(*(ctypes.addressof(value) for value in values))
    attribute = _Attribute(_SERIALIZATION, 0)
    attribute.value[0] = 1
    three = ctypes.c_uint * 3
    config = _Config(three(*grid), three(*block), shared_bytes, stream, ctypes.pointer(attribute), 1)
    return entry(ctypes.byref(config), ctypes.c_void_p(function), places, None) == 0
