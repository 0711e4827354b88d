"""Find the kernels of a preprocessed ``.cu`` text: each ``extern "C" __global__`` and its parameters.

The preprocessor has removed comments, chosen the branches of ``#if`` and expanded macros, so a kernel made by
a macro is found as well.  Sizes of parameters come from the C++ compiler, not from here.
"""

from __future__ import annotations

import re

MARK = "__kd_kernel__"
"""What ``__global__`` is defined to while scanning."""

_LITERAL = re.compile(r'"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)*\'')
_TOKEN = re.compile(rf'extern\s+"C"\s*\{{|[{{}}]|\b{MARK}\b')
_ATTRIBUTES = (
    "__launch_bounds__",
    "__attribute__",
    "__cluster_dims__",
    "__maxnreg__",
    "__align__",
    "alignas",
)


def kernels(text: str) -> dict[str, tuple[str, ...]]:
    """Return the parameter names of each kernel defined in ``text``, by kernel name.

    Parameters
    ----------
    text : str
        Output of the preprocessor with ``__global__`` defined as :data:`MARK`.
    """
    text = _LITERAL.sub(lambda found: found[0] if found[0] == '"C"' else '""', text)
    found: dict[str, tuple[str, ...]] = {}
    scopes: list[bool] = []  # for each open brace: is it an extern "C" block?
    for token in _TOKEN.finditer(text):
        if token[0] == MARK:
            if all(scopes) and _is_c(text, token.start(), bool(scopes)):
                found.update(_definition(text, token.end()))
        elif token[0] == "}":
            if scopes:
                scopes.pop()
        else:
            scopes.append(token[0] != "{")
    return found


def _is_c(text: str, at: int, in_block: bool) -> bool:
    """Tell whether the declaration around ``at`` has C linkage, and so a name that can be looked up."""
    begin = max(text.rfind(mark, 0, at) for mark in ";}{") + 1
    return in_block or bool(re.search(r'extern\s+"C"', text[begin:at]))


def _definition(text: str, at: int) -> dict[str, tuple[str, ...]]:
    for word in re.compile(r"(\w+)\s*\(").finditer(text, at):
        inside, end = _balanced(text, word.end())
        if word[1] in _ATTRIBUTES or word.start() < at:
            at = end
            continue
        if not text[end:].lstrip().startswith("{"):
            return {}  # only declared here
        names = (re.search(r"(\w+)\s*(?:\[[^\]]*\]\s*)*$", part) for part in _split(inside))
        return {word[1]: tuple(name[1] for name in names if name and name[1] != "void")}
    return {}


def _balanced(text: str, start: int) -> tuple[str, int]:
    """Return what stands between the parenthesis before ``start`` and its partner, and where that ends."""
    depth = 1
    for at in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        if depth == 0:
            return text[start:at], at + 1
    return text[start:], len(text)


def _split(text: str) -> list[str]:
    """Split at commas outside all brackets."""
    parts, depth, begin = [], 0, 0
    for at, letter in enumerate(text):
        depth += {"(": 1, "<": 1, "[": 1, ")": -1, ">": -1, "]": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            parts.append(text[begin:at])
            begin = at + 1
    return [*parts, text[begin:]]
