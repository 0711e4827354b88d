"""Golden greedy steps of two small random decoders: ``python refs/golden/make_greedy_step.py [FOLDER]``.

Each file holds a whole checkpoint (Hugging Face names, float16) and its ``config.json`` in the header, so
that an engine written elsewhere can load it and compare token for token.  The latent rows are 512 + 64
numbers, as the attention kernels take them.  Logits are rounded to float32.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import golden_file as golden
import numpy as np

from kdtree_cupy import kdtr
from kdtree_cupy.refs.greedy_step import greedy

STEPS = 24
MLA: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "vocab_size": 96,
    "hidden_size": 32, "intermediate_size": 48, "moe_intermediate_size": 16,
    "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 2, "n_shared_experts": 1, "n_routed_experts": 8, "routed_scaling_factor": 2.5,
    "kv_lora_rank": 512, "q_lora_rank": 24, "qk_rope_head_dim": 64, "v_head_dim": 12, "qk_nope_head_dim": 16,
    "n_group": 4, "topk_group": 2, "num_experts_per_tok": 3, "first_k_dense_replace": 1, "moe_layer_freq": 1,
    "norm_topk_prob": True, "scoring_func": "sigmoid", "topk_method": "noaux_tc", "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0, "max_position_embeddings": 4096, "tie_word_embeddings": False,
    "rope_scaling": {
        "type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64, "beta_fast": 32,
        "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0,
    },
}  # fmt: skip
GQA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 96, "hidden_size": 48,
    "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 2,
    "head_dim": 8, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "rope_scaling": None,
    "max_position_embeddings": 2048, "tie_word_embeddings": True,
}  # fmt: skip


def shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the shape of every tensor of a checkpoint."""
    c, heads, hidden = config, config["num_attention_heads"], config["hidden_size"]
    out = {"model.embed_tokens.weight": (c["vocab_size"], hidden), "model.norm.weight": (hidden,)}
    if not c["tie_word_embeddings"]:
        out["lm_head.weight"] = (c["vocab_size"], hidden)
    for index in range(c["num_hidden_layers"]):
        one = {"input_layernorm": (hidden,), "post_attention_layernorm": (hidden,)}
        one |= _mla_shapes(c, heads, hidden) if "kv_lora_rank" in c else _gqa_shapes(c, heads, hidden)
        routed = "n_routed_experts" in c and index >= c["first_k_dense_replace"]
        one |= _moe_shapes(c, hidden) if routed else _mlp_shapes("mlp", hidden, c["intermediate_size"])
        out |= {f"model.layers.{index}.{name}.weight": shape for name, shape in one.items()}
        if routed:
            out[f"model.layers.{index}.mlp.gate.e_score_correction_bias"] = (c["n_routed_experts"],)
    return out


def _mla_shapes(c: dict[str, Any], heads: int, hidden: int) -> dict[str, tuple[int, ...]]:
    query, rank = heads * (c["qk_nope_head_dim"] + c["qk_rope_head_dim"]), c["kv_lora_rank"]
    out = {
        "kv_a_proj_with_mqa": (rank + c["qk_rope_head_dim"], hidden),
        "kv_a_layernorm": (rank,),
        "kv_b_proj": (heads * (c["qk_nope_head_dim"] + c["v_head_dim"]), rank),
        "o_proj": (hidden, heads * c["v_head_dim"]),
    }
    if c["q_lora_rank"]:
        low = c["q_lora_rank"]
        out |= {"q_a_proj": (low, hidden), "q_a_layernorm": (low,), "q_b_proj": (query, low)}
    else:
        out["q_proj"] = (query, hidden)
    return {f"self_attn.{name}": shape for name, shape in out.items()}


def _gqa_shapes(c: dict[str, Any], heads: int, hidden: int) -> dict[str, tuple[int, ...]]:
    size, groups = c["head_dim"], c["num_key_value_heads"]
    rows = {"q_proj": heads * size, "k_proj": groups * size, "v_proj": groups * size}
    out = {f"self_attn.{name}": (count, hidden) for name, count in rows.items()}
    return out | {"self_attn.o_proj": (hidden, heads * size)}


def _mlp_shapes(name: str, hidden: int, inner: int) -> dict[str, tuple[int, ...]]:
    return {
        f"{name}.gate_proj": (inner, hidden), f"{name}.up_proj": (inner, hidden),
        f"{name}.down_proj": (hidden, inner),
    }  # fmt: skip


def _moe_shapes(c: dict[str, Any], hidden: int) -> dict[str, tuple[int, ...]]:
    inner = c["moe_intermediate_size"]
    out = {"mlp.gate": (c["n_routed_experts"], hidden)}
    for expert in range(c["n_routed_experts"]):
        out |= _mlp_shapes(f"mlp.experts.{expert}", hidden, inner)
    return out | _mlp_shapes("mlp.shared_experts", hidden, inner * c["n_shared_experts"])


def checkpoint(config: dict[str, Any], seed: int) -> dict[str, np.ndarray]:
    """Return float16 tensors: norms near 1, matrices of gain 1, logits up to 3."""
    out = {}
    for number, (name, shape) in enumerate(shapes(config).items()):
        values = golden.bell(shape, seed + number)
        if name.endswith("e_score_correction_bias"):
            values = values * 0.1
        elif len(shape) == 1:
            values = 1 + values * 0.1
        else:
            values = values * (0.1 if "embed" in name or "lm_head" in name else shape[1] ** -0.5)
        out[name] = values.astype(np.float16)
    return out


def make(folder: Path) -> list[Path]:
    """Write both files and return their paths."""
    paths = []
    for name, config, seed in (("mla", MLA, 1000), ("gqa", GQA, 2000)):
        weights = checkpoint(config, seed)
        prompt = golden.integers(0, config["vocab_size"], (9,), seed + 999)
        steps = greedy(config, weights, prompt, STEPS)
        arrays = {f"weights.{key}": value for key, value in weights.items()}
        arrays |= {"prompt": prompt, "want.tokens": np.array([step.token for step in steps], np.int32)}
        arrays["want.logits"] = np.stack([step.logits for step in steps]).astype(np.float32)
        arrays["want.gaps"] = np.array([step.gap for step in steps])
        paths.append(folder / f"greedy_step_{name}.kdtr")
        kdtr.write(paths[-1], arrays, {"kind": "golden", "stage": "greedy_step", "config": config})
    return paths


if __name__ == "__main__":
    for path in make(Path(sys.argv[1]) if len(sys.argv) > 1 else golden.HERE):
        print(f"{path}  {path.stat().st_size:,} bytes")
