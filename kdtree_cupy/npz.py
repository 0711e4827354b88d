"""Read and write ``.npz`` archives that strangers made: sizes first, no pickle, then the data.

``numpy.load`` trusts sizes and allocates before it finds that the data is short.  Here the directory of the
archive and the header of every member are checked against each other and a limit before memory is taken.
"""

from __future__ import annotations

import struct
import zipfile
import zlib
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from .errors import KdtrError
from .files import atomic_file, open_regular
from .kdtr_format import (
    DTYPES,
    MAX_HEADER_BYTES,
    NAME,
    NAME_RULE,
    SHORT_FLOATS,
    dump_json,
    load_json,
    shape_bytes,
)
from .kdtr_sniff import describe_foreign
from .npy_header import read_npy_header

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

MAX_BYTES = 2 << 30
"""Decompressed bytes that a file may declare before a caller has to allow more."""

META = "meta"  # string array that holds the JSON header
_TYPES_KEY = "kdtr_dtypes"  # in the header: arrays that numpy's format cannot name, stored as integers
_MAX_MEMBERS = 4096
_MAX_DEFLATE_RATIO = 1032  # DEFLATE cannot expand a byte to more
_BROKEN_ZIP = (
    zipfile.BadZipFile, zlib.error, EOFError, struct.error, NotImplementedError, RuntimeError, OSError,
    ValueError, OverflowError, IndexError, TypeError,
)  # fmt: skip


