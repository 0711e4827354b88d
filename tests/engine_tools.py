"""Small decoders, prompts and drafters for the tests of the engine."""

from __future__ import annotations

from functools import cache
from importlib import resources

import numpy as np
import pytest

from kdtree_cupy import kdtr
from kdtree_cupy.engine import Model, from_dict
from kdtree_cupy.engine.load import smollm2, smollm2_file

FAMILIES = ("mla", "gqa")


@cache
def golden(family: str) -> tuple[dict, dict, dict]:
    """Return config, weights and the other arrays of a golden greedy step."""
    found = kdtr.read(resources.files("kdtree_cupy.refs") / "golden" / f"greedy_step_{family}.kdtr")
    weights = {name[8:]: array for name, array in found.arrays.items() if name.startswith("weights.")}
    return found.header["config"], weights, dict(found.arrays)


@cache
def tiny(family: str) -> Model:
    """Return the golden decoder of a family, in float32."""
    config, weights, _ = golden(family)
    return Model(from_dict(config), weights)


def small_gqa(vocab: int, seed: int = 0, size: int = 8) -> tuple[dict, dict]:
    """Return config and float32 weights of a one-layer Llama with a small vocabulary, heads of ``size``."""
    config = {
        "vocab_size": vocab, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 1, "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True, "head_dim": size,
    }  # fmt: skip
    rng = np.random.default_rng(seed)
    shapes = {
        "self_attn.q_proj": (2 * size, 16), "self_attn.k_proj": (size, 16), "self_attn.v_proj": (size, 16),
        "self_attn.o_proj": (16, 2 * size), "mlp.gate_proj": (24, 16), "mlp.up_proj": (24, 16),
        "mlp.down_proj": (16, 24), "input_layernorm": (16,), "post_attention_layernorm": (16,),
    }  # fmt: skip
    weights = {"model.embed_tokens.weight": (vocab, 16), "model.norm.weight": (16,)}
    weights |= {f"model.layers.0.{name}.weight": shape for name, shape in shapes.items()}
    gains = {2: 0.35, 1: 1.0}
    return config, {
        name: (rng.standard_normal(shape) * gains[len(shape)]).astype(np.float32)
        for name, shape in weights.items()
    }


def prompts_for(vocab: int, count: int, seed: int = 0) -> list[np.ndarray]:
    """Return prompts of 1 to 24 tokens."""
    rng = np.random.default_rng(seed)
    return [rng.integers(0, vocab, rng.integers(1, 25)).astype(np.int32) for _ in range(count)]


@cache
def real():
    """Return SmolLM2 and its tokenizer, or skip the test by name where they are not installed."""
    pytest.importorskip("gguf", reason="SmolLM2: needs the extra 'models'")
    pytest.importorskip("tokenizers", reason="SmolLM2: needs the extra 'models'")
    try:
        smollm2_file()
    except FileNotFoundError as error:
        pytest.skip(str(error))
    return smollm2()
