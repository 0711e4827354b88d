"""Which token does the target choose at each node?  Argmax, or a draw with given uniforms.

Argmax takes the lowest id on ties.  A draw walks the ids in ascending order and takes the first whose
cumulative mass exceeds u times the total.  Top-p first keeps the shortest prefix of the ids, ordered by logit
descending and id ascending, whose mass reaches p of the total.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .status import NON_FINITE
from .topk_logprob import best_ids


class TargetTokens(NamedTuple):
    """tokens int32 [b, N] and status int32 [b]."""

    tokens: np.ndarray
    status: np.ndarray


def masses(row: np.ndarray, temperature: float, top_p: float) -> np.ndarray:
    """Return float64 unnormalised masses of one row, 0 outside the top-p prefix."""
    x = row.astype(np.float64)
    with np.errstate(over="ignore"):  # at temperatures near 0
        mass = np.exp((x - x.max()) / temperature)
    if top_p < 1.0:
        order = best_ids(row, len(row))
        reached = np.cumsum(mass[order]) >= top_p * mass.sum()
        if reached.any():
            mass[order[int(np.argmax(reached)) + 1 :]] = 0.0
    return mass


def draw(mass: np.ndarray, u: float) -> int:
    """Return the smallest id whose cumulative mass exceeds ``u`` times the total."""
    cumulative = np.cumsum(mass)
    above = cumulative > u * cumulative[-1]
    return int(np.argmax(above)) if above.any() else int(np.flatnonzero(mass)[-1])


def target_token(
    logits: np.ndarray,
    *,
    temperature: float = 0.0,
    top_p: float = 1.0,
    uniforms: np.ndarray | None = None,
    valid_vocab: int | None = None,
) -> TargetTokens:
    """Return the target's token for every row of ``logits`` [b, N, V]; temperature 0 is argmax.

    Ids from ``valid_vocab`` on are padding.  A row with NaN, with +inf or of -inf only gives -1 and bit 0.
    Should u be 1 or more (or NaN), the last id with any mass is taken.
    """
    batch, slots, vocab = logits.shape
    valid = vocab if valid_vocab is None else valid_vocab
    tokens = np.full((batch, slots), -1, np.int32)
    status = np.zeros(batch, np.int32)
    for b in range(batch):
        for node in range(slots):
            row = logits[b, node, :valid].astype(np.float32)
            if np.isnan(row).any() or (row == np.inf).any() or (row == -np.inf).all():
                status[b] |= NON_FINITE
            elif temperature == 0.0:
                tokens[b, node] = np.argmax(row)  # the first maximum: the lowest id
            else:
                tokens[b, node] = draw(masses(row, temperature, top_p), float(uniforms[b, node]))
    return TargetTokens(tokens, status)
