"""Stage 1: the drafter's best K tokens at each position and their log-probs.

Examples
--------
>>> import numpy as np, kdtree_cupy as kd
>>> top = kd.topk_logprob(np.float32([[[0.0, 2.0, 2.0, 1.0]]]), 3)
>>> top.ids[0, 0].tolist(), [round(float(v), 3) for v in top.logprobs[0, 0]]
([1, 2, 3], [-0.918, -0.918, -1.918])
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from . import checks, numpy_backend
from .limits import MAX_WIDTH
from .refs import topk_logprob as reference

Array = Any


class TopK(NamedTuple):
    """Result of :func:`topk_logprob`."""

    ids: Array
    logprobs: Array
    status: Array


def topk_logprob(
    logits: Array,
    k: int,
    *,
    temperature: float = 1.0,
    valid_vocab: int | None = None,
    vocab_map: Array | None = None,
    library: Any = None,
    out: TopK | None = None,
    check: bool = False,
) -> TopK:
    """Select the k best ids of every row, in order, with the log-probs of the full softmax.

    Parameters
    ----------
    logits : float32, float16 or bfloat16 [b, D, V]
        Drafter logits of D positions.
    k : int
        Ranks to keep, 1..valid_vocab and at most ``MAX_WIDTH``.  For a tree of budget B,
        ``min(B, valid_vocab)`` loses nothing.
    temperature : float
        Logits are divided by it before the softmax; above 0.
    valid_vocab : int, optional
        Ids from here on are padding of the vocabulary and take no part; default V.
    vocab_map : int32 [V], optional
        Target id of each drafter id; applied to the chosen ids, after ties are settled.
    library, out, check
        As in :func:`~kdtree_cupy.tree_build.tree_build`.

    Returns
    -------
    ids : int32 [b, D, k]
        Ids by float32(logit) descending, equal logits by the lower drafter id.
    logprobs : float32 [b, D, k]
        ``min(0, (x - max) - log(sum(exp(x - max))))`` with ``x = logit / temperature``.
    status : int32 [b]
        Bit 0: a row holds NaN or +inf; its ids are 0..k-1 (mapped) and its log-probs NaN.

    Raises
    ------
    TypeError, ValueError, BackendError
        As in :func:`~kdtree_cupy.tree_build.tree_build`; ``ValueError`` also for k > valid_vocab.

    Notes
    -----
    A row of -inf only gives ids 0..k-1 with log-probs -inf and sets no bit.  Ids are the same on every
    backend; log-probs may differ by ``2**-21 * max(1, |value|)`` from float64.

    Source: DDTree, arXiv 2604.12989, lemma 1 (K = B suffices).
    """
    dims = checks.Dims()
    logits = checks.array(logits, "logits", checks.FLOATS, "b D V", dims)
    valid_vocab = checks.valid_vocab(valid_vocab, dims["V"])
    k = checks.integer(k, "k", 1, min(valid_vocab, MAX_WIDTH))
    temperature = checks.number(temperature, "temperature", "a finite number above 0", _is_temperature)
    if vocab_map is not None:
        vocab_map = checks.array(vocab_map, "vocab_map", "int32", "V", dims)
    targets = None if out is None else check_out(out, dims["b"], dims["D"], k)
    numpy_backend.require("topk_logprob", library, {"logits": logits, "vocab_map": vocab_map})
    ref = reference.topk_logprob(
        logits, k, temperature=temperature, valid_vocab=valid_vocab, vocab_map=vocab_map
    )
    top = TopK(*numpy_backend.fill(targets, ref))
    if check:
        checks.raise_on_status("topk_logprob", top.status)
    return top


def check_out(out: TopK, batch: int, depth: int, k: int) -> tuple[Array, ...]:
    """Return the three arrays of ``out``, or raise."""
    ids, logprobs, status = checks.output(out, TopK._fields)
    dims = checks.Dims(b=batch, D=depth, k=k)
    return (
        checks.array(ids, "out.ids", "int32", "b D k", dims),
        checks.array(logprobs, "out.logprobs", "float32", "b D k", dims),
        checks.array(status, "out.status", "int32", "b", dims),
    )


def _is_temperature(value: float) -> bool:
    return 0 < value < math.inf
