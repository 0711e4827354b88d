"""Write KDTR files: whole or not at all, and the same bytes for the same content."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from .files import atomic_file
from .kdtr_format import (
    DTYPES,
    MAGIC,
    MAX_DEPTH,
    MAX_HEADER_BYTES,
    MAX_NDIM,
    NAME,
    NAME_RULE,
    PREAMBLE,
    VERSION,
    align,
    depth_of,
    dump_json,
    shape_bytes,
)

if TYPE_CHECKING:
    import os

    from .kdtr import Kdtr


def write(
    path: str | os.PathLike[str],
    arrays: Mapping[str, np.ndarray],
    header: Mapping[str, Any] | None = None,
    *,
    like: Kdtr | None = None,
) -> None:
    """Write arrays and a JSON header to a KDTR file, atomically.

    Parameters
    ----------
    path : path-like
        File to create or replace.
    arrays : mapping of str to numpy array
        Any shape and order; stored little-endian in C order, sorted by name.  Bool, all integers,
        float16/32/64, and ``ml_dtypes`` bfloat16, float8_e4m3fn, float8_e5m2.
    header : mapping, optional
        Anything that JSON holds: strings as keys; no NaN.  Tuples come back as lists.
    like : Kdtr, optional
        File that this one rewrites: fields of a newer minor version, which this package does not know, are
        carried over (those of an array only if its content is unchanged).

    Raises
    ------
    TypeError
        An array is not a numpy array or has a dtype that KDTR lacks, or a header value is no JSON.
    ValueError
        A name or the header breaks a rule of the format.
    OSError
        The file cannot be written; nothing is left behind.

    Examples
    --------
    >>> import numpy as np
    >>> from kdtree_cupy import kdtr
    >>> kdtr.write("x.kdtr", {"ids": np.arange(6).reshape(2, 3)}, {"seed": 0})   # doctest: +SKIP
    """
    prepared, plain_header = prepare(arrays, header)
    items = [_item(name, array, like) for name, array in prepared.items()]
    minor = VERSION[1] if like is None else max(VERSION[1], like.version[1])
    top = {**({} if like is None else like.extra), "arrays": items, "header": plain_header}
    if depth_of(top) > MAX_DEPTH:
        raise ValueError(f"header: nested deeper than {MAX_DEPTH - 1} levels")
    text, file_bytes = _place(items, top)
    if len(text) > MAX_HEADER_BYTES:
        raise ValueError(
            f"header: {len(text)} bytes of JSON, wanted at most {MAX_HEADER_BYTES}; use an array"
        )
    fields = (MAGIC, VERSION[0], minor, len(text), file_bytes, 0)
    start = PREAMBLE.pack(*fields, 0)[:-4]
    crc = zlib.crc32(text, zlib.crc32(start))
    with atomic_file(path) as handle:
        handle.write(PREAMBLE.pack(*fields, crc))
        handle.write(text)
        position = PREAMBLE.size + len(text)
        for array in prepared.values():
            handle.write(bytes(align(position) - position))
            handle.write(as_bytes(array))
            position = align(position) + array.nbytes
        handle.write(bytes(file_bytes - position))


def prepare(
    arrays: Mapping[str, np.ndarray], header: Mapping[str, Any] | None
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return arrays (sorted by name, little-endian, C order) and header as plain JSON, or raise."""
    prepared = {name: _prepare(name, arrays[name]) for name in _names(arrays)}
    if not isinstance(header, (Mapping, type(None))):
        raise TypeError(f"header: got {type(header).__name__}, wanted a mapping")
    return prepared, _plain(header or {}, "header")


def as_bytes(array: np.ndarray) -> memoryview:
    """Return the bytes of a C-ordered array without a copy (works for ml_dtypes and 0-d arrays)."""
    return array.reshape(-1).view(np.uint8).data


