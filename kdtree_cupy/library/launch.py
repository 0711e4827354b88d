"""Arguments of a launch, checked against the kernel's own parameter list before anything runs.

A kernel reads whatever bytes it is handed: a Python float where it wants a ``float`` arrives as 0.0, an int
too large wraps, a transposed view is read as if it were not.  None of that is an error for CuPy or the
driver, so all of it is one here.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .arrays import Handle, handle
from .signature import Parameter, numpy_dtype

POINTER = 8
_GRID = (2**31 - 1, 65535, 65535)
_BLOCK = (1024, 1024, 64)
_BLOCK_THREADS = 1024


@dataclass(frozen=True)
class Slot:
    """One parameter of one kernel: position, bytes (None: unchecked), text of the source (None: unknown)."""

    kernel: str
    index: int
    size: int | None
    parameter: Parameter | None

    def __str__(self) -> str:
        named = f" ({self.parameter.text})" if self.parameter else ""
        return f"{self.kernel}: argument {self.index}{named}"

    @property
    def wanted(self) -> str:
        """What this parameter takes, in numpy's words."""
        p = self.parameter
        if p is None:
            return f"a value of {self.size} bytes" if self.size else "a numpy scalar or an array"
        if p.pointer:
            return f"an array of {p.dtype}" if p.dtype else "an array"
        return f"np.{p.dtype}" if p.dtype else f"a numpy scalar of {self.size} bytes"


def slots(
    kernel: str, sizes: Sequence[int] | None, parameters: Sequence[Parameter] | None
) -> tuple[Slot, ...] | None:
    """Join sizes (of the binary) and parameters (of the source); None if neither is known.

    The binary is right about the number of parameters; a source that disagrees was misread and is dropped.
    """
    if sizes is None:
        if parameters is None:
            return None
        return tuple(Slot(kernel, i, None, p) for i, p in enumerate(parameters))
    known = parameters if parameters is not None and len(parameters) == len(sizes) else [None] * len(sizes)
    return tuple(Slot(kernel, i, size, p) for i, (size, p) in enumerate(zip(sizes, known, strict=True)))


def dimensions(kernel: str, what: str, value: Any) -> tuple[int, int, int]:
    """Return ``value`` (an int or up to three) as three ints within CUDA's limits.

    Raises
    ------
    TypeError
        Not ints, or more than three.
    ValueError
        Out of range; a grid may have a zero (nothing to do), a block may not.
    """
    given = value if isinstance(value, tuple | list) else (value,)
    try:
        out = tuple(map(operator.index, given))
    except TypeError:
        raise TypeError(f"{kernel}: {what}: got {value!r}, wanted one to three ints") from None
    if not 1 <= len(out) <= 3:
        raise TypeError(f"{kernel}: {what}: got {len(out)} numbers, wanted one to three")
    full = (*out, 1, 1)[:3]
    least, most = (0, _GRID) if what == "grid" else (1, _BLOCK)
    for axis, size, limit in zip("xyz", full, most, strict=True):
        if not least <= size <= limit:
            raise ValueError(f"{kernel}: {what}.{axis}: got {size}, wanted {least}..{limit}")
    if what == "block" and full[0] * full[1] * full[2] > _BLOCK_THREADS:
        raise ValueError(
            f"{kernel}: block: got {full} = {full[0] * full[1] * full[2]} threads, wanted <= 1024"
        )
    return full


def check(
    kernel: str, wanted: tuple[Slot, ...] | None, arguments: Sequence[Any], device: int | None
) -> list[Handle | np.generic | None]:
    """Return the arguments as handles, scalars of exactly the right bytes, and None for null pointers.

    Parameters
    ----------
    kernel : str
        Name for messages.
    wanted : tuple of Slot or None
        The kernel's parameters; None takes typed arguments as they come.
    arguments : sequence
        Arrays, numpy or Python scalars, None.
    device : int or None
        Where arrays must live: a CUDA ordinal, or None for host memory.

    Raises
    ------
    TypeError
        Wrong number, kind, size or dtype; the message names the argument, what it got and what it wants.
    ValueError
        A number out of range; an array that is strided, read-only or elsewhere.
    """
    if wanted is None:
        wanted = tuple(Slot(kernel, i, None, None) for i in range(len(arguments)))
    if len(arguments) != len(wanted):
        names = ", ".join(slot.parameter.text for slot in wanted if slot.parameter)
        listed = f" ({names})" if names else ""
        raise TypeError(f"{kernel}: got {len(arguments)} arguments, wanted {len(wanted)}{listed}")
    return [_argument(slot, value, device) for slot, value in zip(wanted, arguments, strict=True)]


