"""The KDTR format in one place: constants, strict JSON, and the checks of a header (docs/kdtr.md)."""

from __future__ import annotations

import json
import math
import re
import struct
from dataclasses import dataclass, field
from typing import Any, NoReturn

import ml_dtypes
import numpy as np

from .errors import KdtrError

MAGIC = b"\xd1KDTR\r\n\x1a"  # a high bit, CR LF and Ctrl-Z: a transfer "as text" breaks it at once
VERSION = (1, 0)
ALIGNMENT = 64
PREAMBLE = struct.Struct("<8sHHIQII")  # magic, major, minor, header bytes, file bytes, zero, crc32
MAX_HEADER_BYTES = 4 << 20
MAX_DEPTH = 64
MAX_NDIM = 32
MAX_ARRAY_BYTES = (1 << 63) - 1
NAME_RULE = "1..128 letters, digits, '_', '-', '.', not starting with '-' or '.'"
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,127}")

_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
SHORT_FLOATS = ("bfloat16", "float8_e4m3fn", "float8_e5m2")
DTYPES: dict[str, np.dtype] = {
    **{name: np.dtype(name) for name in ("bool", *_INTEGERS, "float16", "float32", "float64")},
    **{name: np.dtype(getattr(ml_dtypes, name)) for name in SHORT_FLOATS},
}
"""Number types of a KDTR file by name."""

_KNOWN_TOP = ("arrays", "header")
_KNOWN_ENTRY = ("name", "dtype", "shape", "offset", "bytes", "crc32")


@dataclass(frozen=True)
class Entry:
    """What a file's header says of one array; ``extra`` holds fields of newer minor versions."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int
    crc32: int
    extra: dict[str, Any] = field(default_factory=dict)


def align(offset: int) -> int:
    """Return the first multiple of 64 that is not below ``offset``."""
    return -(-offset // ALIGNMENT) * ALIGNMENT


def shape_bytes(shape: tuple[int, ...], itemsize: int) -> int:
    """Return the bytes of an array; ``ValueError`` if numpy or a C++ reader could not address it."""
    # Zero axes are left out of the product: an empty array with absurd axes is refused as well.
    span = math.prod(n for n in shape if n) * itemsize
    if span > MAX_ARRAY_BYTES:
        raise ValueError(f"shape {list(shape)} does not fit 63-bit addressing")
    return 0 if 0 in shape else span


# ---- strict JSON ----------------------------------------------------------------------------------------


def dump_json(value: Any) -> bytes:
    """Return the one spelling of a JSON value that KDTR uses: sorted keys, no spaces, ASCII."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")


def load_json(text: bytes, encoding: str = "utf-8") -> Any:
    """Parse JSON without its loopholes; ``ValueError`` says what is wrong.

    Refused: bytes outside ``encoding``, NaN and infinities (also ``1e999``), a key given twice, more than 64
    levels.
    """

    def constant(name: str) -> NoReturn:
        raise ValueError(f"{name} is not JSON")

    def number(digits: str) -> float:
        value = float(digits)
        if not math.isfinite(value):
            raise ValueError(f"number {digits[:20]} is out of range")
        return value

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            keys = [key for key, _ in pairs]
            raise ValueError(f"key {next(k for k in keys if keys.count(k) > 1)[:40]!r} is given twice")
        return found

    try:
        value = json.loads(
            text.decode(encoding), object_pairs_hook=unique, parse_constant=constant, parse_float=number
        )
    except UnicodeDecodeError as error:
        raise ValueError(f"not {encoding.upper()} at byte {error.start}") from error
    except RecursionError as error:
        raise ValueError(f"nested deeper than {MAX_DEPTH} levels") from error
    if depth_of(value) > MAX_DEPTH:
        raise ValueError(f"nested deeper than {MAX_DEPTH} levels")
    return value


def depth_of(value: Any) -> int:
    """Return how many lists and objects enclose the innermost value, without recursion."""
    depth, level = 0, [value]
    while level := [v for v in level if isinstance(v, (dict, list, tuple))]:
        depth += 1
        level = [x for v in level for x in (v.values() if isinstance(v, dict) else v)]
        if depth > MAX_DEPTH:
            break
    return depth