def _names(arrays: Mapping[str, np.ndarray]) -> list[str]:
    if not isinstance(arrays, Mapping):
        raise TypeError(f"arrays: got {type(arrays).__name__}, wanted a mapping of names to numpy arrays")
    for name in arrays:
        if not isinstance(name, str):
            raise TypeError(f"arrays: name {name!r} is {type(name).__name__}, wanted str")
        if not NAME.fullmatch(name):
            raise ValueError(f"array name {name[:40]!r}, wanted {NAME_RULE}")
    return sorted(arrays)


def _prepare(name: str, array: Any) -> np.ndarray:
    """Return ``array`` little-endian in C order, copied only when it is not."""
    if isinstance(array, np.ma.MaskedArray):
        raise TypeError(f"array {name!r}: got a masked array, wanted numpy.ndarray (the mask would be lost)")
    if not isinstance(array, (np.ndarray, np.generic)):
        kind = f"{type(array).__module__}.{type(array).__qualname__}".removeprefix("builtins.")
        raise TypeError(f"array {name!r}: got {kind}, wanted numpy.ndarray")
    array = np.asarray(array)
    dtype = DTYPES.get(array.dtype.name)
    if dtype is None or array.dtype.newbyteorder("=") != dtype:
        raise TypeError(f"array {name!r}: dtype {array.dtype}, wanted one of {', '.join(DTYPES)}")
    if array.ndim > MAX_NDIM:
        raise ValueError(f"array {name!r}: {array.ndim} axes, wanted at most {MAX_NDIM}")
    try:
        shape_bytes(array.shape, dtype.itemsize)
    except ValueError as error:
        raise ValueError(f"array {name!r}: {error}") from error
    array = np.asarray(array, dtype=dtype.newbyteorder("<"), order="C")
    if dtype.kind == "b" and array.size and array.view(np.uint8).max() > 1:
        raise ValueError(f"array {name!r}: a bool holds a byte other than 0 and 1")
    return array


def _item(name: str, array: np.ndarray, like: Kdtr | None) -> dict[str, Any]:
    item = {
        "name": name,
        "dtype": array.dtype.name,
        "shape": list(array.shape),
        "bytes": array.nbytes,
        "crc32": zlib.crc32(as_bytes(array)),
    }
    old = like.entries.get(name) if like is not None else None
    if old and (old.dtype, list(old.shape), old.crc32) == (item["dtype"], item["shape"], item["crc32"]):
        item = {**old.extra, **item}
    return item


def _place(items: list[dict[str, Any]], top: dict[str, Any]) -> tuple[bytes, int]:
    """Set the offsets in ``items``; return the header text and the size of the file.

    The length of the text depends on the digits of the offsets and the offsets on the length, so this
    repeats until the first array no longer moves; it only ever moves towards the end.
    """
    data_start = 0
    while True:
        end = data_start
        for item in items:
            item["offset"] = end
            end = align(end + item["bytes"])
        text = dump_json(top)
        if align(PREAMBLE.size + len(text)) <= data_start:
            return text, end
        data_start = align(PREAMBLE.size + len(text))


def _plain(value: Any, where: str, levels: int = MAX_DEPTH - 1) -> Any:
    """Return ``value`` as plain JSON types, or raise naming the place that is none."""
    if levels < 0:
        raise ValueError(f"{where[:80]}...: nested deeper than {MAX_DEPTH - 1} levels")
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise TypeError(f"{where}: key {key!r} is {type(key).__name__}, wanted str")
        return {key: _plain(item, f"{where}[{key!r}]", levels - 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, f"{where}[{i}]", levels - 1) for i, item in enumerate(value)]
    if value is None or type(value) in (str, bool, int):
        return value
    if type(value) is float:
        if not math.isfinite(value):
            raise ValueError(f"{where}: {value} is not JSON")
        return value
    raise TypeError(
        f"{where}: got {type(value).__name__}, wanted a string, number, bool, None, list or mapping"
    )
