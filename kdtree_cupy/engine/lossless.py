"""Is decoding with trees lossless?  Compare it with plain decoding, token for token and logit by logit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from .context import Drafter
from .generate import Generation, open_session, run
from .model import Model
from .rounds import Round
from .step import host

Array = Any
ALLOWED = 4.0
"""A flip is rounding if the two best logits of plain decoding are closer than this times the difference that
was measured where tokens agree."""


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
        Largest difference of a logit before the flips.
    tau : float
        Tokens per round of the other way.
    gap : float
        At flips: how far apart plain decoding's two best logits are at most; 0 without a flip.
    """

    sequences: int
    tokens: int
    flips: int
    unexplained: int
    difference: float
    tau: float
    gap: float


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
    return _summary([_look(plain, other)], other.generation.rounds)


class _Seen(NamedTuple):
    """Sequences, tokens before flips, gaps of the two best logits at flips, largest difference before."""

    sequences: int
    tokens: int
    gaps: list[float]
    difference: float


def _look(plain: Recorded, other: Recorded) -> _Seen:
    gaps: list[float] = []
    tokens, difference = 0, 0.0
    pairs = zip(plain.generation.tokens, other.generation.tokens, plain.logits, other.logits, strict=True)
    for wanted, got, before, after in pairs:
        size = min(wanted.size, got.size)
        differing = np.flatnonzero(wanted[:size] != got[:size])
        same = int(differing[0]) if differing.size else size
        if type(before) is not type(after):
            before, after = host(before), host(after)
        if same:  # a flip's own difference would always explain it
            difference = max(difference, float(abs(before[:same] - after[:same]).max()))
        tokens += same
        if differing.size:
            best = np.sort(host(before[same]))[-2:]
            gaps.append(float(best[1] - best[0]))
    return _Seen(len(plain.logits), tokens, gaps, difference)


def _summary(seen: list[_Seen], rounds: list[Round]) -> Comparison:
    difference = max(one.difference for one in seen)
    gaps = [gap for one in seen for gap in one.gaps]
    return Comparison(
        sum(one.sequences for one in seen),
        sum(one.tokens for one in seen),
        len(gaps),
        sum(gap >= ALLOWED * difference for gap in gaps),
        difference,
        sum(len(r.tokens) for r in rounds) / len(rounds) if rounds else float("nan"),
        max(gaps, default=0.0),
    )


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
    seen: list[_Seen] = []
    rounds: list[Round] = []
    for start in range(0, len(prompts), batch):
        part = recorded(model, prompts[start : start + batch], drafter=drafter, **options)
        at = slice(start, start + batch)
        reference = Generation(plain.generation.tokens[at], [], 0.0, 0.0)
        seen.append(_look(Recorded(reference, plain.logits[at]), part))
        rounds += part.generation.rounds
    return _summary(seen, rounds)
