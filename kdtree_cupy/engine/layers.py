"""What a decoder layer is made of besides attention: linear maps, gated feed-forward parts, experts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from . import products
from .config import ModelConfig
from .fused import gated

Array = Any
Weights = Mapping[str, Array]


def linear(x: Array, layer: Weights, name: str, xp: Any) -> Array:
    """Return ``x @ W.T``, plus the bias if the checkpoint has one."""
    y = products.linear(x, layer[f"{name}.weight"], xp)
    if f"{name}.bias" in layer:
        y = y + layer[f"{name}.bias"]
    return layer["rounding"](y) if "rounding" in layer else y


def same(x: Array) -> Array:
    """Return ``x``: the rounding of a model that needs none."""
    return x


def to_bfloat16(x: Array) -> Array:
    """Return float32 numbers rounded to the nearest bfloat16, ties to even; on numpy and on CuPy arrays."""
    bits = x.astype(np.float32, order="C").view(np.uint32)
    bits = bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))
    return (bits & np.uint32(0xFFFF0000)).view(np.float32)


def gated_mlp(x: Array, layer: Weights, name: str, xp: Any) -> Array:
    """Return ``down(silu(gate(x)) * up(x))``."""
    gate, up = (linear(x, layer, f"{name}.{part}_proj", xp) for part in ("gate", "up"))
    return linear(gated(gate, up, xp), layer, f"{name}.down_proj", xp)


def route(logits: Array, bias: Array | None, config: ModelConfig, xp: Any) -> tuple[Array, Array]:
    """Return experts int [m, k] and their shares float32 [m, k] of every token.

    Parameters
    ----------
    logits : float32 [m, experts]
        Router logits.
    bias : float32 [experts] or None
        Added to scores for the choice only (``e_score_correction_bias``).
    config : ModelConfig
    xp : module

    Notes
    -----
    Equal scores go to the lower expert.  Groups are ranked by their two best biased scores (``noaux_tc``)
    or by their best score (``group_limited_greedy``).
    """
    if config.scores_by_softmax:
        scores = xp.exp(logits - logits.max(axis=-1, keepdims=True))
        scores = scores / scores.sum(axis=-1, keepdims=True)
    else:
        with np.errstate(over="ignore"):
            scores = 1 / (1 + xp.exp(-logits))
    choice = scores if bias is None else scores + bias
    groups = config.n_group or 1
    if groups > 1 and config.topk_method != "greedy":
        by_group = choice.reshape(len(choice), groups, -1)
        rank = by_group.max(axis=-1)
        if config.topk_method == "noaux_tc":
            rank = xp.take_along_axis(
                by_group, stable_best(by_group, min(2, by_group.shape[-1]), xp), axis=-1
            ).sum(-1)
        kept = stable_best(rank, config.topk_group, xp)
        open_groups = (kept[:, :, None] == xp.arange(groups)).any(axis=1)
        choice = xp.where(open_groups[:, :, None], by_group, np.float32(-np.inf)).reshape(choice.shape)
    chosen = stable_best(choice, config.num_experts_per_tok, xp)
    shares = xp.take_along_axis(scores, chosen, axis=-1)
    if config.norm_topk_prob:
        shares = shares / (shares.sum(axis=-1, keepdims=True) + np.float32(1e-20))
    return chosen, shares * np.float32(config.routed_scaling_factor)


def stable_best(values: Array, count: int, xp: Any) -> Array:
    """Return the indices of the ``count`` largest values per row, equal ones by the lower index."""
    if xp is np:
        return np.argsort(-values, axis=-1, kind="stable")[..., :count]
    places, best = xp.arange(values.shape[-1]), xp.empty((*values.shape[:-1], count), np.int64)
    for rank in range(count):  # sorting waits for the device, looking for the largest does not
        best[..., rank] = values.argmax(axis=-1)
        values = xp.where(places == best[..., rank : rank + 1], np.float32(-np.inf), values)
    return best


def moe(x: Array, layer: Weights, config: ModelConfig, xp: Any) -> Array:
    """Return the chosen experts' weighted sum, plus the shared experts, for tokens ``x`` [m, C].

    Few experts in all (:func:`computes_all`) are all computed, in three products, and those that were not
    chosen weigh nothing.  Otherwise this waits for the device once: which experts are needed decides which
    products are made.
    """
    router = layer["mlp.gate.weight"].astype(np.float32, copy=False)
    logits = products.linear(x.astype(np.float32, copy=False), router, xp)
    chosen, shares = route(logits, layer.get("mlp.gate.e_score_correction_bias"), config, xp)
    if "mlp.experts.gate" in layer:
        out = _all_experts(x, layer, chosen, shares, xp)
    else:
        out = _chosen_experts(x, layer, chosen, shares.astype(x.dtype, copy=False), xp)
    if config.n_shared_experts:
        out += gated_mlp(x, layer, "mlp.shared_experts", xp)
    return out


def computes_all(config: ModelConfig) -> bool:
    """Return whether all experts are computed for every token: at most four times those that are chosen."""
    return bool(config.n_routed_experts) and config.n_routed_experts <= 4 * config.num_experts_per_tok


def join_experts(layer: dict[str, Array], config: ModelConfig, xp: Any) -> None:
    """Put the weights of all experts side by side, in place of those of each."""
    for part, axis in (("gate", 0), ("up", 0), ("down", 1)):
        names = [f"mlp.experts.{expert}.{part}_proj.weight" for expert in range(config.n_routed_experts)]
        layer[f"mlp.experts.{part}"] = xp.concatenate([layer.pop(name) for name in names], axis=axis)


def _all_experts(x: Array, layer: Weights, chosen: Array, shares: Array, xp: Any) -> Array:
    """Return the weighted sum [m, C]: an expert's share multiplies its inner numbers."""
    rounded = layer.get("rounding", same)
    gate, up = (rounded(products.linear(x, layer[f"mlp.experts.{part}"], xp)) for part in ("gate", "up"))
    experts = layer["mlp.gate.weight"].shape[0]
    weight = (chosen[:, :, None] == xp.arange(experts)) * shares[:, :, None]  # [m, k, experts]
    weight = weight.sum(axis=1).astype(x.dtype, copy=False)
    inner = gated(gate, up, xp).reshape(len(x), experts, -1) * weight[:, :, None]
    return rounded(products.linear(inner.reshape(len(x), -1), layer["mlp.experts.down"], xp))


def _chosen_experts(x: Array, layer: Weights, chosen: Array, shares: Array, xp: Any) -> Array:
    """Return the weighted sum [m, C], expert by expert."""
    out = xp.zeros_like(x)
    on_host = chosen.get() if hasattr(chosen, "get") else chosen
    for expert in np.unique(on_host).tolist():
        token, slot = np.nonzero(on_host == expert)
        rows, columns = xp.asarray(token), xp.asarray(slot)
        part = gated_mlp(x[rows], layer, f"mlp.experts.{expert}", xp)
        out[rows] += part * shares[rows, columns][:, None]  # a token has an expert at most once
    return out
