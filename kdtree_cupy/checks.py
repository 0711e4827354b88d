"""Argument checks with one wording: name, got, wanted.

``TypeError`` for the kind or the dtype of an argument, ``ValueError`` for shape, range and layout.  These
checks look at arrays from outside (dtype, shape, strides) and never wait for a device; only host values
(numbers, lists, numpy arrays of one number per request) are looked into.  They know numpy, CuPy and torch
arrays by their attributes and import neither library.
"""

from __future__ import annotations

import numbers
from typing import Any

import numpy as np

from .limits import describe_status

Array = Any
FLOATS = ("float32", "float16", "bfloat16")
"""Number types of logits, queries and KV rows."""


class Dims(dict):
    """Sizes bound by name while the arrays of one call are checked: ``{"b": 2, "N": 33}``."""

    def match(self, shape: tuple[int, ...], spec: str) -> bool:
        """Bind or compare ``shape`` with ``spec``, for example ``"b N 576"``; bind nothing on a mismatch."""
        words = spec.split()
        if len(words) != len(shape):
            return False
        new: dict[str, int] = {}
        for word, size in zip(words, shape, strict=True):
            wanted = int(word) if word.isdigit() else self.get(word, new.setdefault(word, size))
            if wanted != size:
                return False
        self.update(new)
        return True

    def describe(self, spec: str) -> str:
        """Return ``"[b=2, N=33, 576]"``: the spec with the sizes known so far."""
        return "[" + ", ".join(f"{w}={self[w]}" if w in self else w for w in spec.split()) + "]"


def kind(value: Array) -> str | None:
    """Return "numpy", "cupy" or "torch", or None for anything else."""
    if not (hasattr(value, "dtype") and hasattr(value, "shape")):
        return None
    root = type(value).__module__.partition(".")[0]
    return root if root in ("numpy", "cupy", "torch") and not isinstance(value, np.generic) else None


def dtype_name(value: Array) -> str:
    """Return the dtype without its library: ``"int32"``, ``"bfloat16"``."""
    return str(value.dtype).rpartition(".")[2]


def is_contiguous(value: Array) -> bool:
    """Return whether the array is C-contiguous."""
    return value.is_contiguous() if hasattr(value, "is_contiguous") else value.flags.c_contiguous


def array(value: Array, name: str, dtypes: str | tuple[str, ...], spec: str, dims: Dims) -> Array:
    """Return ``value`` if it is a C-contiguous array of one of ``dtypes`` and of shape ``spec``.

    Parameters
    ----------
    value : array
        numpy, CuPy or torch array.
    name : str
        Argument name for the message.
    dtypes : str or tuple of str
        Names of the dtypes allowed.
    spec : str
        Space-separated sizes: names bound in ``dims`` at first use, or numbers.
    dims : Dims
        Sizes known so far; updated.

    Raises
    ------
    TypeError
        Not an array, or another dtype.
    ValueError
        Another shape, or not C-contiguous.
    """
    dtypes = (dtypes,) if isinstance(dtypes, str) else dtypes
    if kind(value) is None:
        raise TypeError(f"{name}: got {type(value).__name__}, wanted an array of {' or '.join(dtypes)}")
    if dtype_name(value) not in dtypes:
        raise TypeError(f"{name}: got dtype {dtype_name(value)}, wanted {' or '.join(dtypes)}")
    if not dims.match(tuple(value.shape), spec):
        raise ValueError(f"{name}: got shape {tuple(value.shape)}, wanted {dims.describe(spec)}")
    if not is_contiguous(value):
        raise ValueError(f"{name}: got a strided array, wanted a C-contiguous one (make a copy)")
    if kind(value) == "numpy" and not value.flags.aligned:
        raise ValueError(
            f"{name}: got an array that starts within a number, wanted an aligned one (make a copy)"
        )
    return value


def target(value: Array, name: str, dtypes: str | tuple[str, ...], spec: str, dims: Dims) -> Array:
    """Return ``value``, an array to write into, if it passes :func:`array` and is not read-only."""
    array(value, name, dtypes, spec, dims)
    if kind(value) == "numpy" and not value.flags.writeable:
        raise ValueError(f"{name}: got a read-only array, wanted a writeable one")
    return value


def apart(targets: dict[str, Array], inputs: dict[str, Any]) -> None:
    """Raise ``ValueError`` if an array of ``targets`` shares memory with another one or with an input."""
    spans: list[tuple[int, int, str]] = []
    for name, value in (inputs | targets).items():
        if kind(value) is None or not value.nbytes:
            continue
        begin = _address(value)
        end = begin + value.nbytes
        for low, high, other in spans if name in targets else ():
            if begin < high and low < end:
                raise ValueError(f"{name}: shares memory with {other}, wanted memory of its own")
        spans.append((begin, end, name))


