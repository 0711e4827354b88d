"""What a decoder looks like: the fields of ``config.json`` that the engine reads, checked once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

LATENT, ROPE = 512, 64
"""Numbers of a KV row of :func:`kdtree_cupy.verify_attn`: latent, rotary.  Smaller models are zero-padded."""


@dataclass(frozen=True)
class ModelConfig:
    """A decoder of the DeepSeek family (``kv_lora_rank`` given) or of the Llama family; Hugging Face names.

    Raises
    ------
    ValueError
        A size that does not fit, or a variant that the engine lacks.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int = 0
    head_dim: int = 0
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    rope_scaling: Mapping[str, Any] | None = None
    rope_interleave: bool = True
    tie_word_embeddings: bool = False
    max_position_embeddings: int = 2048
    hidden_act: str = "silu"
    model_type: str = "llama"
    q_lora_rank: int | None = None
    kv_lora_rank: int | None = None
    qk_nope_head_dim: int = 0
    qk_rope_head_dim: int = 0
    v_head_dim: int = 0
    n_routed_experts: int | None = None
    n_shared_experts: int | None = None
    num_experts_per_tok: int = 0
    moe_intermediate_size: int = 0
    n_group: int | None = None
    topk_group: int | None = None
    topk_method: str = "noaux_tc"
    scoring_func: str | None = None
    norm_topk_prob: bool = True
    routed_scaling_factor: float = 1.0
    eos_token_id: int | list[int] | None = None

    def __post_init__(self) -> None:
        if not self.num_key_value_heads:
            object.__setattr__(self, "num_key_value_heads", self.num_attention_heads)
        if not self.head_dim:
            object.__setattr__(self, "head_dim", self.hidden_size // self.num_attention_heads)
        if self.hidden_act != "silu":
            raise ValueError(f"hidden_act: got {self.hidden_act!r}, wanted 'silu'")
        if self.is_mla and not (self.kv_lora_rank <= LATENT and self.qk_rope_head_dim <= ROPE):
            got = f"kv_lora_rank {self.kv_lora_rank}, qk_rope_head_dim {self.qk_rope_head_dim}"
            raise ValueError(f"{got}: wanted at most {LATENT} and {ROPE}, the rows that the kernels take")
        if not self.is_mla and self.num_attention_heads % self.num_key_value_heads:
            got = f"{self.num_attention_heads} heads, {self.num_key_value_heads} key-value heads"
            raise ValueError(f"{got}: wanted a multiple")

    @property
    def is_mla(self) -> bool:
        """Whether attention is multi-head latent (DeepSeek, Kimi)."""
        return self.kv_lora_rank is not None

    @property
    def row_size(self) -> int:
        """Numbers of one KV row: latent and rotary ones, or the keys and the values of all groups."""
        return LATENT + ROPE if self.is_mla else 2 * self.num_key_value_heads * self.head_dim

    @property
    def scores_by_softmax(self) -> bool:
        """Whether the router uses a softmax (DeepSeek-V2) instead of sigmoids."""
        return (
            self.scoring_func or ("softmax" if self.model_type == "deepseek_v2" else "sigmoid")
        ) == "softmax"

    @property
    def stop_tokens(self) -> tuple[int, ...]:
        """Tokens that end a text."""
        if self.eos_token_id is None:
            return ()
        return tuple(self.eos_token_id) if isinstance(self.eos_token_id, list) else (self.eos_token_id,)

    @property
    def rope(self) -> dict[str, Any]:
        """``rope_theta``, ``rope_type`` and the numbers of the scaling."""
        scaling = dict(self.rope_scaling or {})
        kind = scaling.get("rope_type") or scaling.get("type") or "default"
        return {"rope_theta": self.rope_theta, **scaling, "rope_type": kind}


def from_dict(config: Mapping[str, Any]) -> ModelConfig:
    """Return the record of a ``config.json``; fields that the engine has no use for are left out.

    Parameters
    ----------
    config : mapping
        As in ``config.json``.  A text model inside another (``text_config``) is taken out.

    Raises
    ------
    ValueError
        A field is missing, or a value does not fit.
    """
    config = dict(config.get("text_config") or config)
    if config.get("rope_parameters"):  # newer spelling: base and scaling in one
        config["rope_scaling"] = config["rope_parameters"]
        config["rope_theta"] = config["rope_parameters"].get("rope_theta", 10000.0)
    known = {
        field.name: config[field.name] for field in fields(ModelConfig) if config.get(field.name) is not None
    }
    for name in (
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
    ):
        if name not in known:
            raise ValueError(f"config: {name} is missing")
    if "kv_lora_rank" in known:
        known["head_dim"] = 0  # some checkpoints store the rotary size here
    return ModelConfig(**known)


def read_config(folder: Path) -> dict[str, Any]:
    """Return ``config.json`` of a checkpoint folder as it is.

    Raises
    ------
    FileNotFoundError
        The folder has none.
    ValueError
        It is no JSON object.
    """
    found = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if not isinstance(found, dict):
        raise ValueError(f"{folder / 'config.json'}: got {type(found).__name__}, wanted a JSON object")
    return found
