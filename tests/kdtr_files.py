"""KDTR files made by hand, right and wrong: used against the Python and the C++ reader alike."""

from __future__ import annotations

import json
import struct
import zlib
from typing import Any

START = 1024  # headers are padded with spaces so that the data starts here
DATA = struct.pack("<3i", 1, -2, 3).ljust(64, b"\0") + b"\1\0\1\1\0".ljust(64, b"\0")
END = START + len(DATA)


def entry(which: str, /, **changes: Any) -> dict[str, Any]:
    """Return the description of array "a" (int32 [3]) or "b" (bool [5]) with changes; None drops a field."""
    known = {
        "a": {"dtype": "int32", "shape": [3], "offset": START, "bytes": 12, "crc32": zlib.crc32(DATA[:12])},
        "b": {
            "dtype": "bool",
            "shape": [5],
            "offset": START + 64,
            "bytes": 5,
            "crc32": zlib.crc32(DATA[64:69]),
        },
    }
    fields = {"name": which, **known[which], **changes}
    return {key: value for key, value in fields.items() if value is not None}


def pack(top: Any = None, data: bytes = DATA, start: int = START, **preamble: Any) -> bytes:
    """Return a file with the given JSON (value or bytes) and a correct checksum, whatever else is wrong."""
    if top is None:
        top = {"arrays": [entry("a"), entry("b")], "header": {"seed": 7}}
    text = (top if isinstance(top, bytes) else json.dumps(top).encode("ascii")).ljust(start - 32)
    text += b" " * (-(32 + len(text)) % 64)
    fields = {"magic": b"\xd1KDTR\r\n\x1a", "major": 1, "minor": 0, "size": len(text)}
    fields |= {"file": 32 + len(text) + len(data), "zero": 0} | preamble
    first = struct.pack("<8sHHIQI", *(fields[k] for k in ("magic", "major", "minor", "size", "file", "zero")))
    return first + struct.pack("<I", zlib.crc32(text, zlib.crc32(first))) + text + data


def _json(text: str | bytes) -> bytes:
    return pack(text.encode() if isinstance(text, str) else text)


def _header(value: str) -> bytes:
    plain = json.dumps([entry("a"), entry("b")])
    return _json(f'{{"arrays": {plain}, "header": {{"x": {value}}}}}')


def _a(**changes: Any) -> bytes:
    return pack({"arrays": [entry("a", **changes), entry("b")], "header": {}})


def _b(**changes: Any) -> bytes:
    return pack({"arrays": [entry("a"), entry("b", **changes)], "header": {}})


BAD_NAMES = (
    1, "", ".", "..", "../a", "a/b", "a\\b", "/etc/passwd", ".a", "-a", "a b", "x" * 129, "é", "a\0", "C:a",
)  # fmt: skip
BAD_DTYPES = ("object", "float128", "complex64", "str", "<i4", "int32\0", "", 4, ["int32"])
BAD_SHAPES = (
    3, "3", {}, [-3], [3.0], [True], ["3"], [None], [[3]], [1] * 33,
    [2**63], [10**40], [2**62, 2**62], [2**32, 2**32], [0, 2**62, 2**62],
)  # fmt: skip
BAD_OFFSETS = (-64, 1.0, "64", True, 2**63, 10**30, START + 65)

