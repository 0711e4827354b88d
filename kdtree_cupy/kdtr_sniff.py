"""Say what a file is that is no KDTR file, and what to do about it."""

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


def describe_foreign(start: bytes) -> str:
    """Return a sentence on a file that starts with ``start`` (a few dozen bytes are enough)."""
    if not start:
        return "is empty"
    if start[1:5] == b"KDTR":
        return "is a KDTR file damaged in transfer (bytes changed as if it were text); copy it as binary"
    for magic, text in _KINDS:
        if start.startswith(magic):
            return f"is no KDTR file but {text}"
    if len(start) > 8 and start[8:9] == b"{" and int.from_bytes(start[:8], "little") < 1 << 32:
        return f"is no KDTR file but looks like .safetensors; {_CONVERT}"
    if not start.strip(b"\0"):
        return "is no KDTR file: it starts with zeros (an interrupted download or copy?)"
    if start.lstrip()[:1] in (b"{", b"["):
        return "is no KDTR file but looks like JSON text"
    if start.lstrip()[:1] == b"<":
        return "is no KDTR file but looks like HTML or XML (a web page saved instead of the file?)"
    return f"is no KDTR file: it starts with bytes {start[:8].hex(' ')}"
