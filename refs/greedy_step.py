"""Which token does a decoder put next, and how sure is it?  One greedy step, from the text alone."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .model import Config, Weights, forward


class GreedyStep(NamedTuple):
    """Logits [V] after the last token, the token they choose, and how far it is ahead of the next best.

    ``gap`` is what rounding has to bridge before another implementation may choose another token.
    """

    logits: np.ndarray
    token: int
    gap: float


def greedy_step(config: Config, weights: Weights, tokens: np.ndarray, dtype: Any = np.float64) -> GreedyStep:
    """Return the step after ``tokens`` [n]; equal logits go to the lower id."""
    return choose(forward(config, weights, np.asarray(tokens), dtype)[-1])


def choose(logits: np.ndarray) -> GreedyStep:
    """Return the step that ``logits`` [V] give."""
    token = int(np.argmax(logits))
    others = np.delete(logits, token)
    return GreedyStep(logits, token, float(logits[token] - others.max()) if others.size else np.inf)


def greedy(
    config: Config, weights: Weights, prompt: np.ndarray, count: int, dtype: Any = np.float64
) -> list[GreedyStep]:
    """Return ``count`` steps after ``prompt``, each fed with the token of the one before."""
    tokens = [int(token) for token in prompt]
    steps: list[GreedyStep] = []
    for _ in range(count):
        steps.append(greedy_step(config, weights, np.array(tokens), dtype))
        tokens.append(steps[-1].token)
    return steps
