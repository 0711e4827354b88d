"""Attention of tree nodes over a paged prefix and over each other, in both families.

Multi-head latent attention goes through :func:`kdtree_cupy.verify_attn` in absorbed form, grouped-query
attention of float16 on a GPU through :func:`kdtree_cupy.verify_attn_gqa`.  In float32, and for heads of other
sizes than the kernels', it is computed here with the same rules: a node sees the whole prefix and the nodes
that its mask row shows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..verify_attn import verify_attn
from ..verify_attn_gqa import HEAD_SIZES, MOST_GROUP, verify_attn_gqa
from . import products
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
    cache : PagedCache
    hidden : bool [b, n, rows + n]
        What :func:`hidden_rows` gives; None where a kernel reads the mask.
    """

    positions: Array
    mask: Array
    counts: Array
    lengths: Array
    cache: PagedCache
    hidden: Array | None = None


def hidden_rows(mask: Array, lengths: Array, rows: int, xp: Any) -> Array:
    """Return bool [b, n, rows + n]: what no node sees of the cache's places, and what the mask hides."""
    batch, n, _ = mask.shape
    out = xp.empty((batch, n, rows + n), bool)
    out[..., :rows] = (xp.arange(rows) >= lengths[:, None])[:, None]
    out[..., rows:] = ~unpack(mask, xp)
    return out


def unpack(mask: Array, xp: Any) -> Array:
    """Return bool [b, n, n] from a packed mask, where it lies."""
    node = xp.arange(mask.shape[1])
    words = mask[:, :, node >> 5]
    return (words >> (node & 31).astype(np.uint32)) & np.uint32(1) != 0


def has_kernel(config: ModelConfig, dtype: Any, xp: Any) -> bool:
    """Return whether the attention of a model on ``xp`` is a kernel's.

    Grouped-query attention in float32 is not: the exact kernel takes longer than products of whole arrays.
    """
    if config.is_mla:
        return True
    group = config.num_attention_heads // config.num_key_value_heads
    fits = config.head_dim in HEAD_SIZES and group <= MOST_GROUP
    return fits and xp is not np and dtype == np.float16


def gqa(
    x: Array,
    layer: Weights,
    config: ModelConfig,
    rope: RopeTable,
    nodes: Nodes,
    index: int,
    rows: Array,
    library: Any,
) -> Array:
    """Return grouped-query attention of ``x`` [b, n, C] at layer ``index``.

    ``rows`` [b, n, 2 * G * E] takes the nodes' KV rows: keys of all groups, then values.
    """
    xp, (batch, n, _) = nodes.cache.xp, x.shape
    heads, groups, size = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    q = linear(x, layer, "self_attn.q_proj", xp).reshape(batch, n, heads, size)
    k = linear(x, layer, "self_attn.k_proj", xp).reshape(batch, n, groups, size)
    rounded = layer.get("rounding", same)
    q = rope.rotate(q, nodes.positions, interleaved=False)
    k = rope.rotate(k, nodes.positions, interleaved=False).reshape(batch, n, groups * size)
    rows[..., : groups * size] = rounded(k)
    rows[..., groups * size :] = rounded(linear(x, layer, "self_attn.v_proj", xp))
    q = rounded(q)
    if nodes.hidden is None:
        cache, both = nodes.cache.layers[index], (2 * groups, size)
        read_rows = verify_attn_gqa(
            q, cache.reshape(*cache.shape[:2], *both), None, rows.reshape(batch, n, *both), None, nodes.mask,
            nodes.lengths, scale=attention_scale(config), counts=nodes.counts,
            page_table=nodes.cache.page_table, splits="fixed", library=library,
        ).out  # fmt: skip
        return linear(rounded(read_rows.reshape(batch, n, -1)), layer, "self_attn.o_proj", xp)
    places = nodes.hidden.shape[2] - n
    seen = xp.empty((batch, places + n, rows.shape[2]), rows.dtype)
    seen[:, :places], seen[:, places:] = nodes.cache.prefixes(index), rows
    out = read(q, seen, nodes.hidden, attention_scale(config), xp)
    return linear(rounded(out), layer, "self_attn.o_proj", xp)


