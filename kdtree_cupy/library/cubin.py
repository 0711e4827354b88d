"""Read a cubin without a GPU: the architecture it is for, and the sizes of each kernel's parameters.

The ``.nv.info`` sections are not documented by NVIDIA.  Whatever does not look as expected gives ``None``
("unchecked"), never a guess; a test per NVRTC version keeps watch.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass

_KPARAM_INFO, _CBANK_PARAM_SIZE, _MAX_THREADS = 0x17, 0x19, 0x05
_NO_VALUE, _BYTE, _SHORT, _SIZED = 1, 2, 3, 4
_EM_CUDA = 190
_NOTE_ARCH = re.compile(rb"-arch[ =](sm_\d+[af]?)[ \0]")


@dataclass(frozen=True)
class CubinKernel:
    """Facts about one kernel: parameter sizes in bytes (None: unchecked) and its ``__launch_bounds__``."""

    params: tuple[int, ...] | None
    max_threads: int | None


@dataclass(frozen=True)
class Cubin:
    """Architecture such as ``"sm_120a"`` (None: unknown), raw ELF flags, kernels by name."""

    arch: str | None
    flags: int
    kernels: dict[str, CubinKernel]


def parse(data: bytes) -> Cubin:
    """Parse a cubin; ValueError if it is not an ELF file for CUDA."""
    if data[:5] != b"\x7fELF\x02" or len(data) < 64:
        raise ValueError("not a cubin: no 64-bit ELF header")
    if struct.unpack_from("<H", data, 18)[0] != _EM_CUDA:
        raise ValueError("not a cubin: the ELF file is for another machine")
    flags = struct.unpack_from("<I", data, 48)[0]
    kernels = {}
    try:
        sections = dict(_sections(data))
    except (struct.error, ValueError, UnicodeDecodeError):
        sections = {}
    for name in sections:
        if name.startswith(".text."):
            kernel = name.removeprefix(".text.")
            kernels[kernel] = _kernel(sections.get(f".nv.info.{kernel}"))
    return Cubin(_arch(data[8], flags, sections.get(".note.nv.tkinfo", b"")), flags, kernels)


def _arch(abi: int, flags: int, note: bytes) -> str | None:
    """Return the architecture: from the note on the tools used, else from the ELF flags.

    Only the note tells "f" apart, and since NVRTC 13 the flags no longer tell "a" either.  In the flags, ELF
    ABI 8 (CUDA 12.8 for Blackwell, 13 for all) keeps the number in bits 8-15, older files in bits 0-7.
    """
    if found := _NOTE_ARCH.search(note):
        return found[1].decode()
    if abi >= 8:
        number, specific = flags >> 8 & 0xFF, flags & 0x8
    else:
        number, specific = flags & 0xFF, flags & 0x800
    return f"sm_{number}{'a' if specific else ''}" if number >= 50 else None


def _sections(data: bytes) -> Iterator[tuple[str, bytes]]:
    start = struct.unpack_from("<Q", data, 40)[0]
    size, count, names = struct.unpack_from("<3H", data, 58)
    headers = [struct.unpack_from("<IIQQQQ", data, start + i * size) for i in range(count)]
    text = headers[names][4]
    for offset, kind, _, _, begin, length in headers:
        end = data.index(b"\0", text + offset)
        name = data[text + offset : end].decode()
        nobits = kind == 8
        if not nobits and begin + length > len(data):
            raise ValueError("a section lies outside the file")
        yield name, b"" if nobits else data[begin : begin + length]


def _attributes(info: bytes) -> Iterator[tuple[int, bytes]]:
    """Walk the attribute list; ValueError at the first form that is not known."""
    at = 0
    while at < len(info):
        form, attribute, value = struct.unpack_from("<BBH", info, at)
        at += 4
        if form == _SIZED:
            if at + value > len(info):
                raise ValueError("an attribute lies outside its section")
            yield attribute, info[at : at + value]
            at += value
        elif form in (_NO_VALUE, _BYTE, _SHORT):
            yield attribute, value.to_bytes(2, "little")
        else:
            raise ValueError(f"unknown attribute form {form}")


def _kernel(info: bytes | None) -> CubinKernel:
    if info is None:
        return CubinKernel(None, None)
    found: dict[int, tuple[int, int]] = {}
    total = 0
    threads = None
    try:
        for attribute, value in _attributes(info):
            if attribute == _KPARAM_INFO:
                _, ordinal, offset, word = struct.unpack("<IHHI", value)
                found[ordinal] = (offset, word >> 18)
            elif attribute == _CBANK_PARAM_SIZE:
                total = int.from_bytes(value, "little")
            elif attribute == _MAX_THREADS:
                x, y, z = struct.unpack("<3I", value)
                threads = x * y * z
    except (struct.error, ValueError):
        return CubinKernel(None, None)
    ordered = [found.get(i) for i in range(len(found))]
    if None in ordered:
        return CubinKernel(None, threads)
    sizes = tuple(size for _, size in ordered)
    end = max((offset + size for offset, size in ordered), default=0)
    # the parameter block's own size must agree, else the layout changed and the numbers mean something else
    return CubinKernel(sizes if end == total else None, threads)
