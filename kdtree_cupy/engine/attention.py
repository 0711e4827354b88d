"""Attention of tree nodes over a paged prefix and over each other, in both families.

Multi-head latent attention goes through :func:`kdtree_cupy.verify_attn` in absorbed form.  Grouped-query
attention is computed here with the same rules: a node sees the whole prefix and the nodes that its mask row
shows; rows from ``counts[b]`` on give 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..verify_attn import verify_attn
from .cache import PagedCache
from .config import LATENT, ROPE, ModelConfig
from .fused import rms_norm
from .layers import Weights, linear, same
from .rope import RopeTable, attention_scale

Array = Any
LATENT_EPS = 1e-6
"""Epsilon of the norms inside MLA: checkpoints are trained with this one, whatever ``rms_norm_eps`` says."""


@dataclass(frozen=True)
class Nodes:
    """The nodes of one pass.

    Parameters
    ----------
    positions : int32 [b, n]
    mask : uint32 [b, n, ceil(n/32)]
        Bit j of row i: node i sees node j.
    counts, lengths : int32 [b]
        Real nodes, and rows of the prefix.
    host_counts, host_lengths : numpy int32 [b]
        The same where the host can read them.
    cache : PagedCache
    visible : bool [b, n, n]
        The mask unpacked; None for MLA.
    """

    positions: Array
    mask: Array
    counts: Array
    lengths: Array
    host_counts: np.ndarray
    host_lengths: np.ndarray
    cache: PagedCache
    visible: Array | None = None


def unpack(mask: Array, xp: Any) -> Array:
    """Return bool [b, n, n] from a packed mask, where it lies."""
    node = xp.arange(mask.shape[1])
    words = mask[:, :, node >> 5]
    return (words >> (node & 31).astype(np.uint32)) & np.uint32(1) != 0


def gqa(
    x: Array, layer: Weights, config: ModelConfig, rope: RopeTable, nodes: Nodes, index: int, xp: Any
) -> Any:
    """Return grouped-query attention of ``x`` [b, n, C] at layer ``index``, and the nodes' KV rows."""
    batch, n, _ = x.shape
    heads, groups, size = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    q = linear(x, layer, "self_attn.q_proj").reshape(batch, n, heads, size)
    k = linear(x, layer, "self_attn.k_proj").reshape(batch, n, groups, size)
    v = linear(x, layer, "self_attn.v_proj")
    q = rope.rotate(q, nodes.positions, interleaved=False)
    k = rope.rotate(k, nodes.positions, interleaved=False).reshape(batch, n, groups * size)
    rounded = layer.get("rounding", same)
    rows = rounded(xp.concatenate([k, v], axis=-1))
    out = xp.zeros((batch, n, heads * size), x.dtype)
    for b in range(batch):
        count, length = int(nodes.host_counts[b]), int(nodes.host_lengths[b])
        if count:
            seen = xp.concatenate([nodes.cache.rows(index, b, length), rows[b, :count]])
            hidden = ~nodes.visible[b, :count, :count]
            out[b, :count] = read(rounded(q[b, :count]), seen, hidden, length, attention_scale(config), xp)
    return linear(rounded(out), layer, "self_attn.o_proj"), rows


def read(q: Array, rows: Array, hidden: Array, length: int, scale: float, xp: Any) -> Array:
    """Return what queries ``q`` [n, H, E] read from KV rows [length + n, 2 * G * E], as [n, H * E].

    ``hidden`` bool [n, n] says which nodes a node does not see; the first ``length`` rows are seen by all.
    """
    n, heads, size = q.shape
    total, groups = len(rows), rows.shape[1] // (2 * size)
    keys, values = rows.reshape(total, 2, groups, size).transpose(1, 2, 0, 3)
    queries = q.reshape(n, groups, heads // groups, size).transpose(1, 2, 0, 3)
    scores = (queries.reshape(groups, -1, size) @ keys.transpose(0, 2, 1)).astype(np.float32, copy=False)
    scores *= np.float32(scale)
    scores = scores.reshape(groups, heads // groups, n, total)
    scores[..., length:] = xp.where(hidden, np.float32(-np.inf), scores[..., length:])
    weights = xp.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    out = weights.astype(q.dtype, copy=False).reshape(groups, -1, total) @ values
    return out.reshape(groups, heads // groups, n, size).transpose(2, 0, 1, 3).reshape(n, heads * size)


def mla(
    x: Array,
    layer: Weights,
    config: ModelConfig,
    rope: RopeTable,
    nodes: Nodes,
    index: int,
    xp: Any,
    library: Any,
) -> tuple[Array, Array]:
    """Return multi-head latent attention of ``x`` [b, n, C] at layer ``index``, and the nodes' KV rows.

    ``layer`` holds ``w_uk`` [H, P, latent] and ``w_uv`` [H, latent, F], made from ``kv_b_proj``.  In float32
    models ``w_uv`` is float64: its sums, the longest of a head, would differ most by their order.
    """
    batch, n, _ = x.shape
    heads, nope, rank = config.num_attention_heads, config.qk_nope_head_dim, config.kv_lora_rank
    low = x
    if config.q_lora_rank:
        low = linear(x, layer, "self_attn.q_a_proj")
        low = rms_norm(low, layer["self_attn.q_a_layernorm.weight"], LATENT_EPS, xp)
    name = "self_attn.q_b_proj" if config.q_lora_rank else "self_attn.q_proj"
    q = linear(low, layer, name).reshape(batch, n, heads, -1)
    row = linear(x, layer, "self_attn.kv_a_proj_with_mqa")
    turn = {"positions": nodes.positions, "interleaved": config.rope_interleave}
    rows = xp.zeros((batch, n, LATENT + ROPE), x.dtype)  # zeros beyond a smaller latent change no product
    rows[..., :rank] = rms_norm(row[..., :rank], layer["self_attn.kv_a_layernorm.weight"], LATENT_EPS, xp)
    rows[..., LATENT : LATENT + config.qk_rope_head_dim] = rope.rotate(row[:, :, None, rank:], **turn)[
        :, :, 0
    ]
    queries = xp.zeros((batch, n, heads, LATENT + ROPE), x.dtype)
    absorbed = q[..., :nope].reshape(-1, heads, nope).transpose(1, 0, 2) @ layer["w_uk"]
    queries[..., :rank] = absorbed.transpose(1, 0, 2).reshape(batch, n, heads, rank)
    queries[..., LATENT : LATENT + config.qk_rope_head_dim] = rope.rotate(
        xp.ascontiguousarray(q[..., nope:]), **turn
    )
    rounded = layer.get("rounding", same)
    queries, rows = rounded(queries), rounded(rows)
    latents = verify_attn(
        queries, nodes.cache.layers[index], rows, nodes.mask, nodes.lengths,
        scale=attention_scale(config), counts=nodes.counts, page_table=nodes.cache.page_table,
        library=library,
    ).out  # fmt: skip
    latents = rounded(latents)
    wide = latents[..., :rank].astype(layer["w_uv"].dtype, copy=False)
    per_head = wide.reshape(-1, heads, rank).transpose(1, 0, 2) @ layer["w_uv"]
    out = rounded(per_head.transpose(1, 0, 2).reshape(batch, n, -1).astype(x.dtype, copy=False))
    return linear(out, layer, "self_attn.o_proj"), rows
