"""What a drafter is told about a request, and what it has to return."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..limits import MAX_DEPTH

Array = Any
Drafter = Callable[[Sequence["Context"], int], tuple[np.ndarray, np.ndarray]]
"""``drafter(contexts, width) -> (ids int [b, D, width], logprobs float32 [b, D, width])``.

Row d of a request: the best tokens for d + 1 places after its root, best first, ties by the lower id,
log-probs over the whole vocabulary.  Attribute ``depth`` is D; an optional
attribute ``features`` names the layers whose output is wanted in :attr:`Context.features`.
"""


@dataclass
class Context:
    """The committed part of one request: all that a drafter may look at.

    Parameters
    ----------
    tokens : int32 [n]
        Prompt and response so far; the last one is the root.
    features : [n - 1, F] or None
        Outputs of the target's layers at every token but the root, which the target has not seen yet.
    memory : dict
        The drafter's own, kept from round to round.
    """

    tokens: np.ndarray
    features: Array | None = None
    memory: dict[str, Any] = field(default_factory=dict)


def check_rows(
    ids: np.ndarray, logprobs: np.ndarray, batch: int, depth: int, width: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return a drafter's rows as int32 and float32 if they have the shape [batch, depth, width].

    Raises
    ------
    ValueError
        Another shape.
    """
    for name, found in (("ids", ids), ("logprobs", logprobs)):
        if np.shape(found) != (batch, depth, width):
            wanted = f"[b={batch}, D={depth}, K={width}]"
            raise ValueError(f"drafter: {name}: got shape {np.shape(found)}, wanted {wanted}")
    return np.ascontiguousarray(ids, np.int32), np.ascontiguousarray(logprobs, np.float32)


def depth_of(drafter: Drafter) -> int:
    """Return a drafter's number of positions D.

    Raises
    ------
    TypeError
        It has no ``depth``.
    ValueError
        Out of range.
    """
    depth = getattr(drafter, "depth", None)
    if not isinstance(depth, int):
        raise TypeError(f"drafter: {drafter!r} has no int attribute 'depth', the positions that it drafts")
    if not 1 <= depth <= MAX_DEPTH:
        raise ValueError(f"drafter: depth {depth}, wanted 1..{MAX_DEPTH}")
    return depth
