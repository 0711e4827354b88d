"""Parameter names and types of kernels, read from their source text.

A cubin holds the size of each parameter but neither name nor type.  The text has both: enough to name an
argument in a message and to tell ``const float*`` from ``const int*``.  What the small parser here does not
understand (a type made by a template, a kernel made by a macro) stays unchecked; sizes are checked anyway.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_DEFINE = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)[ \t]+([^\n]+)$", re.MULTILINE)
_ALIAS = re.compile(r"\busing\s+(\w+)\s*=\s*([\w\s:]+);|\btypedef\s+([\w\s:]+?)\s+(\w+)\s*;")
_QUALIFIERS = {
    "const",
    "volatile",
    "__restrict__",
    "__restrict",
    "__grid_constant__",
    "struct",
    "unsigned",
    "signed",
}
_DEPTH = 8  # enough for any sane chain of macros; stops at loops

DTYPES: dict[str, str] = {
    "float": "float32",
    "double": "float64",
    "char": "int8",
    "signed char": "int8",
    "unsigned char": "uint8",
    "short": "int16",
    "unsigned short": "uint16",
    "int": "int32",
    "unsigned int": "uint32",
    "long long": "int64",
    "unsigned long long": "uint64",
    "long": "int64",
    "unsigned long": "uint64",
    "size_t": "uint64",
    "bool": "bool",
    "half": "float16",
    "__half": "float16",
    "__nv_bfloat16": "bfloat16",
    "nv_bfloat16": "bfloat16",
    "__nv_fp8_e4m3": "float8_e4m3fn",
    "__nv_fp8_e5m2": "float8_e5m2",
}
"""Numpy name of each C++ type that a kernel may take."""


@dataclass(frozen=True)
class Parameter:
    """One parameter: its name, its C++ text, the numpy name of its (pointed-to) type or None, and more."""

    name: str
    text: str
    dtype: str | None
    pointer: bool
    const: bool


def parameters(
    text: str, kernel: str, defines: Mapping[str, str], headers: str = ""
) -> tuple[Parameter, ...] | None:
    """Return the parameters of ``kernel`` in ``text``, or None if they cannot be told.

    Parameters
    ----------
    text : str
        The ``.cu`` file.
    kernel : str
        Name of a ``__global__`` function.
    defines : dict of str to str
        Macros given on the command line; they win over ``#define``.
    headers : str
        Text of the included headers, searched for macros and type aliases.
    """
    text = _COMMENT.sub(" ", text)
    macros = dict(_DEFINE.findall(_COMMENT.sub(" ", headers) + "\n" + text))
    for one in _ALIAS.finditer(headers + "\n" + text):
        macros.setdefault(one[1] or one[4], one[2] or one[3])
    macros.update(defines)
    found = re.search(rf"__global__\b[^;{{}}]*?\b{re.escape(kernel)}\s*\(", text)
    if not found:
        return None
    inside = _balanced(text, found.end())
    if inside is None:
        return None
    parts = [part.strip() for part in _split(inside)]
    if parts in ([""], ["void"]):
        return ()
    out = [_parameter(part, macros) for part in parts]
    return None if None in out else tuple(out)


def _balanced(text: str, start: int) -> str | None:
    depth = 1
    for at in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        if depth == 0:
            return text[start:at]
    return None


def _split(text: str) -> list[str]:
    """Split at commas that are in no bracket."""
    parts, depth, begin = [], 0, 0
    for at, letter in enumerate(text):
        depth += {"(": 1, "<": 1, "[": 1, ")": -1, ">": -1, "]": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            parts.append(text[begin:at])
            begin = at + 1
    return [*parts, text[begin:]]


def _parameter(part: str, macros: Mapping[str, str]) -> Parameter | None:
    declared = re.fullmatch(r"(.*?)(\w+)\s*(\[\s*\w*\s*\])?", part.split("=")[0].strip(), re.DOTALL)
    if not declared:
        return None
    kind, name, array = declared[1], declared[2], declared[3]
    shown = " ".join(part.split())
    kind = _expand(kind, macros)
    stars = kind.count("*") + bool(array)
    if stars > 1 or "&" in kind:
        return Parameter(name, shown, "uint64" if stars > 1 else None, stars > 0, False)
    const = bool(re.search(r"\bconst\b", kind.split("*")[0]))
    return Parameter(name, shown, _dtype(kind.split("*")[0]), stars > 0, const)


def _expand(kind: str, macros: Mapping[str, str]) -> str:
    for _ in range(_DEPTH):
        expanded = re.sub(r"\b[A-Za-z_]\w*", lambda word: macros.get(word[0], word[0]), kind)
        if expanded == kind:
            break
        kind = expanded
    return kind


def _dtype(kind: str) -> str | None:
    words = [word for word in kind.split() if word not in _QUALIFIERS - {"unsigned", "signed"}]
    sign = "unsigned" if "unsigned" in words else "signed" if "signed" in words else ""
    base = [word for word in words if word not in ("unsigned", "signed")]
    if len(base) > 1 and base[-1] == "int":
        base = base[:-1]  # "long long int"
    plain = " ".join(base) or "int"
    if sign == "unsigned" or (sign == "signed" and plain == "char"):
        plain = f"{sign} {plain}"
    return DTYPES.get(plain)


@lru_cache(maxsize=64)
def numpy_dtype(name: str) -> np.dtype:
    """Return the numpy dtype of a name in :data:`DTYPES`, extended types included."""
    if name in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, name))
    return np.dtype(name)
