"""What a drafter offers at every position of a text that is known already."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ..engine.context import Context, Drafter, check_rows, depth_of
from ..limits import MAX_WIDTH

Array = Any
_CONTEXTS = 32
"""Positions that a drafter is asked for at once."""


class Rows(NamedTuple):
    """``ids`` int32 [n, D, K], ``logprobs`` float32 [n, D, K], and the log-prob of rank K [n, D] or None."""

    ids: np.ndarray
    logprobs: np.ndarray
    next_logprob: np.ndarray | None


def checksum(prompts: Sequence[np.ndarray]) -> str:
    """Return eight hexadecimal digits that change with the token ids of prompts or with their ends."""
    code = 0
    for prompt in prompts:
        code = zlib.crc32(np.int64(len(prompt)).tobytes() + np.asarray(prompt, np.int64).tobytes(), code)
    return f"{code:08x}"


def draft_rows(
    drafter: Drafter, tokens: np.ndarray, features: Array | None, first: int, width: int, vocab_size: int
) -> Rows:
    """Return the drafter's rows for a round with its root at each of ``tokens[first:]``.

    Parameters
    ----------
    drafter : callable
        See :data:`kdtree_cupy.engine.context.Drafter`.  If it has a method
        ``draft(tokens, features, roots, width)`` for many roots of one text, that is called instead.
    tokens : int32 [n]
        Prompt and response.
    features : [>= n - 1, F] or None
        The target's features, where the drafter wants them.
    first : int
        Place of the first response token.
    width : int
        Ranks K.
    vocab_size : int
        V; one rank more than K is asked for if there is one, to sharpen certificates.

    Raises
    ------
    ValueError
        The width is out of range, or the drafter returns another shape.
    """
    most = min(vocab_size, MAX_WIDTH)
    if not 1 <= width <= most:
        raise ValueError(f"width: got {width}, wanted 1..{most}")
    depth, asked = depth_of(drafter), min(width + 1, most)
    roots = np.arange(first, len(tokens))
    if hasattr(drafter, "draft"):
        ids, logprobs = drafter.draft(tokens, features, roots, asked)
    else:
        parts = []
        for start in range(0, roots.size, _CONTEXTS):
            contexts = [
                Context(tokens[: root + 1], None if features is None else features[:root])
                for root in roots[start : start + _CONTEXTS].tolist()
            ]
            parts.append(drafter(contexts, asked))
        ids, logprobs = (np.concatenate(part) for part in zip(*parts, strict=True))
    ids, logprobs = check_rows(ids, logprobs, roots.size, depth, asked)
    rest = logprobs[..., width].copy() if asked > width else None
    return Rows(ids[..., :width], logprobs[..., :width], rest)