# ---- header checks --------------------------------------------------------------------------------------


def parse_header(text: bytes, data_start: int, file_bytes: int, path: Any) -> tuple[list[Entry], dict, dict]:
    """Return array entries, the user's header and unknown top-level fields, or raise :class:`KdtrError`."""
    try:
        top = load_json(text, "ascii")  # other characters are written as escapes
    except ValueError as error:
        raise KdtrError(f"{path}: header: {error}") from error
    if not isinstance(top, dict) or not isinstance(top.get("arrays"), list):
        raise KdtrError(f"{path}: header: wanted an object with a list 'arrays'")
    if not isinstance(top.get("header"), dict):
        raise KdtrError(f"{path}: header: wanted an object under 'header'")
    entries: list[Entry] = []
    names: set[str] = set()
    end = data_start
    for index, item in enumerate(top["arrays"]):
        entry = _parse_entry(item, index, path)
        if entry.name in names:
            raise KdtrError(f"{path}: array {entry.name!r}: name is given twice")
        names.add(entry.name)
        _check_place(entry, entries[-1] if entries else None, end, file_bytes, path)
        end = align(entry.offset + entry.nbytes)
        entries.append(entry)
    if end != file_bytes:
        raise KdtrError(f"{path}: {file_bytes - end} bytes after the last array, from byte {end}")
    extra = {key: value for key, value in top.items() if key not in _KNOWN_TOP}
    return entries, top["header"], extra


def _parse_entry(item: Any, index: int, path: Any) -> Entry:
    if not isinstance(item, dict):
        raise KdtrError(f"{path}: arrays[{index}]: got {type(item).__name__}, wanted an object")
    name = item.get("name")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise KdtrError(f"{path}: arrays[{index}]: name {str(name)[:40]!r}, wanted {NAME_RULE}")
    where = f"{path}: array {name!r}"
    dtype, shape = item.get("dtype"), item.get("shape")
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise KdtrError(f"{where}: dtype {str(dtype)[:40]!r}, wanted one of {', '.join(DTYPES)}")
    if not isinstance(shape, list) or len(shape) > MAX_NDIM or not all(_is_count(n) for n in shape):
        raise KdtrError(f"{where}: shape {str(shape)[:60]}, wanted at most {MAX_NDIM} integers >= 0")
    for key in ("offset", "bytes", "crc32"):
        if not _is_count(item.get(key)):
            raise KdtrError(f"{where}: {key} {str(item.get(key))[:40]}, wanted an integer in [0, 2^63)")
    if item["crc32"] >= 1 << 32:
        raise KdtrError(f"{where}: crc32 {item['crc32']}, wanted less than 2^32")
    try:
        nbytes = shape_bytes(tuple(shape), DTYPES[dtype].itemsize)
    except ValueError as error:
        raise KdtrError(f"{where}: {error}") from error
    if nbytes != item["bytes"]:
        raise KdtrError(f"{where}: {item['bytes']} bytes, but {dtype}{shape} takes {nbytes}")
    extra = {key: value for key, value in item.items() if key not in _KNOWN_ENTRY}
    return Entry(name, dtype, tuple(shape), item["offset"], nbytes, item["crc32"], extra)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MAX_ARRAY_BYTES  # bool is an int: not here


def _check_place(entry: Entry, previous: Entry | None, end: int, file_bytes: int, path: Any) -> None:
    where, offset = f"{path}: array {entry.name!r}", entry.offset
    if offset % ALIGNMENT:
        raise KdtrError(f"{where}: offset {offset} is not a multiple of {ALIGNMENT}")
    if offset + entry.nbytes > file_bytes:
        raise KdtrError(f"{where}: bytes {offset}..{offset + entry.nbytes} end past the file's {file_bytes}")
    if offset < end:
        before = f"array {previous.name!r}" if previous else "the header"
        raise KdtrError(f"{where}: offset {offset} overlaps {before}, which ends at byte {end}")
    if offset > end:
        raise KdtrError(f"{where}: offset {offset}, wanted {end}: {offset - end} bytes belong to no array")
