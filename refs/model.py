"""What does a decoder compute, step by step?  DeepSeek-V3 / Kimi (MLA, MoE) and Llama (GQA), as written down.

The whole sequence is computed anew at every call: no cache, no absorbed matrices, one expert and one head
after the other.  ``config`` is a mapping with the names of Hugging Face's ``config.json``, ``weights`` one
with the names of its checkpoints; a config with ``kv_lora_rank`` is of the DeepSeek family.  Arithmetic is in
``dtype`` (float64 unless told), sizes are free.

Sources: DeepSeek-V2 (arXiv 2405.04434), DeepSeek-V3 (2412.19437), YaRN (2309.00071), GQA (2305.13245).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

Config = Mapping[str, Any]
Weights = Mapping[str, np.ndarray]
LATENT_EPS = 1e-6
"""Epsilon of the norms inside MLA, whatever ``rms_norm_eps`` is: checkpoints are trained with this one."""


class Layer(NamedTuple):
    """One decoder layer's view of the model: config, weights by their short names, dtype."""

    config: Config
    weights: Weights
    prefix: str
    dtype: Any

    def __getitem__(self, name: str) -> np.ndarray:
        return self.weights[f"{self.prefix}.{name}"].astype(self.dtype)

    def __contains__(self, name: str) -> bool:
        return f"{self.prefix}.{name}" in self.weights

    def optional(self, name: str) -> np.ndarray | None:
        """Return a tensor that not every checkpoint has, or None."""
        return self[name] if name in self else None  # noqa: SIM401 (no mapping, has no get)

    def linear(self, name: str, x: np.ndarray) -> np.ndarray:
        """Return ``x @ W.T``, plus the bias if there is one."""
        y = x @ self[f"{name}.weight"].T
        return y + self[f"{name}.bias"] if f"{name}.bias" in self else y


def rms_norm(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    """Return x / rms(x) * weight along the last axis."""
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + x.dtype.type(eps)) * weight


def silu(x: np.ndarray) -> np.ndarray:
    """Return x * sigmoid(x)."""
    return x / (1 + np.exp(-x))


def sigmoid(x: np.ndarray) -> np.ndarray:
    """Return 1 / (1 + exp(-x))."""
    return 1 / (1 + np.exp(-x))


