"""Is decoding with trees lossless?  Compare it with plain decoding, token for token and logit by logit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from .context import Drafter
from .generate import Generation, open_session, run
from .model import Model
from .step import host

Array = Any
ALLOWED = 4.0
"""A flip is rounding if the two best logits of plain decoding are closer than this times the difference."""


class Recorded(NamedTuple):
    """A generation, and the target's logits [n, V] at every place of each response, where the model is."""

    generation: Generation
    logits: list[Array]


class Comparison(NamedTuple):
    """How a way of decoding differs from plain decoding.

    Attributes
    ----------
    sequences, tokens : int
        Compared; a sequence is compared up to its first flip.
    flips : int
        Sequences that take another token somewhere.
    unexplained : int
        Flips where plain decoding's two best logits are further apart than rounding explains.
    difference : float
        Largest difference of a logit.
    tau : float
        Tokens per round of the other way.
    """

    sequences: int
    tokens: int
    flips: int
    unexplained: int
    difference: float
    tau: float


def recorded(model: Model, prompts: Sequence[np.ndarray], **options: Any) -> Recorded:
    """Generate as :func:`~kdtree_cupy.engine.generate.generate` does, greedily, and keep the logits.

    Parameters
    ----------
    model, prompts, options
        As for ``generate``.
    """
    kept: list[list[Any]] = [[] for _ in prompts]
    session = open_session(model, prompts, **options)
    session.keep_logits = lambda request, rows: kept[request].append(rows)
    done = run(session)
    return Recorded(done, [model.xp.concatenate(rows) for rows in kept])


def compare(plain: Recorded, other: Recorded) -> Comparison:
    """Compare another way of decoding with plain decoding of the same prompts."""
    flips: list[float] = []
    tokens, difference = 0, 0.0
    pairs = zip(plain.generation.tokens, other.generation.tokens, plain.logits, other.logits, strict=True)
    for wanted, got, before, after in pairs:
        size = min(wanted.size, got.size)
        differing = np.flatnonzero(wanted[:size] != got[:size])
        same = int(differing[0]) if differing.size else size
        rows = min(same + 1, size)  # the logits at a flip still follow the same text
        if type(before) is not type(after):
            before, after = host(before), host(after)
        difference = max(difference, float(abs(before[:rows] - after[:rows]).max()))
        tokens += same
        if differing.size:
            best = np.sort(host(before[same]))[-2:]
            flips.append(float(best[1] - best[0]))
    unexplained = sum(gap >= ALLOWED * difference for gap in flips)
    count = len(plain.logits)
    return Comparison(count, tokens, len(flips), unexplained, difference, other.generation.tau)


def check_mode(
    model: Model,
    plain: Recorded,
    prompts: Sequence[np.ndarray],
    drafter: Drafter | None,
    *,
    batch: int,
    **options: Any,
) -> Comparison:
    """Decode ``prompts`` in batches and compare with ``plain``, which has all of them.

    Parameters
    ----------
    model, prompts, drafter, options
        As for ``generate``.
    plain : Recorded
        Plain decoding of the same prompts.
    batch : int
        Prompts decoded together.
    """
    parts = []
    for start in range(0, len(prompts), batch):
        part = recorded(model, prompts[start : start + batch], drafter=drafter, **options)
        at = slice(start, start + batch)
        reference = Generation(plain.generation.tokens[at], [], 0.0, 0.0)
        parts.append((compare(Recorded(reference, plain.logits[at]), part), part.generation.rounds))
    found = [one for one, _ in parts]
    rounds = [one for _, several in parts for one in several]
    return Comparison(
        sum(c.sequences for c in found),
        sum(c.tokens for c in found),
        sum(c.flips for c in found),
        sum(c.unexplained for c in found),
        max(c.difference for c in found),
        sum(len(r.tokens) for r in rounds) / max(len(rounds), 1),
    )
