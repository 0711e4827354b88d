"""docs/traces.md: its example runs as printed, and its tables name what the code knows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kdtree_cupy.trace import load_trace
from kdtree_cupy.trace_check import _HEADER_TYPES, OPTIONAL, REQUIRED, SCHEMA

TEXT = (Path(__file__).resolve().parents[1] / "docs" / "traces.md").read_text(encoding="utf-8")


def test_the_recording_example_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", TEXT, re.S)
    exec(compile(code, "docs/traces.md", "exec"), {"__name__": "example"})
    lines = capsys.readouterr().out.splitlines()
    taus = [float(re.search(r"tau (\d+\.\d+)", line)[1]) for line in lines]
    assert len(lines) == 3 and 1 < taus[0] < taus[1] <= taus[2] <= 7
    trace = load_trace("mine.kdtr")
    assert trace.lengths.tolist() == [40, 60, 80] and trace.ended().all()


def test_the_hugging_face_example_runs(tmp_path, monkeypatch):
    """The block as printed, but for the model's name: a random Llama and a tokenizer of seven words."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    words = ["<s>", "</s>", "one", "two", "three", "four", "five"]
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<s>")
    )
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="</s>", unk_token="<s>"
    ).save_pretrained(tmp_path / "model")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2
    )
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```py\n(.*?)```", TEXT, re.S)
    assert "path/or/name/of/a/model" in code
    exec(compile(code.replace("path/or/name/of/a/model", "model"), "docs/traces.md", "exec"), {})
    trace = load_trace("hf.kdtr")
    assert trace.width == 16 and trace.depth == 4 and trace.lengths.tolist()[0] > 1


@pytest.mark.parametrize("name", [*REQUIRED, *OPTIONAL, *_HEADER_TYPES, SCHEMA])
def test_every_array_and_field_is_described(name):
    assert re.search(rf"`{re.escape(name)}`", TEXT)
