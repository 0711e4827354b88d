"""Small random checkpoints written by classes of transformers, in the layouts of DeepSeek, Kimi and Llama.

    python tests/make_checkpoints.py    # writes those in tests/checkpoints; needs torch and transformers

``tests/checkpoints`` holds some of them in bfloat16, with the logits that transformers computes in float64,
so that the layouts are tested where torch is not installed.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np

from kdtree_cupy.engine.config import read_config
from kdtree_cupy.engine.load import read_checkpoint
from kdtree_cupy.safetensors_file import write_safetensors

FOLDER = Path(__file__).with_name("checkpoints")
YARN = {
    "rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0, "original_max_position_embeddings": 64,
    "beta_fast": 32, "beta_slow": 1, "mscale": 0.707, "mscale_all_dim": 1.0,
}  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 5000.0, "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 16,
}  # fmt: skip
DEEPSEEK = {
    "vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "moe_intermediate_size": 16,
    "num_hidden_layers": 3, "num_attention_heads": 2, "num_key_value_heads": 2, "kv_lora_rank": 24,
    "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 12, "n_routed_experts": 8,
    "num_experts_per_tok": 3, "n_group": 4, "topk_group": 2, "first_k_dense_replace": 1,
    "n_shared_experts": 1,     "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "initializer_range": 0.2,
}  # fmt: skip
LLAMA = {
    "vocab_size": 96, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2,
    "num_attention_heads": 6, "num_key_value_heads": 2, "initializer_range": 0.2,
}  # fmt: skip
LITE = {"q_lora_rank": None, "topk_method": "greedy", "norm_topk_prob": False, "routed_scaling_factor": 1.0}
GROUPED = {"q_lora_rank": 20, "topk_method": "group_limited_greedy", "norm_topk_prob": False,
           "routed_scaling_factor": 4.0, "rope_parameters": YARN}  # fmt: skip
CHECKPOINTS = {
    "deepseek-v3": ("DeepseekV3", {**DEEPSEEK, "q_lora_rank": 20, "routed_scaling_factor": 2.5}),
    "deepseek-v3-yarn": ("DeepseekV3", {**DEEPSEEK, "q_lora_rank": 20, "rope_parameters": YARN}),
    "deepseek-v2-lite": ("DeepseekV2", {**DEEPSEEK, **LITE}),
    "deepseek-v2-groups": ("DeepseekV2", {**DEEPSEEK, **GROUPED}),
    "llama": ("Llama", LLAMA),
    "llama-3": ("Llama", {**LLAMA, "tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True,
                          "rope_parameters": LLAMA3}),
}  # fmt: skip
KIMI = {
    **DEEPSEEK, "q_lora_rank": 20, "n_group": 1, "topk_group": 1, "num_experts_per_tok": 2,
    "rope_parameters": YARN, "routed_scaling_factor": 2.827, "tie_word_embeddings": False,
}  # fmt: skip
KEPT = ("deepseek-v2-lite", "deepseek-v3-yarn", "kimi")


def write(name, folder, dtype="float32"):
    """Write a checkpoint; return tokens [40] and the logits [40, V] of transformers in float64."""
    if name == "kimi":
        made = make("DeepseekV3", KIMI, folder / "plain", dtype)
        as_kimi(folder / "plain", folder)
        shutil.rmtree(folder / "plain")
        return made
    return make(*CHECKPOINTS[name], folder, dtype)


def make(kind, fields, folder, dtype):
    """Write a checkpoint of a class of transformers."""
    import torch
    import transformers

    torch.manual_seed(0)
    model = getattr(transformers, f"{kind}ForCausalLM")(getattr(transformers, f"{kind}Config")(**fields))
    for label, tensor in (*model.named_parameters(), *model.named_buffers()):
        if "norm" in label or "bias" in label:
            tensor.data += 0.1 * torch.randn_like(tensor)
    model.to(getattr(torch, dtype)).save_pretrained(folder)
    model = type(model).from_pretrained(folder, dtype=torch.float32)  # rotary tables are not to be rounded
    tokens = torch.randint(0, 96, (1, 40))
    model.set_experts_implementation("eager")  # the others lack float64
    with torch.no_grad():
        return tokens[0].numpy(), model.eval().double()(tokens).logits[0].numpy()


def as_kimi(plain, folder):
    """Write a checkpoint anew as K2.5 and later have it: in a larger model, older rotary settings."""
    scaling = {name: value for name, value in YARN.items() if name not in ("rope_type", "rope_theta")}
    config = {name: value for name, value in read_config(plain).items() if name != "rope_parameters"}
    config |= {"model_type": "kimi_k2", "rope_theta": 10000.0, "rope_scaling": {**scaling, "type": "yarn"}}
    config |= {"scoring_func": "sigmoid", "topk_method": "noaux_tc", "num_nextn_predict_layers": 0}
    whole = {"model_type": "kimi_k25", "text_config": config, "vision_config": {"hidden_size": 8}}
    (folder / "config.json").write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
    tensors = {f"language_model.{name}": np.asarray(one) for name, one in read_checkpoint(plain).items()}
    tensors["vision_tower.patch_embed.weight"] = np.zeros((8, 8), np.float32)
    write_safetensors(folder / "model.safetensors", tensors)


def main():
    """Write the checkpoints that tests read without transformers."""
    for name in KEPT:
        folder = FOLDER / name
        shutil.rmtree(folder, ignore_errors=True)
        tokens, wanted = write(name, folder, "bfloat16")
        (folder / "generation_config.json").unlink(missing_ok=True)
        np.savez(folder / "wanted.npz", tokens=tokens.astype(np.int32), logits=wanted)


if __name__ == "__main__":
    main()
