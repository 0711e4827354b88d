"""The reference decoders against golden files, transformers and the engine."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from engine_tools import FAMILIES, golden, tiny
from tolerances import ENGINE_LOGITS, REFERENCE_LOGITS

from kdtree_cupy import kdtr
from kdtree_cupy.engine import generate
from kdtree_cupy.engine.config import read_config
from kdtree_cupy.engine.load import load_model, read_checkpoint
from kdtree_cupy.engine.lossless import recorded
from kdtree_cupy.refs.greedy_step import greedy, greedy_step
from kdtree_cupy.refs.model import forward

GENERATOR = Path(__file__).resolve().parents[1] / "refs" / "golden" / "make_greedy_step.py"
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


@pytest.mark.parametrize("family", FAMILIES)
def test_golden_file_is_made_again(family, tmp_path):
    done = subprocess.run([sys.executable, GENERATOR, tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    made, (_, _, kept) = kdtr.read(tmp_path / f"greedy_step_{family}.kdtr").arrays, golden(family)
    assert set(made) == set(kept)
    for name in made:  # logits come from matrix products, whose order of sums is the processor's
        if name in ("want.logits", "want.gaps"):
            np.testing.assert_allclose(made[name], kept[name], atol=REFERENCE_LOGITS, rtol=0, err_msg=name)
        else:
            np.testing.assert_array_equal(made[name], kept[name], err_msg=name)


@pytest.mark.parametrize("family", FAMILIES)
def test_engine_takes_the_golden_steps(family):
    _, _, kept = golden(family)
    found = recorded(tiny(family), [kept["prompt"]], mode="ar", max_new=len(kept["want.tokens"]))
    np.testing.assert_array_equal(found.generation.tokens[0], kept["want.tokens"])
    wanted = kept["want.logits"]
    assert np.abs(found.logits[0] - wanted).max() < ENGINE_LOGITS * np.abs(wanted).max()


@pytest.mark.parametrize("family", FAMILIES)
def test_float32_reference_takes_the_same_steps(family):
    config, weights, kept = golden(family)
    steps = greedy(config, weights, kept["prompt"], 4, np.float32)
    assert [step.token for step in steps] == kept["want.tokens"][:4].tolist()


def test_a_step_says_how_sure_it_is():
    config, weights, kept = golden("gqa")
    step = greedy_step(config, weights, kept["prompt"])
    best = np.sort(step.logits)[-2:]
    assert step.gap == best[1] - best[0] > 0
    assert step.token == step.logits.argmax()


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_checkpoints_of_transformers(name, tmp_path):
    torch = pytest.importorskip("torch", reason="transformers: torch is not installed")
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    kind, fields = CHECKPOINTS[name]
    torch.manual_seed(0)
    model = getattr(transformers, f"{kind}ForCausalLM")(getattr(transformers, f"{kind}Config")(**fields))
    for label, tensor in (*model.named_parameters(), *model.named_buffers()):
        if "norm" in label or "bias" in label:
            tensor.data += 0.1 * torch.randn_like(tensor)
    model.save_pretrained(tmp_path)
    tokens = torch.randint(0, 96, (1, 40))
    model.set_experts_implementation("eager")  # the others lack float64
    with torch.no_grad():
        wanted = model.eval().double()(tokens).logits[0].numpy()
    numbers = tokens[0].numpy()
    allowed = ENGINE_LOGITS * np.abs(wanted).max()  # their rotary part is float32
    reference = forward(read_config(tmp_path), read_checkpoint(tmp_path), numbers)
    assert np.abs(reference - wanted).max() < allowed
    engine, tokenizer = load_model(tmp_path)
    assert tokenizer is None
    found = recorded(engine, [numbers[:n] for n in (1, 17, 40)], mode="ar", max_new=1)
    for n, logits in zip((1, 17, 40), found.logits, strict=True):
        assert np.abs(logits[0] - wanted[n - 1]).max() < allowed


def test_long_prompts_are_read_in_pieces(monkeypatch):
    prompt = np.arange(50, dtype=np.int32) * 7 % 96
    whole = generate(tiny("mla"), [prompt], mode="ar", max_new=3)
    monkeypatch.setattr("kdtree_cupy.engine.session.CHUNK", 16)
    pieces = generate(tiny("mla"), [prompt], mode="ar", max_new=3)
    np.testing.assert_array_equal(whole.tokens[0], pieces.tokens[0])