def _address(value: Array) -> int:
    found = kind(value)
    if found == "torch":
        return value.data_ptr()
    return value.data.ptr if found == "cupy" else value.__array_interface__["data"][0]


def host(value: Array) -> np.ndarray:
    """Return the values of an array of any kind (waits for the device)."""
    if kind(value) == "torch":
        return value.detach().cpu().numpy()
    return np.asarray(value.get() if hasattr(value, "get") else value)


def integer(value: Any, name: str, low: int, high: int) -> int:
    """Return ``value`` as int if it is a whole number in ``low..high``."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name}: got {type(value).__name__}, wanted an int")
    if not low <= value <= high:
        raise ValueError(f"{name}: got {value}, wanted {low}..{high}")
    return int(value)


def valid_vocab(value: int | None, vocab: int) -> int:
    """Return how many ids of a row take part: all ``vocab``, or ``value`` of them."""
    if vocab == 0:
        raise ValueError("logits: got rows of 0 numbers, wanted at least 1")
    return vocab if value is None else integer(value, "valid_vocab", 1, vocab)


def number(value: Any, name: str, wanted: str, ok: Any) -> float:
    """Return ``value`` as float if ``ok(value)``; ``wanted`` says the range in words."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name}: got {type(value).__name__}, wanted a number")
    try:
        result = float(value)
    except OverflowError:
        raise ValueError(f"{name}: got a number beyond float64, wanted {wanted}") from None
    if not ok(result):
        raise ValueError(f"{name}: got {value}, wanted {wanted}")
    return result


def per_request(value: Any, name: str, batch: int, low: int, high: int) -> Array:
    """Return int32 [b] from one number, a sequence or a host array of any integer type.

    A CuPy or torch array is returned as it is: it must be int32 [b], and its values are not looked at.
    """
    if kind(value) in ("cupy", "torch"):
        return array(value, name, "int32", "b", Dims(b=batch))
    host = np.asarray(value)
    if host.dtype.kind not in "iu":
        raise TypeError(f"{name}: got {describe_kind(value)}, wanted an int or int [b]")
    if host.shape not in ((), (batch,)):
        raise ValueError(f"{name}: got shape {host.shape}, wanted a scalar or [b={batch}]")
    bad = np.flatnonzero((host < low) | (host > high))
    if bad.size:
        where = f"[{bad[0]}]" if host.ndim else ""
        raise ValueError(f"{name}{where}: got {int(host.reshape(-1)[bad[0]])}, wanted {low}..{high}")
    return np.ascontiguousarray(np.broadcast_to(host, (batch,)), np.int32)


def describe_kind(value: Any) -> str:
    """Return how an argument is called in a message: its dtype if it is an array, else its type."""
    return f"dtype {dtype_name(value)}" if kind(value) else type(value).__name__


INT32 = (-(2**31), 2**31 - 1)
"""Smallest and largest int32."""


def int_vector(value: Any, name: str, batch: int, low: int = INT32[0], high: int = INT32[1]) -> Array:
    """Return int32 [b] from an int32 array (its values are not looked at) or from a list of ints."""
    if kind(value) is not None:
        return array(value, name, "int32", "b", Dims(b=batch))
    if not isinstance(value, list | tuple):
        raise TypeError(f"{name}: got {type(value).__name__}, wanted int32 [b={batch}]")
    if len(value) != batch:
        raise ValueError(f"{name}: got {len(value)} values, wanted [b={batch}]")
    return np.array([integer(v, f"{name}[{i}]", low, high) for i, v in enumerate(value)], np.int32)


def output(out: Any, names: tuple[str, ...]) -> tuple[Any, ...]:
    """Return ``out`` as a tuple with one entry for each of ``names``."""
    if not isinstance(out, tuple | list):
        raise TypeError(f"out: got {type(out).__name__}, wanted a tuple ({', '.join(names)})")
    if len(out) != len(names):
        raise ValueError(f"out: got {len(out)} entries, wanted ({', '.join(names)})")
    return tuple(out)


def raise_on_status(stage: str, status: Array) -> None:
    """Raise ``ValueError`` naming the first request with a fault (waits for the device)."""
    words = host(status)
    faulty = np.flatnonzero(words)
    if faulty.size:
        b = int(faulty[0])
        more = f" ({faulty.size} requests with faults)" if faulty.size > 1 else ""
        raise ValueError(f"{stage}: status[{b}] = {int(words[b])}: {describe_status(int(words[b]))}{more}")
