"""What does each tree node read from the prefix and from its ancestors?  Grouped-query attention, exactly.

``H / Hkv`` query heads share the keys and values of one KV head.  Node i of request b sees every row of the
prefix [0, lengths[b]) and those tree rows whose bit is set in its mask row; nothing is assumed of the bits.
Inputs are taken as they are stored (keys and values also in 8-bit floats, e4m3), all arithmetic is float64,
and the result is not rounded.
"""

from __future__ import annotations

import numpy as np

from .masks import unpack_mask
from .verify_attn import Attention, softmax_read, visible_rows


def verify_attn_gqa(
    q: np.ndarray,
    k_cache: np.ndarray,
    v_cache: np.ndarray | None,
    tree_k: np.ndarray | None,
    tree_v: np.ndarray | None,
    mask: np.ndarray,
    lengths: np.ndarray,
    *,
    scale: float,
    counts: np.ndarray | None = None,
    page_table: np.ndarray | None = None,
    k_scale: float | None = None,
    v_scale: float | None = None,
) -> Attention:
    """Attend from every node and head of ``q`` [b, N, H, D].

    ``k_cache`` and ``v_cache`` are [b, S, Hkv, D], or [pages, page_size, Hkv, D] with ``page_table``
    [b, max_pages].  ``tree_k`` and ``tree_v`` are [b, N, Hkv, D]; None means that node i lies in the caches
    at position ``lengths[b] + i``.  ``v_cache`` None: rows of ``k_cache`` and ``tree_k`` hold the keys of all
    KV heads and then their values, [.., 2 * Hkv, D].  Head h reads KV head ``h // (H // Hkv)``.  Rows from
    ``counts[b]`` on give 0 and -inf, and neither their KV nor their mask bits are read; the same result is
    given by a row that sees nothing.  Keys and values in bytes are e4m3 numbers, times ``k_scale`` and
    ``v_scale``.  Returns out float64 [b, N, H, D] and lse float64 [b, N, H].
    """
    batch, slots, heads, size = q.shape
    if v_cache is None:
        k_cache, v_cache = np.split(k_cache, 2, axis=2)
        tree_k, tree_v = (None, None) if tree_k is None else np.split(tree_k, 2, axis=2)
    group = heads // k_cache.shape[2]
    out = np.zeros((batch, slots, heads, size))
    lse = np.full((batch, slots, heads), -np.inf)
    visible = unpack_mask(mask, slots)
    for b in range(batch):
        count = slots if counts is None else int(counts[b])
        keys = visible_rows(k_cache, tree_k, lengths, count, page_table, b, k_scale)
        values = visible_rows(v_cache, tree_v, lengths, count, page_table, b, v_scale)
        for node in range(count):
            sees = np.concatenate([np.ones(int(lengths[b]), bool), visible[b, node, :count]])
            for head in range(heads):
                shared = head // group
                scores = scale * (q[b, node, head].astype(np.float64)[None] @ keys[sees, shared].T)
                read, log_total = softmax_read(scores, values[sees, shared])
                out[b, node, head], lse[b, node, head] = read[0], log_total[0]
    return Attention(out, lse)
