"""Arguments of a launch on the CPU, laid out as kernels_cu/host/api.h wants them."""

from __future__ import annotations

import ctypes
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import BackendError

VERSION = 1
"""Of the C interface."""


class KernelFault(BackendError):
    """A kernel did something wrong while it ran on the CPU.

    Parameters
    ----------
    kernel : str
        Its name.
    kind : str
        "barrier", "mask", "deadlock", "bounds", "address", "stack", "arithmetic", "undefined", "argument",
        "assert", "trap", "memory" or "timeout".
    block, thread : tuple of int or None
        Where it happened; None where that cannot be told.
    text : str
        What happened.
    """

    def __init__(
        self,
        kernel: str,
        kind: str,
        block: tuple[int, int, int] | None,
        thread: tuple[int, int, int] | None,
        text: str,
    ) -> None:
        place = f", block {block}" if block else ""
        place += f", thread {thread}" if thread else ""
        super().__init__(f"{kernel}{place}: {text}")
        self.kernel, self.kind, self.block, self.thread, self.text = kernel, kind, block, thread, text

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.kernel, self.kind, self.block, self.thread, self.text)


class Kernel(ctypes.Structure):
    """One kernel of the library's list."""


Kernel._fields_ = [
    ("name", ctypes.c_char_p),
    ("parameters", ctypes.c_char_p),
    ("count", ctypes.c_int),
    ("sizes", ctypes.POINTER(ctypes.c_uint)),
    ("pointers", ctypes.POINTER(ctypes.c_ubyte)),
    ("call", ctypes.c_void_p),
    ("next", ctypes.POINTER(Kernel)),
]


class Buffer(ctypes.Structure):
    """Memory that arguments point into."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("bytes", ctypes.c_size_t),
        ("guard", ctypes.c_int),
        ("writable", ctypes.c_int),
        ("label", ctypes.c_char_p),
    )


class Argument(ctypes.Structure):
    """A value, or a pointer into a buffer."""

    _fields_ = (("value", ctypes.c_char_p), ("buffer", ctypes.c_longlong), ("offset", ctypes.c_size_t))


class Launch(ctypes.Structure):
    """All of a launch."""

    _fields_ = (
        ("kernel", ctypes.c_char_p),
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("argument_count", ctypes.c_int),
        ("buffer_count", ctypes.c_int),
        ("worker_count", ctypes.c_int),
        ("arguments", ctypes.POINTER(Argument)),
        ("buffers", ctypes.POINTER(Buffer)),
        ("shared_bytes", ctypes.c_size_t),
        ("stack_bytes", ctypes.c_size_t),
        ("seed", ctypes.c_longlong),
    )


class Fault(ctypes.Structure):
    """What went wrong."""

    _fields_ = (
        ("set", ctypes.c_bool),
        ("has_thread", ctypes.c_bool),
        ("kind", ctypes.c_char * 16),
        ("block", ctypes.c_uint * 3),
        ("thread", ctypes.c_uint * 3),
        ("position", ctypes.c_longlong),
        ("text", ctypes.c_char * 1600),
    )


def dimensions(what: str, value: int | Sequence[int]) -> tuple[int, int, int]:
    """Return ``value`` as three ints; a grid may hold a 0 (nothing to do)."""
    given = tuple(value) if isinstance(value, tuple | list) else (value,)
    try:
        out = tuple(map(operator.index, given))
    except TypeError:
        raise TypeError(f"{what}: got {value!r}, wanted one to three ints") from None
    if not 1 <= len(out) <= 3 or min(out) < (what == "block"):
        raise ValueError(f"{what}: got {value!r}, wanted one to three positive ints")
    x, y, z = (*out, 1, 1)[:3]
    if max(y, z) > 65535 or x > 2**31 - 1:
        raise ValueError(f"{what}: got {value!r}, wanted at most 2147483647, 65535, 65535")
    return x, y, z


def value(label: str, size: int, pointer: bool, given: Any) -> bytes | np.ndarray:
    """Return an argument as an array (for a pointer) or as exactly ``size`` bytes."""
    if isinstance(given, np.ndarray) and given.ndim + pointer > 0:
        if not pointer:
            raise TypeError(f"{label}: got an array, wanted a value of {size} bytes")
        if not (given.flags.c_contiguous or given.flags.f_contiguous) or not given.dtype.isnative:
            raise ValueError(f"{label}: got a strided or byte-swapped array, wanted a contiguous one")
        return given
    if given is None and pointer:
        return bytes(size)
    if isinstance(given, np.generic | np.ndarray):
        given = given.tobytes()
    if not isinstance(given, bytes):
        wanted = "an array" if pointer else f"a numpy scalar or bytes of size {size}"
        raise TypeError(f"{label}: got {type(given).__name__}, wanted {wanted}")
    if len(given) != size:
        raise TypeError(f"{label}: got a value of {len(given)} bytes, wanted {size}")
    return given


def pack(labels: Sequence[str], values: Sequence[bytes | np.ndarray], guard: bool) -> tuple[Any, Any, int]:
    """Return C arrays of arguments and of buffers, and the number of buffers.

    Arrays that overlap in memory share a buffer, so that they still do in guarded copies.

    Parameters
    ----------
    labels : sequence of str
        What reports call each argument.
    values : sequence of bytes or ndarray
        What :func:`value` returned; arrays must stay alive while the result is used.
    guard : bool
        Copy each buffer between guards.
    """
    spans = sorted(
        (array.ctypes.data, array.ctypes.data + array.nbytes, index)
        for index, array in enumerate(values)
        if isinstance(array, np.ndarray)
    )
    merged: list[tuple[int, int, list[int]]] = []
    for begin, end, index in spans:
        if merged and begin < merged[-1][1] and begin < end:
            first, last, members = merged.pop()
            merged.append((first, max(last, end), [*members, index]))
        else:
            merged.append((begin, end, [index]))
    arguments = (Argument * max(1, len(values)))()
    buffers = (Buffer * max(1, len(merged)))()
    for index, given in enumerate(values):
        if isinstance(given, bytes):
            arguments[index] = Argument(given, -1, 0)
    for number, (begin, end, members) in enumerate(merged):
        label = " and ".join(labels[i] for i in sorted(members))
        writable = any(values[i].flags.writeable for i in members)
        buffers[number] = Buffer(begin, end - begin, guard, writable, label.encode())
        for i in members:
            arguments[i] = Argument(None, number, values[i].ctypes.data - begin)
    return arguments, buffers, len(merged)