def read_npz(
    path: str | os.PathLike[str], *, max_bytes: int = MAX_BYTES
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return header and arrays of an ``.npz``; nothing in it is ever unpickled.

    Parameters
    ----------
    path : path-like
        File to read.
    max_bytes : int
        Refuse archives that declare more decompressed bytes.

    Returns
    -------
    header : dict
        JSON object of the string array ``meta``; empty if there is none.
    arrays : dict of str to numpy array
        The other arrays.

    Raises
    ------
    KdtrError
        Not an archive, corrupt, too large, or a member that is no plain array; names file and array.
    """
    with open_regular(path) as handle:
        start = handle.read(32)
        if start[:4] not in (b"PK\x03\x04", b"PK\x05\x06"):
            raise KdtrError(f"{path}: {describe_foreign(start, '.npz')}")
        try:
            count = _read_directory_end(handle, path)
            archive = zipfile.ZipFile(handle)
        except KdtrError:
            raise
        except _BROKEN_ZIP as error:
            raise KdtrError(f"{path}: corrupt or truncated .npz: {error}") from error
        with archive:
            if len(archive.infolist()) != count:
                raise KdtrError(f"{path}: corrupt .npz: {len(archive.infolist())} of {count} members found")
            members = _check_directory(archive, path, max_bytes)
            arrays = {name: _read_member(archive, info, name, path) for name, info in members.items()}
    header = _take_header(arrays, path)
    _restore_types(arrays, header.pop(_TYPES_KEY, {}), path)
    return header, arrays


def write_npz(
    path: str | os.PathLike[str], arrays: Mapping[str, np.ndarray], header: Mapping[str, Any] | None = None
) -> None:
    """Write arrays to a compressed ``.npz``, atomically; the header becomes the string array ``meta``.

    bfloat16 and float8 are stored as unsigned integers of the same bits and named in the header, because
    numpy's format would lose their type.

    Parameters
    ----------
    path : path-like
        File to create or replace.
    arrays : mapping of str to numpy array
        As for :func:`kdtree_cupy.kdtr.write`.
    header : mapping, optional
        JSON object.

    Raises
    ------
    ValueError
        An array is called ``meta`` although there is a header, or the header uses a reserved key.
    """
    header = dict(header or {})
    if _TYPES_KEY in header:
        raise ValueError(f"header: key {_TYPES_KEY!r} is reserved in .npz files")
    short = {name: a.dtype.name for name, a in arrays.items() if a.dtype.name in SHORT_FLOATS}
    if short:
        header[_TYPES_KEY] = short
    if header and META in arrays:
        raise ValueError(f"array {META!r}: .npz keeps the header under that name; rename the array")
    members = {name: arrays[name] for name in sorted(arrays)}
    if header:
        members[META] = np.array(dump_json(header).decode("ascii"))
    with atomic_file(path) as handle, zipfile.ZipFile(handle, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in members.items():
            if name in short:
                array = array.view(f"u{array.dtype.itemsize}")
            # A fixed date and mode: the same content gives the same bytes.
            info = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))
            info.compress_type = zipfile.ZIP_DEFLATED
            with archive.open(info, "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)


def _read_directory_end(handle: BinaryIO, path: Any) -> int:
    """Return how many members the archive says it has; refuse a directory of millions.

    zipfile builds an object for each member before anyone can count them, and it does not notice when a
    damaged directory makes one member swallow the next.
    """
    handle.seek(max(0, handle.seek(0, 2) - 66_000))
    tail = handle.read()
    end = tail.rfind(b"PK\x05\x06")
    if end < 0:
        raise KdtrError(f"{path}: truncated .npz: its directory is missing")
    members, size = struct.unpack_from("<HI", tail, end + 10)
    if end >= 76 and tail[end - 20 : end - 16] == b"PK\x06\x07":  # fields of 64 bits stand before
        if tail[end - 76 : end - 72] != b"PK\x06\x06":
            raise KdtrError(f"{path}: corrupt .npz: its 64-bit directory record is not where it belongs")
        members, size = struct.unpack_from("<QQ", tail, end - 44)
    if size > MAX_HEADER_BYTES or members > _MAX_MEMBERS:
        limits = f"{_MAX_MEMBERS} and {MAX_HEADER_BYTES}"
        raise KdtrError(f"{path}: {members} members, directory of {size} bytes, wanted at most {limits}")
    return members


def _check_directory(archive: zipfile.ZipFile, path: Any, max_bytes: int) -> dict[str, zipfile.ZipInfo]:
    members: dict[str, zipfile.ZipInfo] = {}
    infos = archive.infolist()
    for info in infos:
        name = info.filename.removesuffix(".npy")
        if name == info.filename or not NAME.fullmatch(name):
            raise KdtrError(
                f"{path}: member {info.filename[:60]!r}, wanted NAME.npy with NAME of {NAME_RULE}"
            )
        if name in members:
            raise KdtrError(f"{path}: array {name!r}: name is given twice")
        if info.flag_bits & 0x1:
            raise KdtrError(f"{path}: array {name!r}: is encrypted")
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise KdtrError(
                f"{path}: array {name!r}: compression {info.compress_type}, wanted stored or deflate"
            )
        if info.file_size > (info.compress_size + 16) * _MAX_DEFLATE_RATIO:
            raise KdtrError(
                f"{path}: array {name!r}: claims {info.file_size} bytes from {info.compress_size}: impossible"
            )
        members[name] = info
    total = sum(info.file_size for info in infos)
    if total > max_bytes:
        raise KdtrError(
            f"{path}: decompresses to {total} bytes, the limit is {max_bytes}; "
            "if you trust the file, raise it (max_bytes=, --max-bytes)"
        )
    return members


def _read_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, name: str, path: Any) -> np.ndarray:
    where = f"{path}: array {name!r}"
    try:
        with archive.open(info) as member:
            dtype, fortran, shape, start = read_npy_header(member, where)
            text = name == META and dtype.kind in "US"
            if not text and dtype.name not in DTYPES:
                raise KdtrError(f"{where}: dtype {dtype}, wanted one of {', '.join(DTYPES)}")
            nbytes = shape_bytes(shape, dtype.itemsize)
            if text and nbytes > 4 * MAX_HEADER_BYTES:
                raise KdtrError(f"{where}: {nbytes} bytes of text, wanted at most {4 * MAX_HEADER_BYTES}")
            if start + nbytes != info.file_size:
                have = info.file_size - start
                raise KdtrError(f"{where}: {dtype}{list(shape)} takes {nbytes} bytes, the member has {have}")
            raw = np.empty(nbytes, np.uint8)
            got = 0
            while got < nbytes:
                part = member.read(min(nbytes - got, 1 << 20))
                if not part:
                    raise KdtrError(f"{where}: truncated: {got} bytes of {nbytes}")
                raw[got : got + len(part)] = np.frombuffer(part, np.uint8)
                got += len(part)
            member.read(1)  # at the end, zipfile compares the checksum
        array = raw.view(dtype).astype(dtype.newbyteorder("="), copy=False)
        return array.reshape(shape[::-1]).T if fortran else array.reshape(shape)
    except KdtrError:
        raise
    except MemoryError as error:
        raise KdtrError(f"{where}: no memory for {info.file_size} bytes") from error
    except _BROKEN_ZIP as error:
        raise KdtrError(f"{where}: corrupt: {str(error) or type(error).__name__}") from error


def _take_header(arrays: dict[str, np.ndarray], path: Any) -> dict[str, Any]:
    """Remove the string array ``meta`` and return its JSON object."""
    meta = arrays.get(META)
    if meta is None or meta.dtype.kind not in "US":
        return {}
    del arrays[META]
    if meta.size != 1:
        raise KdtrError(f"{path}: array {META!r}: got {meta.dtype} {meta.shape}, wanted one string of JSON")
    try:
        item = meta.reshape(-1)[0]
        header = load_json(item if isinstance(item, bytes) else str(item).encode("utf-8"))
    except ValueError as error:
        raise KdtrError(f"{path}: array {META!r}: {error}") from error
    if not isinstance(header, dict):
        raise KdtrError(f"{path}: array {META!r}: wanted a JSON object")
    return header


def _restore_types(arrays: dict[str, np.ndarray], types: Any, path: Any) -> None:
    """Give arrays that were stored as integers their type back."""
    if not isinstance(types, dict):
        raise KdtrError(f"{path}: array {META!r}: {_TYPES_KEY}: wanted a JSON object")
    for name, dtype in types.items():
        array, wanted = arrays.get(name), DTYPES.get(dtype) if isinstance(dtype, str) else None
        if array is None or wanted is None or array.dtype != f"u{wanted.itemsize}":
            raise KdtrError(f"{path}: array {name[:60]!r}: {_TYPES_KEY} {str(dtype)[:40]!r} does not fit")
        arrays[name] = array.view(wanted)
