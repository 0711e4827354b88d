"""Arrays of numpy, CuPy, torch and anything with ``__cuda_array_interface__``, seen from outside.

Neither CuPy nor torch is imported here: an array of theirs proves that they are imported already.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from .signature import numpy_dtype

Array = Any
_EXTENDED = {"bfloat16": "int16", "float8_e4m3fn": "uint8", "float8_e5m2": "uint8"}
"""Number types that torch will not hand to numpy, and integers of their size that it will."""


@dataclass(slots=True)  # not frozen: that would triple the time of making one, and launches make several
class Handle:
    """What a launch needs to know of one array.

    Parameters
    ----------
    array : object
        The array itself; keeps the memory alive.
    kind : str
        "numpy", "cupy", "torch" or "other".
    device : int or None
        CUDA ordinal; None for host memory.
    pointer : int
        Address of the first element.
    dtype : str
        Name without the library: ``"float32"``, ``"bfloat16"``.
    shape, contiguous, writable
        As usual; ``contiguous`` means C order without gaps, and aligned to the number type.
    """

    array: Array
    kind: str
    device: int | None
    pointer: int
    dtype: str
    shape: tuple[int, ...]
    contiguous: bool
    writable: bool

    @property
    def place(self) -> str:
        """For messages: ``"a CuPy array on device 1"``."""
        library = {"numpy": "numpy", "cupy": "CuPy", "torch": "torch", "other": type(self.array).__module__}
        where = "in host memory" if self.device is None else f"on device {self.device}"
        return f"a {library[self.kind]} array {where}"

    def numpy(self) -> np.ndarray:
        """Return the same host memory as a numpy array (no copy)."""
        if self.kind == "numpy":
            return self.array
        tensor = self.array.detach()
        if self.dtype in _EXTENDED:
            import torch

            raw = tensor.view(getattr(torch, _EXTENDED[self.dtype])).numpy()
            return raw.view(numpy_dtype(self.dtype))
        return tensor.numpy()


@lru_cache(maxsize=64)
def dtype_name(dtype: np.dtype) -> str:
    """Return ``dtype.name``, which numpy builds anew each time; foreign byte order is another type."""
    return dtype.name if dtype.isnative else f"byte-swapped {dtype.name}"


def handle(value: Array) -> Handle | None:
    """Return the handle of an array, or None if ``value`` is none.

    Subclasses of numpy's arrays (masked arrays, say) are none: a kernel would not see what they add.
    """
    if type(value) in (np.ndarray, np.memmap):
        flags, pointer = value.flags, value.__array_interface__["data"][0]
        return Handle(value, "numpy", None, pointer, dtype_name(value.dtype), value.shape,
                      flags.c_contiguous and flags.aligned, flags.writeable)  # fmt: skip
    library = type(value).__module__.partition(".")[0]
    if library == "cupy" and hasattr(value, "flags"):
        return Handle(value, "cupy", value.device.id, value.data.ptr, dtype_name(value.dtype), value.shape,
                      value.flags.c_contiguous, True)  # fmt: skip
    if library == "torch" and hasattr(value, "data_ptr"):
        return _torch(value)
    return _interface(value)


def _torch(value: Array) -> Handle | None:
    if value.device.type not in ("cpu", "cuda"):
        raise TypeError(f"got a torch array on {value.device}, wanted one in host memory or on a CUDA device")
    device = value.device.index if value.device.type == "cuda" else None
    name = str(value.dtype).rpartition(".")[2]
    shape = tuple(value.shape)
    return Handle(value, "torch", device, value.data_ptr(), name, shape, value.is_contiguous(), True)


def _interface(value: Array) -> Handle | None:
    told = getattr(value, "__cuda_array_interface__", None)
    if not isinstance(told, dict):
        return None
    pointer, read_only = told["data"]
    dtype, shape = np.dtype(told["typestr"]), tuple(told["shape"])
    strides = told.get("strides")
    packed, step = [], dtype.itemsize
    for size in reversed(shape):
        packed.append(step)
        step *= size
    contiguous = strides is None or 0 in shape or tuple(strides) == tuple(reversed(packed))
    return Handle(
        value, "other", _device_of(pointer), pointer, dtype_name(dtype), shape, contiguous, not read_only
    )


def _device_of(pointer: int) -> int:
    if not pointer:
        return 0
    import cupy

    return cupy.cuda.runtime.pointerGetAttributes(pointer).device


def empty(shape: int | tuple[int, ...], dtype: str, kind: str, device: int | None) -> Array:
    """Return a new uninitialised array.

    Parameters
    ----------
    shape : int or tuple of int
        Its shape.
    dtype : str
        Name such as ``"int32"`` or ``"bfloat16"``.
    kind : str
        "numpy", "cupy" or "torch"; "other" gives a CuPy array.
    device : int or None
        CUDA ordinal, or None for host memory.
    """
    if kind == "torch":
        import torch

        place = "cpu" if device is None else f"cuda:{device}"
        return torch.empty(shape, dtype=getattr(torch, dtype), device=place)
    if device is None:
        return np.empty(shape, numpy_dtype(dtype))
    import cupy

    with cupy.cuda.Device(device):
        return cupy.empty(shape, numpy_dtype(dtype))


def like(array: np.ndarray, kind: str) -> Array:
    """Return a numpy array's memory as an array of ``kind`` ("numpy" or "torch"), without a copy."""
    if kind != "torch":
        return array
    import torch

    name = array.dtype.name
    if name in _EXTENDED:
        return torch.from_numpy(array.view(_EXTENDED[name])).view(getattr(torch, name))
    return torch.from_numpy(array)


def torch_stream(handles: list[Handle]) -> int | None:
    """Return torch's current stream on the device of the first torch array, or None if there is none."""
    for one in handles:
        if one.kind == "torch" and one.device is not None:
            return sys.modules["torch"].cuda.current_stream(one.device).cuda_stream
    return None
