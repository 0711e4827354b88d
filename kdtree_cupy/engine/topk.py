"""Best tokens and log-probs of many rows at once: :func:`kdtree_cupy.topk_logprob`, without its full sort."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..topk_logprob import topk_logprob

Array = Any


def best_tokens(logits: Array, width: int, library: Any = None) -> tuple[np.ndarray, np.ndarray]:
    """Return ids int32 and log-probs float32 [..., width], on the host, in the order of ``topk_logprob``.

    Parameters
    ----------
    logits : float32 [..., V]
        numpy rows are selected here (the reference sorts them whole, which takes ten times as long); others
        go through the stage.
    width : int
        Ranks, 1..V.
    library : KernelLibrary, optional
        For the stage.
    """
    shape = (*logits.shape[:-1], width)
    rows = logits.reshape(-1, logits.shape[-1])
    if not on_host(rows):
        top = topk_logprob(rows[None], width, library=library)
        return top.ids.get().reshape(shape), top.logprobs.get().reshape(shape)
    ids, logprobs = np.empty((len(rows), width), np.int32), np.empty((len(rows), width), np.float32)
    for i, row in enumerate(rows):
        ids[i] = _best(row, width)
        peak = np.float64(row.max())
        with np.errstate(under="ignore"):
            total = np.log(np.exp(row - peak, dtype=np.float64).sum())
        logprobs[i] = np.minimum(0.0, row[ids[i]].astype(np.float64) - peak - total)
    return ids.reshape(shape), logprobs.reshape(shape)


def best_rows(logits: Array, width: int, library: Any = None) -> tuple[Array, Array]:
    """Return what :func:`best_tokens` does, where the logits are and without waiting."""
    if on_host(logits):
        return best_tokens(logits, width, library)
    top = topk_logprob(logits, width, library=library)
    return top.ids, top.logprobs


def on_host(rows: Array) -> bool:
    """Return whether these are numpy's."""
    return isinstance(rows, np.ndarray)


def _best(row: np.ndarray, width: int) -> np.ndarray:
    """Return the ids of the largest values, best first, equal ones by the lower id."""
    if width >= row.size:
        return np.argsort(-row, kind="stable")
    least = np.partition(row, row.size - width)[row.size - width]
    above = np.flatnonzero(row > least)
    level = np.flatnonzero(row == least)[: width - above.size]
    chosen = np.concatenate([above, level])
    return chosen[np.lexsort((chosen, -row[chosen]))]
