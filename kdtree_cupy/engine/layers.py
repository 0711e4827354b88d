"""What a decoder layer is made of besides attention: norms, gated feed-forward parts, routed experts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .config import ModelConfig

Array = Any
Weights = Mapping[str, Array]


def rms_norm(x: Array, weight: Array, eps: float, xp: Any) -> Array:
    """Return ``x / rms(x) * weight`` along the last axis, in float32 inside and in the type of ``x``."""
    wide = x.astype(np.float32, copy=False)
    scale = xp.sqrt((wide * wide).mean(axis=-1, keepdims=True) + np.float32(eps))
    return (wide / scale * weight).astype(x.dtype, copy=False)


def linear(x: Array, layer: Weights, name: str) -> Array:
    """Return ``x @ W.T``, plus the bias if the checkpoint has one."""
    y = x @ layer[f"{name}.weight"].T
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


def silu(x: Array, xp: Any) -> Array:
    """Return ``x * sigmoid(x)``."""
    with np.errstate(over="ignore"):  # exp(-x) = inf gives the right limit, -0
        return x / (1 + xp.exp(-x))


def gated_mlp(x: Array, layer: Weights, name: str, xp: Any) -> Array:
    """Return ``down(silu(gate(x)) * up(x))``."""
    inner = silu(linear(x, layer, f"{name}.gate_proj"), xp) * linear(x, layer, f"{name}.up_proj")
    return linear(inner, layer, f"{name}.down_proj")


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
        ordered = xp.sort(by_group, axis=-1)
        rank = ordered[..., -2:].sum(-1) if config.topk_method == "noaux_tc" else ordered[..., -1]
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
    return xp.argsort(-values, axis=-1)[..., :count]  # CuPy's sort is stable


def moe(x: Array, layer: Weights, config: ModelConfig, xp: Any) -> Array:
    """Return the chosen experts' weighted sum, plus the shared experts, for tokens ``x`` [m, C].

    Waits for the device once: which experts are needed decides which products are made.
    """
    logits = x.astype(np.float32) @ layer["mlp.gate.weight"].astype(np.float32).T
    chosen, shares = route(logits, layer.get("mlp.gate.e_score_correction_bias"), config, xp)
    out = xp.zeros_like(x)
    shares = shares.astype(x.dtype, copy=False)
    on_host = chosen if xp is np else chosen.get()
    for expert in np.unique(on_host).tolist():
        token, slot = np.nonzero(on_host == expert)
        rows, columns = xp.asarray(token), xp.asarray(slot)
        part = gated_mlp(x[rows], layer, f"mlp.experts.{expert}", xp)
        out[rows] += part * shares[rows, columns][:, None]  # a token has an expert at most once
    if config.n_shared_experts:
        out += gated_mlp(x, layer, "mlp.shared_experts", xp)
    return out
