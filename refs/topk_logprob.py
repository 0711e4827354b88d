"""Which K tokens does the drafter prefer at each position, and with what log-probs?  A full sort.

Order: float32(logit) descending, equal logits by the lower drafter id.  Log-prob: of the softmax over all
valid ids at the given temperature, in float64, rounded once to float32 and never above 0.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .status import NON_FINITE


class TopK(NamedTuple):
    """ids int32 [b, D, k], logprobs float32 [b, D, k], status int32 [b]."""

    ids: np.ndarray
    logprobs: np.ndarray
    status: np.ndarray


def best_ids(row: np.ndarray, k: int) -> np.ndarray:
    """Return the k best ids of one row: largest first, equal values by the lower id."""
    return np.lexsort((np.arange(len(row)), -row))[:k]


def log_softmax(row: np.ndarray, temperature: float) -> np.ndarray:
    """Return float64 log-probs of one row of finite or -inf logits, each <= 0."""
    x = row.astype(np.float64)
    if x.max() == -np.inf:
        return np.full(len(x), -np.inf)
    with np.errstate(over="ignore"):  # at temperatures near 0
        below = (x - x.max()) / temperature
    return np.minimum(0.0, below - np.log(np.exp(below).sum()))


def topk_logprob(
    logits: np.ndarray,
    k: int,
    *,
    temperature: float = 1.0,
    valid_vocab: int | None = None,
    vocab_map: np.ndarray | None = None,
) -> TopK:
    """Return the k best ids and their log-probs for every row of ``logits`` [b, D, V].

    Ids from ``valid_vocab`` on are padding and take no part.  ``vocab_map`` is applied to the chosen ids
    at the very end.  A row with NaN or +inf: ids 0..k-1, log-probs NaN, bit 0.  A row of -inf only: ids
    0..k-1, log-probs -inf, no bit.
    """
    batch, depth, vocab = logits.shape
    valid = vocab if valid_vocab is None else valid_vocab
    ids = np.zeros((batch, depth, k), np.int32)
    logprobs = np.full((batch, depth, k), np.nan, np.float32)
    status = np.zeros(batch, np.int32)
    for b in range(batch):
        for d in range(depth):
            row = logits[b, d, :valid].astype(np.float32)
            if np.isnan(row).any() or (row == np.inf).any():
                ids[b, d] = np.arange(k)
                status[b] |= NON_FINITE
                continue
            ids[b, d] = best_ids(row, k)
            with np.errstate(over="ignore"):  # below the least float32: -inf
                logprobs[b, d] = log_softmax(row, temperature)[ids[b, d]]
    if vocab_map is not None:
        ids = vocab_map[ids].astype(np.int32)
    return TopK(ids, logprobs, status)
