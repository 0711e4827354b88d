"""KDTR: one file of named arrays and a JSON header, memory-mapped and checked (format: docs/kdtr.md).

Traces and golden references are stored this way.  A file is checked before it is trusted: sizes, places and
the checksum of the header always, checksums of the arrays as ``verify`` says, and all of it before anything
large is allocated.

Examples
--------
>>> import numpy as np, tempfile, pathlib
>>> from kdtree_cupy import kdtr
>>> path = pathlib.Path(tempfile.mkdtemp()) / "x.kdtr"
>>> kdtr.write(path, {"ids": np.arange(6).reshape(2, 3)}, {"seed": 0})
>>> file = kdtr.read(path)
>>> file.header, file.arrays["ids"].shape
({'seed': 0}, (2, 3))
"""

from __future__ import annotations

import mmap as _mmap
import os
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np

from .errors import KdtrError
from .files import open_regular
from .kdtr_format import (
    ALIGNMENT,
    DTYPES,
    MAGIC,
    MAX_HEADER_BYTES,
    PREAMBLE,
    VERSION,
    Entry,
    align,
    parse_header,
)
from .kdtr_sniff import describe_foreign
from .kdtr_write import write

__all__ = ["read", "write", "Kdtr", "KdtrError"]

Verify = bool | Literal["lazy"]


@dataclass(frozen=True, repr=False, eq=False)
class Kdtr:
    """An open KDTR file.

    Parameters
    ----------
    path : Path
        File that was read.
    version : (int, int)
        Major and minor version of the format that the file claims.
    header : dict
        The JSON header that its writer gave.
    arrays : mapping of str to numpy array
        Read-only arrays by name, in the order of the file.
    entries : dict of str to Entry
        dtype, shape, offset, size and checksum of each array; reads no array.
    extra : dict
        Fields of a newer minor version; ``write(..., like=file)`` carries them over.
    """

    path: Path
    version: tuple[int, int]
    header: dict[str, Any]
    arrays: Mapping[str, np.ndarray]
    entries: dict[str, Entry]
    extra: dict[str, Any]

    def verify(self) -> Kdtr:
        """Check every checksum and the padding between arrays; return self or raise :class:`KdtrError`."""
        for name in self.arrays:
            self.arrays.check(name)
        return self

    def __repr__(self) -> str:
        shown = ", ".join(f"{e.name}: {e.dtype}{list(e.shape)}" for e in self.entries.values())
        return f"Kdtr({str(self.path)!r}, version {self.version[0]}.{self.version[1]}, {{{shown}}})"


