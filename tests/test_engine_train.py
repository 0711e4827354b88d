"""Training a block drafter: the torch twin computes the same, the loss falls, the file loads and drafts."""

import numpy as np
import pytest
from engine_tools import prompts_for, tiny

from kdtree_cupy.cli import main
from kdtree_cupy.engine import generate
from kdtree_cupy.engine.block_head import BlockHead, load_block_head
from kdtree_cupy.engine.train_head import Recipe, save_head, shapes, train
from kdtree_cupy.record import record
from kdtree_cupy.record.engine import read_text

RECIPE = Recipe(depth=5, layers=2, heads=3, features=(0, 1), steps=40, roots=8, learning_rate=3e-3)


def test_the_torch_twin_computes_the_same():
    torch = pytest.importorskip("torch", reason="training: torch is not installed")
    from kdtree_cupy.engine.torch_head import forward

    model, rng = tiny("gqa"), np.random.default_rng(0)
    weights = {
        name: rng.standard_normal(shape).astype(np.float32) / shape[-1] ** 0.5
        for name, shape in shapes(RECIPE, model.config.hidden_size).items()
    }
    settings = {
        "block": "6",
        "d": "48",
        "heads": "3",
        "layers": "2",
        "rope_base": "10000",
        "feature_layers": "0,1",
    }
    head, text, roots = BlockHead(weights, settings, model), prompts_for(96, 9)[3], np.array([1, 4, 7])
    text = np.resize(text, 12)
    _, features = read_text(model, text, head)
    ids, logprobs = head.draft(text, features, roots, 96)
    tensors = {name: torch.tensor(array) for name, array in weights.items()}
    logits = forward(
        tensors,
        RECIPE,
        torch.tensor(model.embedding),
        torch.tensor(features),
        torch.tensor(text).long(),
        roots,
    )
    wanted = logits.log_softmax(-1).gather(-1, torch.tensor(ids).long()).numpy()
    np.testing.assert_allclose(logprobs, wanted, atol=1e-4)


@pytest.mark.slow
def test_a_drafter_learns_and_drafts(tmp_path):
    pytest.importorskip("torch", reason="training: torch is not installed")
    model, prompts = tiny("gqa"), prompts_for(96, 4)
    done = generate(model, prompts, mode="ar", max_new=40)
    texts = [(np.concatenate([p, t]), p.size) for p, t in zip(prompts, done.tokens, strict=True)]
    told = []
    trained = train(model, texts, RECIPE, progress=told.append)
    assert told == trained.losses
    assert np.mean(told[-5:]) < 0.8 * np.mean(told[:5])
    save_head(tmp_path / "head.safetensors", trained)
    drafter = load_block_head(tmp_path / "head.safetensors", model)
    assert (drafter.depth, drafter.features) == (5, (0, 1))
    wanted = generate(model, prompts, mode="ar", max_new=20)
    found = generate(model, prompts, drafter=drafter, budget=8, max_new=20)
    for one, other in zip(wanted.tokens, found.tokens, strict=True):
        np.testing.assert_array_equal(one, other)
    assert found.tau > 1
    with pytest.raises(ValueError, match="heads: got 5"):
        train(model, texts, Recipe(heads=5))
    with pytest.raises(ValueError, match="none has two response tokens"):
        train(model, [(prompts[0], prompts[0].size)], RECIPE)


@pytest.mark.slow
def test_command(tmp_path, capsys):
    pytest.importorskip("torch", reason="training: torch is not installed")
    from test_engine_cli import checkpoint, golden

    config, weights, _ = golden("gqa")
    folder = checkpoint(tmp_path / "model", config, weights)
    from kdtree_cupy.engine import NGramDrafter

    texts = record(
        tiny("gqa"), prompts_for(96, 2), NGramDrafter(96), tmp_path / "t.kdtr", width=1, max_new=20
    )
    arguments = ["train-drafter", texts, "-o", tmp_path / "h.safetensors", "--model", folder, "--steps", 3]
    arguments += ["--features", "0,1", "--heads", 3, "--depth", 4, "--layers", 1, "--roots", 4]
    assert main([str(a) for a in arguments]) == 0
    assert "mean loss" in capsys.readouterr().out
    load_block_head(tmp_path / "h.safetensors", tiny("gqa"))
