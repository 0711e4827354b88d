"""The reference decoders against golden files, transformers and the engine."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from engine_tools import FAMILIES, golden, tiny
from make_checkpoints import CHECKPOINTS, FOLDER, KEPT, write
from tolerances import ENGINE_LOGITS, REFERENCE_LOGITS

from kdtree_cupy import kdtr
from kdtree_cupy.engine import generate
from kdtree_cupy.engine.config import read_config
from kdtree_cupy.engine.load import load_model, read_checkpoint
from kdtree_cupy.engine.lossless import recorded
from kdtree_cupy.refs.greedy_step import greedy, greedy_step
from kdtree_cupy.refs.model import forward

GENERATOR = Path(__file__).resolve().parents[1] / "refs" / "golden" / "make_greedy_step.py"


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


def assert_reads(folder, tokens, wanted):
    """Assert that the reference gives these logits, and the engine those after 1, 17 and 40 tokens."""
    allowed = ENGINE_LOGITS * np.abs(wanted).max()  # the rotary part of transformers is float32
    engine, tokenizer = load_model(folder)
    assert tokenizer is None
    found = recorded(engine, [tokens[:n] for n in (1, 17, 40)], mode="ar", max_new=1)
    for n, logits in zip((1, 17, 40), found.logits, strict=True):
        assert np.abs(logits[0] - wanted[n - 1]).max() < allowed
    config = read_config(folder)
    reference = forward(config.get("text_config", config), read_checkpoint(folder), tokens)
    assert np.abs(reference - wanted).max() < allowed


@pytest.mark.parametrize("name", [*CHECKPOINTS, "kimi"])
def test_checkpoints_of_transformers(name, tmp_path):
    pytest.importorskip("torch", reason="transformers: torch is not installed")
    pytest.importorskip("transformers", reason="transformers is not installed")
    assert_reads(tmp_path, *write(name, tmp_path))


@pytest.mark.parametrize("name", KEPT)
def test_kept_checkpoints_of_transformers(name):
    """Where torch is not installed."""
    with np.load(FOLDER / name / "wanted.npz") as wanted:
        assert_reads(FOLDER / name, wanted["tokens"], wanted["logits"])


def test_long_prompts_are_read_in_pieces(monkeypatch):
    prompt = np.arange(50, dtype=np.int32) * 7 % 96
    whole = generate(tiny("mla"), [prompt], mode="ar", max_new=3)
    monkeypatch.setattr("kdtree_cupy.engine.session.CHUNK", 16)
    pieces = generate(tiny("mla"), [prompt], mode="ar", max_new=3)
    np.testing.assert_array_equal(whole.tokens[0], pieces.tokens[0])
