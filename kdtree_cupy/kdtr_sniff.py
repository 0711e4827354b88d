"""Say what a file is that is not what its name promises, and what to do about it."""

from __future__ import annotations

_CONVERT = "convert it with: kdtree trace convert IN OUT.kdtr"
_KINDS = (
    (b"PK\x03\x04", f"an .npz or other zip archive; {_CONVERT}"),
    (b"PK\x05\x06", "an empty zip archive"),
    (b"\x93NUMPY", "a single .npy array; save arrays by name with numpy.savez, then convert that"),
    (b"\x89PNG", "a PNG image"),
    (b"\x1f\x8b", "gzip data; unpack it first"),
    (b"\xfd7zXZ", "xz data; unpack it first"),
    (b"\x28\xb5\x2f\xfd", "zstandard data; unpack it first"),
    (b"\x89HDF", "an HDF5 file"),
    (b"version https://git-lfs", "a Git LFS pointer, not the data; run: git lfs pull"),
    (b"\x80\x02", "a pickle, which is never loaded"),
    (b"\x80\x03", "a pickle, which is never loaded"),
    (b"\x80\x04", "a pickle, which is never loaded"),
    (b"\x80\x05", "a pickle, which is never loaded"),
    (b"\x7fELF", "a program"),
    (b"%PDF", "a PDF document"),
)


def describe_foreign(start: bytes, wanted: str = "KDTR") -> str:
    """Return what a file is that starts with ``start`` (a few dozen bytes) and is no ``wanted`` file."""
    no = f"is no {wanted} file"
    text = start.lstrip()
    if not start:
        return "is empty"
    if start[1:5] == b"KDTR" and wanted == "KDTR":
        return "is a KDTR file damaged in transfer (bytes changed as if it were text); copy it as binary"
    if start[1:5] == b"KDTR":
        return f"{no} but a KDTR file: rename it to .kdtr"
    for magic, kind in _KINDS:
        if start.startswith(magic):
            return f"{no} but {kind}"
    if start[8:9] == b"{" and int.from_bytes(start[:8], "little") < 1 << 32:
        return f"{no} but looks like .safetensors; {_CONVERT}"
    if not start.strip(b"\0"):
        return f"{no}: it starts with zeros (an interrupted download or copy?)"
    if text[:1] in (b"{", b"["):
        return f"{no} but looks like JSON text"
    if text[:1] == b"<":
        return f"{no} but looks like HTML or XML (a web page saved instead of the file?)"
    return f"{no}: it starts with bytes {start[:8].hex(' ')}"