def read(q: Array, rows: Array, hidden: Array, scale: float, xp: Any) -> Array:
    """Return what queries ``q`` [b, n, H, E] read from KV rows [b, m, 2 * G * E], as [b, n, H * E].

    ``hidden`` bool [b, n, m] says which rows a node does not see.
    """
    batch, n, heads, size = q.shape
    total, groups = rows.shape[1], rows.shape[2] // (2 * size)
    keys, values = rows.reshape(batch, total, 2, groups, size).transpose(2, 0, 3, 1, 4)
    queries = q.reshape(batch, n, groups, -1, size).transpose(0, 2, 1, 3, 4).reshape(batch, groups, -1, size)
    scores = xp.empty((batch, groups, n * heads // groups, total), np.float32)
    for one, other, target in _stacks(queries, keys, scores):
        products.product(one, other, xp, transposed=True, out=target)
    by_node = scores.reshape(batch, groups, n, -1, total)
    by_node *= np.float32(scale)
    by_node = xp.where(hidden[:, None, :, None], np.float32(-np.inf), by_node)
    weights = xp.exp(by_node - by_node.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    weights = weights.astype(q.dtype, copy=False).reshape(scores.shape)
    out = xp.empty(queries.shape, q.dtype)
    for one, other, target in _stacks(weights, values, out):
        products.product(one, other, xp, out=target)
    return out.reshape(batch, groups, n, -1, size).transpose(0, 2, 1, 3, 4).reshape(batch, n, -1)


def _stacks(*arrays: Array) -> list[tuple[Array, ...]]:
    """Return the matrices of arrays [b, G, ...] in stacks: a request's or a group's, whichever are fewer."""
    batch, groups = arrays[0].shape[:2]
    if batch <= groups:
        return [tuple(array[b] for array in arrays) for b in range(batch)]
    return [tuple(array[:, g] for array in arrays) for g in range(groups)]


def mla(
    x: Array,
    layer: Weights,
    config: ModelConfig,
    rope: RopeTable,
    nodes: Nodes,
    index: int,
    rows: Array,
    library: Any,
) -> Array:
    """Return multi-head latent attention of ``x`` [b, n, C] at layer ``index``.

    ``rows`` [b, n, 576], zeros before, takes the nodes' KV rows; zeros beyond a smaller latent or rotary part
    change no product.
    ``layer`` holds ``w_uk`` [H, P, latent] and ``w_uv`` [H, latent, F], made from ``kv_b_proj``.  In float32
    models ``w_uv`` is float64: its sums, the longest of a head, would differ most by their order.
    """
    xp, (batch, n, _) = nodes.cache.xp, x.shape
    heads, nope, rank = config.num_attention_heads, config.qk_nope_head_dim, config.kv_lora_rank
    low = x
    if config.q_lora_rank:
        low = linear(x, layer, "self_attn.q_a_proj", xp)
        low = rms_norm(low, layer["self_attn.q_a_layernorm.weight"], LATENT_EPS, xp)
    name = "self_attn.q_b_proj" if config.q_lora_rank else "self_attn.q_proj"
    q = linear(low, layer, name, xp).reshape(batch, n, heads, -1)
    row = linear(x, layer, "self_attn.kv_a_proj_with_mqa", xp)
    turn = {"positions": nodes.positions, "interleaved": config.rope_interleave}
    rounded = layer.get("rounding", same)
    latent = rms_norm(row[..., :rank], layer["self_attn.kv_a_layernorm.weight"], LATENT_EPS, xp)
    rows[..., :rank] = rounded(latent)
    turned = rope.rotate(row[:, :, None, rank:], **turn)[:, :, 0]
    rows[..., LATENT : LATENT + config.qk_rope_head_dim] = rounded(turned)
    queries = xp.zeros((batch, n, heads, LATENT + ROPE), x.dtype)
    flat = q.reshape(-1, heads, q.shape[-1])[..., :nope]
    products.by_head(flat, layer["w_uk"], xp, out=queries.reshape(-1, heads, LATENT + ROPE)[..., :rank])
    queries[..., LATENT : LATENT + config.qk_rope_head_dim] = rope.rotate(
        xp.ascontiguousarray(q[..., nope:]), **turn
    )
    queries = rounded(queries)
    latents = verify_attn(
        queries, nodes.cache.layers[index], rows, nodes.mask, nodes.lengths,
        scale=attention_scale(config), counts=nodes.counts, page_table=nodes.cache.page_table,
        library=library,
    ).out  # fmt: skip
    latents = rounded(latents)
    wide = latents[..., :rank].astype(layer["w_uv"].dtype, copy=False)
    per_head = products.by_head(wide.reshape(-1, heads, rank), layer["w_uv"], xp)
    out = rounded(per_head.reshape(batch, n, -1).astype(x.dtype, copy=False))
    return linear(out, layer, "self_attn.o_proj", xp)
