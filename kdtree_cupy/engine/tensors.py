"""Which tensors a layer has, and their shapes: a checkpoint is checked once, when it is loaded."""

from __future__ import annotations

from .config import ModelConfig

Shapes = dict[str, tuple[int, ...]]


def layer_shapes(config: ModelConfig, *, routed: bool) -> Shapes:
    """Return the shape of every tensor that a layer must have, by its name inside the layer.

    Parameters
    ----------
    config : ModelConfig
    routed : bool
        The layer has experts in place of one feed-forward part.
    """
    hidden = config.hidden_size
    shapes: Shapes = {"input_layernorm": (hidden,), "post_attention_layernorm": (hidden,)}
    shapes |= _mla(config) if config.is_mla else _gqa(config)
    if routed:
        shapes["mlp.gate"] = (config.n_routed_experts, hidden)
        inner = config.moe_intermediate_size
        for expert in range(config.n_routed_experts):
            shapes |= _mlp(f"mlp.experts.{expert}", hidden, inner)
        if config.n_shared_experts:
            shapes |= _mlp("mlp.shared_experts", hidden, inner * config.n_shared_experts)
    else:
        shapes |= _mlp("mlp", hidden, config.intermediate_size)
    return {f"{name}.weight": shape for name, shape in shapes.items()}


def _mla(c: ModelConfig) -> Shapes:
    heads, rank = c.num_attention_heads, c.kv_lora_rank
    query = heads * (c.qk_nope_head_dim + c.qk_rope_head_dim)
    shapes = {
        "kv_a_proj_with_mqa": (rank + c.qk_rope_head_dim, c.hidden_size),
        "kv_a_layernorm": (rank,),
        "kv_b_proj": (heads * (c.qk_nope_head_dim + c.v_head_dim), rank),
        "o_proj": (c.hidden_size, heads * c.v_head_dim),
    }
    if c.q_lora_rank:
        shapes |= {"q_a_proj": (c.q_lora_rank, c.hidden_size), "q_a_layernorm": (c.q_lora_rank,)}
        shapes["q_b_proj"] = (query, c.q_lora_rank)
    else:
        shapes["q_proj"] = (query, c.hidden_size)
    return {f"self_attn.{name}": shape for name, shape in shapes.items()}


def _gqa(c: ModelConfig) -> Shapes:
    rows = {"q_proj": c.num_attention_heads, "k_proj": c.num_key_value_heads, "v_proj": c.num_key_value_heads}
    shapes = {f"self_attn.{name}": (count * c.head_dim, c.hidden_size) for name, count in rows.items()}
    return shapes | {"self_attn.o_proj": (c.hidden_size, c.num_attention_heads * c.head_dim)}


def _mlp(name: str, hidden: int, inner: int) -> Shapes:
    parts = {"gate_proj": (inner, hidden), "up_proj": (inner, hidden), "down_proj": (hidden, inner)}
    return {f"{name}.{part}": shape for part, shape in parts.items()}