def softmax(x: np.ndarray) -> np.ndarray:
    """Return the softmax along the last axis."""
    weights = np.exp(x - x.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def rope_settings(config: Config) -> dict[str, Any]:
    """Return ``rope_theta``, ``rope_type`` and the numbers of the scaling; configs spell them in two ways."""
    scaling = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    return {"rope_theta": config.get("rope_theta", 10000.0), **scaling, "rope_type": kind}


def yarn_magnitude(factor: float, m: float) -> float:
    """Return YaRN's growth of attention logits for a context stretched by ``factor``."""
    return 0.1 * m * math.log(factor) + 1.0 if factor > 1 else 1.0


def rope_frequencies(config: Config, size: int) -> tuple[np.ndarray, float]:
    """Return size/2 angular frequencies and the factor on cosines and sines."""
    rope = rope_settings(config)
    base = float(rope["rope_theta"])
    plain = base ** (-np.arange(0, size, 2) / size)
    if rope["rope_type"] == "default":
        return plain, 1.0
    factor = float(rope["factor"])
    if rope["rope_type"] == "linear":
        return plain / factor, 1.0
    if rope["rope_type"] == "llama3":
        turns = rope["original_max_position_embeddings"] * plain / (2 * math.pi)
        low, high = float(rope["low_freq_factor"]), float(rope["high_freq_factor"])
        keep = np.clip((turns - low) / (high - low), 0.0, 1.0)
        return plain * (keep + (1 - keep) / factor), 1.0
    if rope["rope_type"] != "yarn":
        raise ValueError(f"rope_type: got {rope['rope_type']!r}, wanted default, linear, llama3 or yarn")

    def pair_that_turns(times: float) -> float:
        """Return which pair turns so often over the original context (a fractional index)."""
        return size * math.log(rope["original_max_position_embeddings"] / (times * 2 * math.pi)) / (
            2 * math.log(base)
        )  # fmt: skip

    first = max(math.floor(pair_that_turns(rope.get("beta_fast") or 32)), 0)
    last = min(math.ceil(pair_that_turns(rope.get("beta_slow") or 1)), size - 1)
    slow = np.clip((np.arange(size // 2) - first) / max(last - first, 0.001), 0, 1)  # 1: stretched fully
    if rope.get("mscale") and rope.get("mscale_all_dim"):
        grown = yarn_magnitude(factor, rope["mscale"]) / yarn_magnitude(factor, rope["mscale_all_dim"])
    else:
        grown = yarn_magnitude(factor, 1.0)
    return plain * (1 - slow) + plain / factor * slow, grown


def rotate(x: np.ndarray, config: Config, positions: np.ndarray, *, interleaved: bool) -> np.ndarray:
    """Return ``x`` [n, ..., E] rotated by position; pairs are (2i, 2i+1) if interleaved, else (i, i+E/2)."""
    size = x.shape[-1]
    frequencies, factor = rope_frequencies(config, size)
    angles = positions.reshape(-1, *[1] * (x.ndim - 1)) * frequencies
    cos, sin = (np.cos(angles) * factor).astype(x.dtype), (np.sin(angles) * factor).astype(x.dtype)
    one, other = (x[..., 0::2], x[..., 1::2]) if interleaved else (x[..., : size // 2], x[..., size // 2 :])
    parts = (one * cos - other * sin, other * cos + one * sin)
    return np.stack(parts, axis=-1).reshape(x.shape) if interleaved else np.concatenate(parts, axis=-1)


def attend(q: np.ndarray, k: np.ndarray, v: np.ndarray, scale: float) -> np.ndarray:
    """Return causal attention of one head: ``q`` and ``k`` [n, E], ``v`` [n, F] -> [n, F]."""
    scores = (q @ k.T) * q.dtype.type(scale)
    return softmax(np.where(np.tri(len(q), dtype=bool), scores, -np.inf)) @ v


def gqa_attention(layer: Layer, x: np.ndarray) -> np.ndarray:
    """Return grouped-query attention over ``x`` [n, C]."""
    config, n = layer.config, len(x)
    heads = config["num_attention_heads"]
    groups = config.get("num_key_value_heads") or heads
    size = config.get("head_dim") or config["hidden_size"] // heads
    positions = np.arange(n)
    q = layer.linear("self_attn.q_proj", x).reshape(n, heads, size)
    k = layer.linear("self_attn.k_proj", x).reshape(n, groups, size)
    v = layer.linear("self_attn.v_proj", x).reshape(n, groups, size)
    q = rotate(q, config, positions, interleaved=False)
    k = rotate(k, config, positions, interleaved=False)
    share = heads // groups
    out = [attend(q[:, h], k[:, h // share], v[:, h // share], size**-0.5) for h in range(heads)]
    return layer.linear("self_attn.o_proj", np.concatenate(out, axis=-1))


def mla_scale(config: Config) -> float:
    """Return the factor on q.k of multi-head latent attention, YaRN's growth included."""
    scale = (config["qk_nope_head_dim"] + config["qk_rope_head_dim"]) ** -0.5
    rope = rope_settings(config)
    if rope["rope_type"] != "default" and rope.get("mscale_all_dim"):
        scale *= yarn_magnitude(float(rope["factor"]), rope["mscale_all_dim"]) ** 2
    return scale


def mla_attention(layer: Layer, x: np.ndarray) -> np.ndarray:
    """Return multi-head latent attention over ``x`` [n, C]; each head expands the latents itself."""
    config, n = layer.config, len(x)
    heads, nope = config["num_attention_heads"], config["qk_nope_head_dim"]
    rank, positions = config["kv_lora_rank"], np.arange(n)
    interleaved = config.get("rope_interleave", True)
    if config.get("q_lora_rank"):
        low = layer.linear("self_attn.q_a_proj", x)
        low = rms_norm(low, layer["self_attn.q_a_layernorm.weight"], LATENT_EPS)
        q = layer.linear("self_attn.q_b_proj", low).reshape(n, heads, -1)
    else:
        q = layer.linear("self_attn.q_proj", x).reshape(n, heads, -1)
    row = layer.linear("self_attn.kv_a_proj_with_mqa", x)
    latent = rms_norm(row[:, :rank], layer["self_attn.kv_a_layernorm.weight"], LATENT_EPS)
    kv = layer.linear("self_attn.kv_b_proj", latent).reshape(n, heads, -1)
    q_rope = rotate(q[..., nope:], config, positions, interleaved=interleaved)
    k_rope = rotate(row[:, rank:], config, positions, interleaved=interleaved)
    out = []
    for h in range(heads):
        query = np.concatenate([q[:, h, :nope], q_rope[:, h]], axis=-1)
        key = np.concatenate([kv[:, h, :nope], k_rope], axis=-1)
        out.append(attend(query, key, kv[:, h, nope:], mla_scale(config)))
    return layer.linear("self_attn.o_proj", np.concatenate(out, axis=-1))


def gated_mlp(layer: Layer, name: str, x: np.ndarray) -> np.ndarray:
    """Return down(silu(gate(x)) * up(x))."""
    gate, up = layer.linear(f"{name}.gate_proj", x), layer.linear(f"{name}.up_proj", x)
    return layer.linear(f"{name}.down_proj", silu(gate) * up)


def route(config: Config, scores: np.ndarray, bias: np.ndarray | None) -> np.ndarray:
    """Return the experts of one token, best first, from its scores [E]; equal ones by the lower index.

    Groups are ranked by the sum of their two best biased scores (``noaux_tc``) or by their best score
    (``group_limited_greedy``); only experts of the best ``topk_group`` groups can be chosen.
    """
    method = config.get("topk_method", "noaux_tc")
    choice = scores if bias is None else scores + bias
    if method != "greedy" and config.get("n_group", 1) > 1:
        by_group = np.sort(choice.reshape(config["n_group"], -1), axis=-1)
        rank = by_group[:, -2:].sum(-1) if method == "noaux_tc" else by_group[:, -1]
        kept = np.argsort(-rank, kind="stable")[: config["topk_group"]]
        closed = np.full(by_group.shape, -np.inf)
        closed[kept] = 0.0
        choice = choice + closed.reshape(-1)
    return np.argsort(-choice, kind="stable")[: config["num_experts_per_tok"]]


def scoring(config: Config) -> str:
    """Return how router logits become scores; checkpoints of DeepSeek-V2 may leave their softmax unsaid."""
    return config.get("scoring_func") or (
        "softmax" if config.get("model_type") == "deepseek_v2" else "sigmoid"
    )


def moe(layer: Layer, x: np.ndarray) -> np.ndarray:
    """Return the routed experts' weighted sum plus the shared experts, token by token."""
    config, bias = layer.config, layer.optional("mlp.gate.e_score_correction_bias")
    out = np.zeros_like(x)
    for t, token in enumerate(x):
        logits = layer["mlp.gate.weight"] @ token
        scores = (softmax if scoring(config) == "softmax" else sigmoid)(logits)
        chosen = route(config, scores, bias)
        shares = scores[chosen]
        if config.get("norm_topk_prob", True):
            shares = shares / (shares.sum() + 1e-20)
        for expert, share in zip(chosen, shares * config.get("routed_scaling_factor", 1.0), strict=True):
            out[t] += x.dtype.type(share) * gated_mlp(layer, f"mlp.experts.{expert}", token)
    return out + gated_mlp(layer, "mlp.shared_experts", x) if config.get("n_shared_experts") else out


def forward(config: Config, weights: Weights, tokens: np.ndarray, dtype: Any = np.float64) -> np.ndarray:
    """Return logits [n, V] after each of ``tokens`` [n]."""
    eps = config.get("rms_norm_eps", 1e-6)
    top = Layer(config, weights, "model", np.dtype(dtype))
    x = top["embed_tokens.weight"][tokens]
    for index in range(config["num_hidden_layers"]):
        layer = Layer(config, weights, f"model.layers.{index}", np.dtype(dtype))
        attention = mla_attention if "kv_lora_rank" in config else gqa_attention
        x = x + attention(layer, rms_norm(x, layer["input_layernorm.weight"], eps))
        y = rms_norm(x, layer["post_attention_layernorm.weight"], eps)
        x = x + (moe(layer, y) if "mlp.gate.weight" in layer else gated_mlp(layer, "mlp", y))
    tied = config.get("tie_word_embeddings", False)
    head = weights["model.embed_tokens.weight" if tied else "lm_head.weight"].astype(dtype)
    return rms_norm(x, top["norm.weight"], eps) @ head.T