def _argument(slot: Slot, value: Any, device: int | None) -> Handle | np.generic | None:
    p = slot.parameter
    if value is None:
        if (p and not p.pointer) or slot.size not in (None, POINTER):
            raise TypeError(f"{slot}: got None, wanted {slot.wanted}")
        return None
    try:
        found = handle(value)
    except TypeError as error:
        raise TypeError(f"{slot}: {error}") from None
    if found is not None:
        return _array(slot, found, device)
    if p and p.pointer:
        raise TypeError(f"{slot}: got {type(value).__name__}, wanted {slot.wanted}")
    return _scalar(slot, value)


def _array(slot: Slot, found: Handle, device: int | None) -> Handle:
    p = slot.parameter
    if (p and not p.pointer) or slot.size not in (None, POINTER):
        raise TypeError(f"{slot}: got an array, wanted {slot.wanted}")
    if p and p.dtype and found.dtype != p.dtype:
        raise TypeError(f"{slot}: got an array of {found.dtype}, wanted {p.dtype}")
    if found.device != device:
        here = "host memory" if device is None else f"device {device}"
        raise ValueError(f"{slot}: got {found.place}, wanted it on {here}".replace("on host", "in host"))
    if not found.contiguous:
        raise ValueError(
            f"{slot}: got a strided view (or unaligned) of shape {found.shape}, wanted a C-contiguous array; "
            "make one with ascontiguousarray(...) or .contiguous()"
        )
    if p and not p.const and not found.writable:
        raise ValueError(f"{slot}: got a read-only array, wanted one that can be written")
    return found


def _scalar(slot: Slot, value: Any) -> np.generic:
    if isinstance(value, np.generic):
        scalar = _numpy_scalar(slot, value)
    elif isinstance(value, bool | int):
        scalar = _python_int(slot, value)
    elif isinstance(value, float):
        scalar = _python_float(slot, value)
    else:
        raise TypeError(f"{slot}: got {type(value).__name__}, wanted {slot.wanted}")
    if slot.size is not None and scalar.dtype.itemsize != slot.size:
        raise TypeError(
            f"{slot}: got {scalar.dtype.name} of {scalar.dtype.itemsize} bytes, wanted {slot.size} bytes"
        )
    return scalar


def _numpy_scalar(slot: Slot, value: np.generic) -> np.generic:
    name = slot.parameter.dtype if slot.parameter else None
    if name is None or value.dtype == numpy_dtype(name):
        return value
    target = numpy_dtype(name)
    if value.dtype.kind in "iu" and target.kind in "iu":
        return _fit(slot, int(value), target)
    raise TypeError(f"{slot}: got np.{value.dtype.name}, wanted np.{name}")


def _python_int(slot: Slot, value: int) -> np.generic:
    name = slot.parameter.dtype if slot.parameter else None
    if name is None and slot.size in (1, 2, 4, 8) and not slot.parameter:
        name = f"int{8 * slot.size}"  # the sign is not known: what fits a signed one is right for both
    target = numpy_dtype(name) if name else None
    if target is not None and target.kind == "b" and isinstance(value, bool):
        return np.bool_(value)
    if target is None or target.kind not in "iu":
        raise TypeError(f"{slot}: got a Python {type(value).__name__}, wanted {slot.wanted}")
    return _fit(slot, int(value), target)


def _python_float(slot: Slot, value: float) -> np.generic:
    name = slot.parameter.dtype if slot.parameter else None
    if name == "float64":
        return np.float64(value)
    raise TypeError(f"{slot}: got a Python float (8 bytes, a double), wanted {slot.wanted}")


def _fit(slot: Slot, value: int, target: np.dtype) -> np.generic:
    info = np.iinfo(target)
    if not info.min <= value <= info.max:
        raise ValueError(f"{slot}: got {value}, wanted {info.min}..{info.max} ({target.name})")
    return target.type(value)
