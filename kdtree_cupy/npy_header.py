"""Read the header of ``.npy`` data by a pattern: nothing is evaluated, nothing is unpickled."""

from __future__ import annotations

import re
import struct
from typing import IO

import numpy as np

from .errors import KdtrError

_MAX_HEADER = 10_000  # numpy's own limit
_PAIR = re.compile(
    r"\s*(['\"])(descr|fortran_order|shape)\1\s*:"
    r"\s*(?:(['\"])(?P<descr>[<>|=]?[A-Za-z]\d{0,9})\3|(?P<order>True|False)|\((?P<shape>[\d\s,L]*)\))\s*,?\s*"
)


def read_npy_header(member: IO[bytes], where: str) -> tuple[np.dtype, bool, tuple[int, ...], int]:
    """Return dtype, Fortran order, shape and the offset of the data; evaluates nothing."""
    start = member.read(8)
    if len(start) < 8 or start[:6] != b"\x93NUMPY" or start[6] not in (1, 2, 3):
        raise KdtrError(f"{where}: is no .npy data: it starts with bytes {start.hex(' ')}")
    size = struct.Struct("<H" if start[6] == 1 else "<I")
    length = size.unpack(member.read(size.size))[0]
    if length > _MAX_HEADER:
        raise KdtrError(f"{where}: .npy header of {length} bytes, wanted at most {_MAX_HEADER}")
    raw = member.read(length)
    text = raw.decode("latin-1").strip()
    found: dict[str, re.Match[str]] = {}
    at, end = 1, len(text) - 1
    while text[:1] == "{" and text[-1:] == "}" and at < end and (pair := _PAIR.match(text, at, end)):
        found[pair[2]] = pair
        at = pair.end()
    values = {key: found[key]["order" if key == "fortran_order" else key] for key in found}
    if len(raw) != length or at != end or None in values.values() or len(values) != 3:
        raise KdtrError(f"{where}: .npy header {text[:80]!r} describes no plain array")
    descr = values["descr"]
    kind = descr.lstrip("<>|=")[0]
    if kind == "O":
        raise KdtrError(f"{where}: holds pickled Python objects, which are never loaded")
    if kind == "V":
        raise KdtrError(
            f"{where}: dtype {descr}: numpy lost the type (bfloat16 or float8?); use .safetensors or .kdtr"
        )
    if kind not in "biufUS":
        raise KdtrError(f"{where}: dtype {descr!r}, wanted bool, integers or floats")
    dtype = np.dtype(descr)
    shape = tuple(int(n) for n in values["shape"].replace("L", "").split(",") if n.strip())
    if not dtype.itemsize:
        raise KdtrError(f"{where}: dtype {descr!r} has no size")
    if len(shape) > 32:
        raise KdtrError(f"{where}: {len(shape)} axes, wanted at most 32")
    return dtype, values["fortran_order"] == "True", shape, 8 + size.size + length
