"""Published numbers, small enough to print, with their sources: what ``kdtree reproduce`` compares with."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

_FOLDER = Path(__file__).resolve().parent


def names() -> list[str]:
    """Return the names of the published sets."""
    return sorted(path.stem for path in _FOLDER.glob("*.json"))


@cache
def load(name: str) -> dict[str, Any]:
    """Return one set: numbers with ``source`` and ``note``; treat it as read-only.

    Raises
    ------
    ValueError
        An unknown name; the message lists the known ones.
    """
    if name not in names():
        raise ValueError(f"published numbers: got {name!r}, wanted one of {', '.join(names())}")
    return json.loads((_FOLDER / f"{name}.json").read_text(encoding="utf-8"))


def medusa_choices(name: str) -> list[tuple[int, ...]]:
    """Return a published static tree (Medusa's nine, EAGLE-1's) as rank paths in order of insertion.

    Raises
    ------
    ValueError
        An unknown list.

    Examples
    --------
    >>> medusa_choices("mc_sim_7b_63")[:4]
    [(0,), (0, 0), (1,), (0, 1)]
    """
    lists = load("medusa")["choices"] | load("eagle")["choices"]
    if name not in lists:
        raise ValueError(f"choices: got {name!r}, wanted one of {', '.join(lists)}, or a list of rank paths")
    return [tuple(int(digit) for digit in path) for path in lists[name].split()]
