"""Weights, shape and vocabulary out of a GGUF file of the Llama family (library ``gguf``, extra ``models``).

GGUF stores the rows of q and k permuted, for rotary pairs (2i, 2i+1); they are put back in the order of
Hugging Face, for pairs (i, i + E/2), so that the engine knows one convention.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .config import ModelConfig

_NAMES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


@dataclass(frozen=True)
class GgufFile:
    """What a GGUF file holds.

    Parameters
    ----------
    config : ModelConfig
    weights : dict of str to float32 array
        By Hugging Face names, dequantised.
    metadata : dict
        The file's own fields, such as ``tokenizer.ggml.tokens``.
    """

    config: ModelConfig
    weights: dict[str, np.ndarray]
    metadata: dict[str, Any]


def read_gguf(path: Path) -> GgufFile:
    """Read and dequantise a GGUF file.

    Raises
    ------
    ModuleNotFoundError
        The library ``gguf`` is missing; the message says how to get it.
    ValueError
        Not a GGUF file, another architecture, or an unknown tensor.
    """
    try:
        import gguf
    except ModuleNotFoundError as error:
        message = "GGUF files need the library gguf: pip install 'kdtree-cupy[models]'"
        raise ModuleNotFoundError(message) from error
    reader = gguf.GGUFReader(path)
    metadata = {name: field.contents() for name, field in reader.fields.items()}
    kind = metadata.get("general.architecture")
    if kind != "llama":
        raise ValueError(f"{path}: architecture {kind!r}, wanted 'llama'")
    tied = all(tensor.name != "output.weight" for tensor in reader.tensors)
    config = _config(metadata, tied)
    weights = {}
    for tensor in reader.tensors:
        name = hugging_face_name(tensor.name)
        values = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            values = unpermute(values, config.head_dim)
        weights[name] = values
    return GgufFile(config, weights, metadata)


def _config(metadata: dict[str, Any], tied: bool) -> ModelConfig:
    def field(name: str, default: Any = None) -> Any:
        return metadata.get(f"llama.{name}", default)

    if field("rope.scaling.type") not in (None, "none"):
        raise ValueError(f"rope scaling {field('rope.scaling.type')!r} in GGUF files is not supported")
    heads = field("attention.head_count")
    return ModelConfig(
        vocab_size=len(metadata["tokenizer.ggml.tokens"]),
        hidden_size=field("embedding_length"),
        intermediate_size=field("feed_forward_length"),
        num_hidden_layers=field("block_count"),
        num_attention_heads=heads,
        num_key_value_heads=field("attention.head_count_kv", heads),
        head_dim=field("rope.dimension_count", 0),
        rms_norm_eps=float(np.float32(field("attention.layer_norm_rms_epsilon"))),
        rope_theta=float(field("rope.freq_base", 10000.0)),
        tie_word_embeddings=tied,
        max_position_embeddings=field("context_length"),
        eos_token_id=metadata.get("tokenizer.ggml.eos_token_id"),
    )


def hugging_face_name(name: str) -> str:
    """Return the Hugging Face name of a GGUF tensor.

    >>> hugging_face_name("blk.3.attn_q.weight")
    'model.layers.3.self_attn.q_proj.weight'

    Raises
    ------
    ValueError
        A tensor that the Llama family does not have.
    """
    parts = name.split(".")
    if len(parts) == 4 and parts[0] == "blk" and parts[2] in _NAMES:
        return f"model.layers.{parts[1]}.{_NAMES[parts[2]]}.{parts[3]}"
    if len(parts) == 2 and parts[0] in _TOP:
        return f"{_TOP[parts[0]]}.{parts[1]}"
    raise ValueError(f"tensor {name!r}: no part of a Llama decoder")


def unpermute(rows: np.ndarray, head_dim: int) -> np.ndarray:
    """Return q or k weights [heads * E, C] with each head's rows 0, 2, 4, ..., 1, 3, 5, ...

    >>> unpermute(np.arange(4)[:, None], 4).ravel().tolist()
    [0, 2, 1, 3]
    """
    by_pair = rows.reshape(-1, head_dim // 2, 2, rows.shape[1])
    return np.ascontiguousarray(by_pair.swapaxes(1, 2).reshape(rows.shape))