# name: (file, words of the Python message, code of the C++ reader)
FOREIGN, VERSION, TRUNCATED, CORRUPT, HEADER = 2, 3, 4, 5, 6
HOSTILE: dict[str, tuple[bytes, str, int]] = {
    # preamble
    "newer-major": (pack(major=2), "written as KDTR 2.0.*update", VERSION),
    "major-zero": (pack(major=0), "version 0.0", CORRUPT),
    "reserved": (pack(zero=1), "reserved field 1", CORRUPT),
    "text-transfer": (pack(magic=b"\xd1KDTR\n\x1a\0"), "damaged in transfer", FOREIGN),
    "header-4GiB": (pack(size=2**32 - 1), "header of 4294967295 bytes", HEADER),
    "header-past-end": (pack(size=1 << 20), "truncated", TRUNCATED),
    "file-2^63": (pack(file=2**63), "truncated: .* of 9223372036854775808", TRUNCATED),
    "file-short": (pack(file=64), "bytes after the end, from byte 64", CORRUPT),
    "bytes-after": (pack() + b"x", "1 bytes after the end", CORRUPT),
    "header-huge": (pack(start=(4 << 20) + 64), "header of 4194336 bytes", HEADER),
    # JSON
    "json-empty": (_json(""), "header: ", HEADER),
    "json-cut": (_json('{"arrays": ['), "header: ", HEADER),
    "json-list": (_json("[]"), "wanted an object", HEADER),
    "json-two": (_json('{"arrays": [], "header": {}} {}'), "header: Extra data", HEADER),
    "json-trailing-comma": (_header("[1,]"), "header: ", HEADER),
    "json-leading-zero": (_header("01"), "header: ", HEADER),
    "json-bare-point": (_header("1."), "header: ", HEADER),
    "json-bare-minus": (_header("-"), "header: ", HEADER),
    "json-bad-escape": (_header(r'"\x"'), "header: ", HEADER),
    "json-short-escape": (_header(r'"\u12"'), "header: ", HEADER),
    "json-open-string": (_json('{"arrays": [], "header": {"a'), "header: ", HEADER),
    "json-control-character": (_header('"\n"'), "header: ", HEADER),
    "json-nul": (_header('"\0"'), "header: ", HEADER),
    "json-not-utf8": (_json(b'{"arrays": [], "header": {"x": "\xff"}}'), "not ASCII at byte 32", HEADER),
    "json-not-ascii": (_header('"é"'), "not ASCII", HEADER),
    "json-nan": (_header("NaN"), "NaN is not JSON", HEADER),
    "json-infinity": (_header("[-Infinity]"), "-Infinity is not JSON", HEADER),
    "json-1e999": (_header("1e999"), "1e999 is out of range", HEADER),
    "json-deep": (_header("[" * 63 + "]" * 63), "nested deeper than 64", HEADER),
    "json-very-deep": (_header("[" * 200_000 + "]" * 200_000), "nested deeper than 64", HEADER),
    "json-deep-objects": (_json('{"a":' * 100_000 + "1" + "}" * 100_000), "nested deeper than 64", HEADER),
    "json-key-twice": (_header('1, "x": 2'), "key 'x' is given twice", HEADER),
    "json-key-twice-escaped": (_header(r'1, "\u0078": 2'), "key 'x' is given twice", HEADER),
    "json-key-twice-pair": (_header(r'1, "\ud83d\ude00": 2, "\ud83d\uDE00": 3'), "given twice", HEADER),
    "no-arrays": (pack({"header": {}}), "a list 'arrays'", HEADER),
    "no-header": (pack({"arrays": []}), "under 'header'", HEADER),
    "arrays-object": (pack({"arrays": {}, "header": {}}), "a list 'arrays'", HEADER),
    "header-list": (pack({"arrays": [], "header": []}), "under 'header'", HEADER),
    "entry-string": (pack({"arrays": ["a"], "header": {}}), r"arrays\[0\]: got str", HEADER),
    # fields of an array
    **{f"no-{k}": (_a(**{k: None}), "'a'|name", HEADER) for k in ("name", *list(entry("a"))[1:])},
    **{f"name-{i}": (_a(name=name), r"arrays\[0\]: name", HEADER) for i, name in enumerate(BAD_NAMES)},
    "name-twice": (_b(name="a"), "array 'a': name is given twice", HEADER),
    **{f"dtype-{i}": (_a(dtype=dtype), "array 'a': dtype", HEADER) for i, dtype in enumerate(BAD_DTYPES)},
    **{f"shape-{i}": (_a(shape=shape), "array 'a': shape", HEADER) for i, shape in enumerate(BAD_SHAPES)},
    "shape-larger": (_a(shape=[4]), "12 bytes, but int32.* takes 16", HEADER),
    "shape-terabytes": (_a(shape=[1 << 40], bytes=1 << 42), "end past the file's", HEADER),
    **{f"offset-{i}": (_b(offset=n), "array 'b': offset", HEADER) for i, n in enumerate(BAD_OFFSETS)},
    "offset-past-end": (_b(offset=END), "array 'b': bytes .* end past", HEADER),
    "offset-wraps": (_b(offset=2**63 - 64), "array 'b': bytes .* end past", HEADER),
    "offset-in-header": (_a(offset=0), "array 'a': offset 0 overlaps the header", HEADER),
    "offset-overlap": (_b(offset=START), "array 'b': offset 1024 overlaps array 'a'", HEADER),
    "offset-gap": (pack({"arrays": [entry("b")], "header": {}}), "64 bytes belong to no array", HEADER),
    "array-after": (pack({"arrays": [entry("a")], "header": {}}), "64 bytes after the last array", HEADER),
    "bytes-negative": (_a(bytes=-12), "array 'a': bytes -12", HEADER),
    "crc32-large": (_a(crc32=2**32), "array 'a': crc32", HEADER),
    # data
    "data-crc32": (_a(crc32=1), "array 'a': bytes 1024..1036 are corrupt", CORRUPT),
    "data-padding": (pack(data=DATA[:20] + b"\1" + DATA[21:]), "'a': byte 1044 of the padding", CORRUPT),
    "data-bool": (
        pack({"arrays": [entry("a"), entry("b", crc32=zlib.crc32(b"\1\0\2\1\0"))], "header": {}},
             DATA[:66] + b"\2" + DATA[67:]),
        "array 'b': byte 1090 is no bool", CORRUPT),
}  # fmt: skip
