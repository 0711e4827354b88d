"""Read and write ``.safetensors`` with the checks and types of KDTR; bfloat16 and float8 without torch."""

from __future__ import annotations

import mmap
import struct
from typing import TYPE_CHECKING, Any

import numpy as np

from .errors import KdtrError
from .files import atomic_file, open_regular
from .kdtr_format import (
    DTYPES,
    MAX_HEADER_BYTES,
    MAX_NDIM,
    NAME,
    NAME_RULE,
    dump_json,
    load_json,
    shape_bytes,
)
from .kdtr_sniff import describe_foreign
from .kdtr_write import as_bytes

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

_CODES = {
    "bool": "BOOL", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "bfloat16": "BF16",
    **{f"int{n}": f"I{n}" for n in (8, 16, 32, 64)},
    **{f"uint{n}": f"U{n}" for n in (8, 16, 32, 64)},
    **{f"float{n}": f"F{n}" for n in (16, 32, 64)},
}  # fmt: skip
_NAMES = {code: name for name, code in _CODES.items()}
_METADATA = "__metadata__"
_HEADER_KEY = "kdtr_header"  # metadata holds only strings: a header with other values goes here as JSON


def read_safetensors(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return header and read-only, memory-mapped arrays of a ``.safetensors`` file.

    Parameters
    ----------
    path : path-like
        File to read.

    Returns
    -------
    header : dict
        The JSON header if this package wrote the file, else the file's metadata strings.
    arrays : dict of str to numpy array
        The tensors.

    Raises
    ------
    KdtrError
        Truncated, corrupt or inconsistent file, or a type or name that KDTR lacks; names file and tensor.
    """
    with open_regular(path) as handle:
        size = handle.seek(0, 2)
        handle.seek(0)
        start = handle.read(32)
        if start[8:9] != b"{":
            raise KdtrError(f"{path}: {describe_foreign(start, '.safetensors')}")
        length = struct.unpack("<Q", start[:8])[0]
        if length > MAX_HEADER_BYTES:
            raise KdtrError(f"{path}: header of {length} bytes, wanted at most {MAX_HEADER_BYTES}")
        if 8 + length > size:
            raise KdtrError(f"{path}: truncated: a header of {length} bytes in a file of {size}")
        handle.seek(8)
        try:
            top = load_json(handle.read(length))
        except ValueError as error:
            raise KdtrError(f"{path}: header: {error}") from error
        if not isinstance(top, dict):
            raise KdtrError(f"{path}: header: wanted a JSON object")
        header = _parse_metadata(top.pop(_METADATA, {}), path)
        base = 8 + length
        places = sorted(_parse_tensor(name, item, size - base, path) for name, item in top.items())
        end = 0
        for first, last, name, _, _ in places:
            if first != end:
                what = "overlap the tensor before" if first < end else "leave bytes that belong to no tensor"
                raise KdtrError(f"{path}: array {name!r}: data_offsets {first}..{last} {what}")
            end = last
        if end != size - base:
            raise KdtrError(
                f"{path}: {size - base - end} bytes after the last tensor, from byte {base + end}"
            )
        raw = np.frombuffer(mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
    arrays = {}
    for first, last, name, dtype, shape in places:
        data = raw[base + first : base + last]
        if dtype == "bool" and data.size and data.max() > 1:
            raise KdtrError(
                f"{path}: array {name!r}: byte {base + first + int((data > 1).argmax())} is no bool"
            )
        arrays[name] = data.view(DTYPES[dtype].newbyteorder("<")).reshape(shape)
    return header, arrays


def write_safetensors(
    path: str | os.PathLike[str], arrays: Mapping[str, np.ndarray], header: Mapping[str, Any] | None = None
) -> None:
    """Write arrays to a ``.safetensors`` file, atomically and reproducibly.

    Parameters
    ----------
    path : path-like
        File to create or replace.
    arrays : mapping of str to numpy array
        As for :func:`kdtree_cupy.kdtr.write`.
    header : mapping, optional
        JSON object; kept as plain metadata if all its values are strings.

    Raises
    ------
    ValueError
        The header uses the reserved key ``kdtr_header``, or an array the name ``__metadata__``.
    """
    header = dict(header or {})
    if _HEADER_KEY in header or _METADATA in arrays:
        raise ValueError(
            f"header key {_HEADER_KEY!r} and array {_METADATA!r} are reserved in .safetensors files"
        )
    if not all(isinstance(value, str) for value in header.values()):
        header = {_HEADER_KEY: dump_json(header).decode("ascii")}
    # Wide types first, so that every tensor starts at a multiple of its item size.
    order = sorted(arrays, key=lambda name: (-arrays[name].dtype.itemsize, name))
    plain = {
        name: np.asarray(arrays[name], arrays[name].dtype.newbyteorder("<"), order="C") for name in order
    }
    top: dict[str, Any] = {_METADATA: header} if header else {}
    end = 0
    for name, array in plain.items():
        top[name] = {
            "dtype": _CODES[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [end, end + array.nbytes],
        }
        end += array.nbytes
    text = dump_json(top)
    text += b" " * (-len(text) % 8)
    with atomic_file(path) as handle:
        handle.write(struct.pack("<Q", len(text)) + text)
        for array in plain.values():
            handle.write(as_bytes(array))


def _parse_metadata(metadata: Any, path: Any) -> dict[str, Any]:
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise KdtrError(f"{path}: {_METADATA}: wanted an object of strings")
    if _HEADER_KEY not in metadata:
        return metadata
    try:
        header = load_json(metadata[_HEADER_KEY].encode("utf-8"))
    except ValueError as error:
        raise KdtrError(f"{path}: {_METADATA}: {_HEADER_KEY}: {error}") from error
    if not isinstance(header, dict):
        raise KdtrError(f"{path}: {_METADATA}: {_HEADER_KEY}: wanted a JSON object")
    return header


def _parse_tensor(name: str, item: Any, room: int, path: Any) -> tuple[int, int, str, str, tuple[int, ...]]:
    where = f"{path}: array {name[:60]!r}"
    if not NAME.fullmatch(name):
        raise KdtrError(f"{where}: name, wanted {NAME_RULE}")
    if not isinstance(item, dict) or sorted(item) != ["data_offsets", "dtype", "shape"]:
        raise KdtrError(f"{where}: wanted an object with dtype, shape and data_offsets")
    code, shape, offsets = item["dtype"], item["shape"], item["data_offsets"]
    if not isinstance(code, str) or code not in _NAMES:
        raise KdtrError(f"{where}: dtype {str(code)[:40]!r}, wanted one of {', '.join(_NAMES)}")
    if not isinstance(shape, list) or len(shape) > MAX_NDIM or not all(_is_count(n) for n in shape):
        raise KdtrError(f"{where}: shape {str(shape)[:60]}, wanted at most {MAX_NDIM} integers >= 0")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(_is_count(n) for n in offsets):
        raise KdtrError(f"{where}: data_offsets {str(offsets)[:60]}, wanted two integers >= 0")
    first, last = offsets
    if not first <= last <= room:
        raise KdtrError(f"{where}: data_offsets {first}..{last}, wanted to end within {room} bytes of data")
    try:
        nbytes = shape_bytes(tuple(shape), DTYPES[_NAMES[code]].itemsize)
    except ValueError as error:
        raise KdtrError(f"{where}: {error}") from error
    if nbytes != last - first:
        raise KdtrError(f"{where}: {last - first} bytes, but {code}{shape} takes {nbytes}")
    return first, last, name, _NAMES[code], tuple(shape)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 63
