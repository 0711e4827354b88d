"""What does each tree node read from the prefix and from its ancestors?  Absorbed MLA attention, exactly.

One KV row serves all heads: 512 latent numbers, then 64 rotary ones.  Keys are whole rows, values their
first 512.  Node i of request b sees every row of the prefix [0, lengths[b]) and those tree rows whose bit is
set in its mask row; nothing is assumed of the bits.  Inputs are taken as they are stored (float32, float16,
bfloat16, KV rows also in 8-bit floats), all arithmetic is float64, and the result is not rounded.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .fp8_rows import numbers
from .kv_rows import gather
from .masks import unpack_mask

LATENT = 512
ROPE = 64


class Attention(NamedTuple):
    """out float64 [b, N, H, 512] and lse float64 [b, N, H] = ln sum exp(scale * q.k)."""

    out: np.ndarray
    lse: np.ndarray


def softmax_read(scores: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the softmax-weighted sums [H, E] of ``values`` [n, E] under ``scores`` [H, n], and ln sum exp.

    Nothing to read (n = 0) gives 0 and -inf.
    """
    if scores.shape[1] == 0:
        return np.zeros((len(scores), values.shape[1])), np.full(len(scores), -np.inf)
    peak = scores.max(axis=1, keepdims=True)
    weights = np.exp(scores - peak)
    total = weights.sum(axis=1, keepdims=True)
    return (weights @ values) / total, (peak + np.log(total))[:, 0]


def visible_rows(
    cache: np.ndarray,
    tree_kv: np.ndarray | None,
    lengths: np.ndarray,
    count: int,
    page_table: np.ndarray | None,
    b: int,
    kv_scale: float | None = None,
) -> np.ndarray:
    """Return float64 [length + count, E]: prefix rows of request ``b``, then the rows of its real nodes."""
    length = int(lengths[b])
    if tree_kv is None:
        return numbers(gather(cache, page_table, b, range(length + count)), kv_scale)
    prefix = gather(cache, page_table, b, range(length))
    return numbers(np.concatenate([prefix, tree_kv[b, :count]]), kv_scale)


def verify_attn(
    q: np.ndarray,
    cache: np.ndarray,
    tree_kv: np.ndarray | None,
    mask: np.ndarray,
    lengths: np.ndarray,
    *,
    scale: float,
    counts: np.ndarray | None = None,
    page_table: np.ndarray | None = None,
    kv_scale: float | None = None,
) -> Attention:
    """Attend from every node and head of ``q`` [b, N, H, 576].

    ``cache`` is [b, S, 576], or [pages, page_size, 576] with ``page_table`` [b, max_pages].  ``tree_kv`` is
    [b, N, 576]; None means that node i lies in the cache at position ``lengths[b] + i``.  Rows from
    ``counts[b]`` on give 0 and -inf, and neither their KV nor their mask bits are read; the same result is
    given by a row that sees nothing.  Rows may be bytes, in a format of :mod:`.fp8_rows`.
    """
    batch, slots, heads, _ = q.shape
    out = np.zeros((batch, slots, heads, LATENT))
    lse = np.full((batch, slots, heads), -np.inf)
    visible = unpack_mask(mask, slots)
    for b in range(batch):
        count = slots if counts is None else int(counts[b])
        length = int(lengths[b])
        rows = visible_rows(cache, tree_kv, lengths, count, page_table, b, kv_scale)
        for node in range(count):
            sees = np.concatenate([np.ones(length, bool), visible[b, node, :count]])
            keys = rows[sees]
            scores = scale * (q[b, node].astype(np.float64) @ keys.T)
            out[b, node], lse[b, node] = softmax_read(scores, keys[:, :LATENT])
    return Attention(out, lse)


def absorb_queries(q_nope: np.ndarray, q_rope: np.ndarray, w_uk: np.ndarray) -> np.ndarray:
    """Return absorbed queries [b, N, H, 576] from per-head ones: [q_nope @ w_uk | q_rope], float64.

    ``q_nope`` is [b, N, H, P], ``q_rope`` [b, N, H, 64] and ``w_uk`` [H, P, 512], the matrix that expands a
    latent into a head's P key numbers.
    """
    latent = np.einsum("bnhp,hpl->bnhl", q_nope.astype(np.float64), w_uk.astype(np.float64))
    return np.concatenate([latent, q_rope.astype(np.float64)], axis=-1)


def expand_values(out: np.ndarray, w_uv: np.ndarray) -> np.ndarray:
    """Return per-head outputs [b, N, H, P] from latent ones [b, N, H, 512] and ``w_uv`` [H, P, 512]."""
    return np.einsum("bnhl,hpl->bnhp", out, w_uv.astype(np.float64))


def verify_attn_per_head(
    q_nope: np.ndarray,
    q_rope: np.ndarray,
    w_uk: np.ndarray,
    w_uv: np.ndarray,
    cache: np.ndarray,
    tree_kv: np.ndarray | None,
    mask: np.ndarray,
    lengths: np.ndarray,
    *,
    scale: float,
    counts: np.ndarray | None = None,
    page_table: np.ndarray | None = None,
) -> Attention:
    """Attend without absorption: every head expands each latent into its own key and value.

    Arguments as in :func:`absorb_queries`, :func:`expand_values` and :func:`verify_attn`.  Returns out
    [b, N, H, P] and the same lse: the textbook form, which the absorbed one must reproduce.
    """
    batch, slots, heads, width = q_nope.shape
    out = np.zeros((batch, slots, heads, width))
    lse = np.full((batch, slots, heads), -np.inf)
    visible = unpack_mask(mask, slots)
    for b in range(batch):
        count = slots if counts is None else int(counts[b])
        rows = visible_rows(cache, tree_kv, lengths, count, page_table, b)
        for head in range(heads):
            keys = np.concatenate([rows[:, :LATENT] @ w_uk[head].astype(float).T, rows[:, LATENT:]], axis=1)
            values = rows[:, :LATENT] @ w_uv[head].astype(float).T
            for node in range(count):
                query = np.concatenate([q_nope[b, node, head], q_rope[b, node, head]]).astype(float)
                sees = np.concatenate([np.ones(int(lengths[b]), bool), visible[b, node, :count]])
                scores = scale * (query[None] @ keys[sees].T)
                read, log_total = softmax_read(scores, values[sees])
                out[b, node, head], lse[b, node, head] = read[0], log_total[0]
    return Attention(out, lse)