class _Arrays(Mapping[str, np.ndarray]):
    """Arrays of a file by name; checks one when it is first asked for, if ``lazy``."""

    def __init__(self, path: Path, entries: dict[str, Entry], source: _Source, lazy: bool) -> None:
        self._path, self._entries, self._source, self._lazy = path, entries, source, lazy
        self._checked: set[str] = set()

    def __getitem__(self, name: str) -> np.ndarray:
        if self._lazy:
            self.check(name)
        entry = self._entries[name]
        raw = self._source.section(entry)[: entry.nbytes]
        dtype = DTYPES[entry.dtype].newbyteorder("<")
        return raw.view(dtype).reshape(entry.shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"<arrays of {self._path}: {', '.join(self._entries)}>"

    def check(self, name: str) -> None:
        """Raise unless checksum, padding and bools of one array are right; does the work once."""
        if name in self._checked:
            return
        entry = self._entries[name]
        section = self._source.section(entry)
        data, padding = section[: entry.nbytes], section[entry.nbytes :]
        where = f"{self._path}: array {name!r}"
        found = zlib.crc32(data.data)
        if found != entry.crc32:
            raise KdtrError(
                f"{where}: bytes {entry.offset}..{entry.offset + entry.nbytes} are corrupt: "
                f"checksum {found:08x}, the header says {entry.crc32:08x}"
            )
        if padding.any():
            at = entry.offset + entry.nbytes + int(padding.nonzero()[0][0])
            raise KdtrError(f"{where}: byte {at} of the padding after it is not zero")
        if entry.dtype == "bool" and data.size and data.max() > 1:
            raise KdtrError(f"{where}: byte {entry.offset + int((data > 1).argmax())} is no bool")
        self._checked.add(name)


class _Source:
    """Bytes of a file: mapped, or read array by array and kept."""

    def __init__(self, handle: BinaryIO, mmap: bool, entries: dict[str, Entry], path: Path) -> None:
        self._whole: np.ndarray | None = None
        self._parts: dict[str, np.ndarray] = {}
        if mmap:
            view = _mmap.mmap(handle.fileno(), 0, access=_mmap.ACCESS_READ)
            self._whole = np.frombuffer(view, np.uint8)
            return
        for entry in entries.values():
            size = align(entry.nbytes)  # the file is that long: this was checked
            handle.seek(entry.offset)
            part = _aligned(size)
            if handle.readinto(part.data) != size:
                raise KdtrError(f"{path}: array {entry.name!r}: the file became shorter while it was read")
            part.flags.writeable = False
            self._parts[entry.name] = part

    def section(self, entry: Entry) -> np.ndarray:
        """Return the bytes of an array and of the padding behind it."""
        if self._whole is None:
            return self._parts[entry.name]
        return self._whole[entry.offset : entry.offset + align(entry.nbytes)]


def _aligned(size: int) -> np.ndarray:
    """Return ``size`` uninitialised bytes that start at a multiple of 64, as in the file."""
    raw = np.empty(size + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + size]


def read(path: str | os.PathLike[str], *, mmap: bool = True, verify: Verify = True) -> Kdtr:
    """Open a KDTR file.

    Parameters
    ----------
    path : path-like
        File to read.
    mmap : bool
        Map the file (default): opening is instant and pages are shared between processes.  The file
        must not be shortened in place while arrays are in use; ``write`` never does that.
        False reads everything into memory that belongs to the arrays.
    verify : bool or "lazy"
        True checks all array checksums now (reads the file once, over 1 GB/s); "lazy" checks an array
        when it is first taken from ``.arrays``; False leaves them unchecked.  Structure and header checksum
        are always checked.

    Returns
    -------
    Kdtr
        ``.header``, ``.arrays`` (read-only), ``.entries``, ``.path``, ``.version``.

    Raises
    ------
    KdtrError
        The file is missing, unreadable, foreign, truncated, corrupt, inconsistent or of a newer major
        version; names the file and the array or byte.
    """
    if verify not in (True, False, "lazy"):
        raise ValueError(f"verify: got {verify!r}, wanted True, False or 'lazy'")
    path = Path(path)
    with open_regular(path) as handle:
        size = os.fstat(handle.fileno()).st_size
        version, header_bytes, crc, start = _read_preamble(handle, size, path)
        text = handle.read(header_bytes)
        if len(text) != header_bytes or zlib.crc32(text, zlib.crc32(start)) != crc:
            raise KdtrError(
                f"{path}: header (bytes 0..{PREAMBLE.size + header_bytes}) is corrupt: bad checksum"
            )
        data_start = align(PREAMBLE.size + header_bytes)
        if any(handle.read(data_start - PREAMBLE.size - header_bytes)):
            raise KdtrError(f"{path}: the padding after the header, up to byte {data_start}, is not zero")
        listed, header, extra = parse_header(text, data_start, size, path)
        entries = {entry.name: entry for entry in listed}
        arrays = _Arrays(path, entries, _Source(handle, mmap, entries, path), lazy=verify == "lazy")
    file = Kdtr(path, version, header, arrays, entries, extra)
    return file.verify() if verify is True else file


def _read_preamble(handle: BinaryIO, size: int, path: Path) -> tuple[tuple[int, int], int, int, bytes]:
    """Return version, size of the header, its checksum and the bytes that go into the checksum first."""
    raw = handle.read(PREAMBLE.size)
    if raw[: len(MAGIC)] != MAGIC[: len(raw)] or not raw:
        raise KdtrError(f"{path}: {describe_foreign(raw)}")
    if len(raw) < PREAMBLE.size:
        raise KdtrError(f"{path}: truncated: {size} bytes, a KDTR file starts with {PREAMBLE.size}")
    _, major, minor, header_bytes, file_bytes, zero, crc = PREAMBLE.unpack(raw)
    if major > VERSION[0]:
        raise KdtrError(
            f"{path}: written as KDTR {major}.{minor}, but this kdtree_cupy reads {VERSION[0]}.x; "
            "update kdtree_cupy"
        )
    if major < 1 or zero:
        raise KdtrError(f"{path}: corrupt: version {major}.{minor}, reserved field {zero} (wanted 0)")
    if header_bytes > MAX_HEADER_BYTES:
        raise KdtrError(f"{path}: header of {header_bytes} bytes, wanted at most {MAX_HEADER_BYTES}")
    if size < file_bytes or size < PREAMBLE.size + header_bytes:
        raise KdtrError(f"{path}: truncated: {size} bytes of {file_bytes}")
    if size > file_bytes:
        raise KdtrError(f"{path}: {size - file_bytes} bytes after the end, from byte {file_bytes}")
    return (major, minor), header_bytes, crc, raw[:-4]
