"""Traces from toy models whose drafter is known over the whole vocabulary."""

from __future__ import annotations

import numpy as np

from kdtree_cupy.trace import Trace, make_trace


def ranked(probabilities: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return ids and float32 log-probs of the rows [..., V], best first, ties by the lower id."""
    with np.errstate(divide="ignore"):
        logprobs = np.minimum(np.log(probabilities), 0).astype(np.float32)
    ids = np.argsort(-logprobs, axis=-1, kind="stable")
    return ids, np.take_along_axis(logprobs, ids, axis=-1)


def trace_of(
    sequences: list[np.ndarray], rows: np.ndarray, width: int | None = None, *, rest: bool = False, **header
) -> Trace:
    """Return the trace of token sequences and drafter distributions [T, D, V], cut to ``width`` ranks.

    ``rest`` records the first rank left out.
    """
    ids, logprobs = ranked(rows)
    vocab = rows.shape[-1]
    width = vocab if width is None else width
    arrays = {
        "sequence_offsets": np.cumsum([0, *map(len, sequences)]),
        "tokens": np.concatenate([*sequences, np.zeros(0, int)]).astype(int),
        "draft_ids": ids[..., :width],
        "draft_logprobs": logprobs[..., :width],
    }
    if rest:
        arrays["draft_next_logprob"] = logprobs[..., width]
    return make_trace("toy", {"vocab_size": vocab, **header}, arrays)


def random_sequences(rng: np.random.Generator, lengths, vocab: int, depth: int, sure: float = 3.0):
    """Return sequences and drafter rows that favour the token which really follows by ``sure`` nats."""
    sequences = [rng.integers(0, vocab, n) for n in lengths]
    tokens = np.concatenate(sequences).astype(int)
    logits = rng.standard_normal((tokens.size, depth, vocab)) * 1.5
    for t in range(tokens.size):
        for d in range(min(depth, tokens.size - 1 - t)):
            logits[t, d, tokens[t + d + 1]] += sure * rng.random()
    rows = np.exp(logits)
    return sequences, rows / rows.sum(-1, keepdims=True)
