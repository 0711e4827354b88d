"""Recordings: they replay to what live decoding accepted, and continue after an interruption."""

import re
from pathlib import Path

import numpy as np
import pytest
from engine_tools import prompts_for, real, small_gqa, tiny

from kdtree_cupy.engine import Model, NGramDrafter, from_dict, generate
from kdtree_cupy.engine.block_head import BlockHead
from kdtree_cupy.policies import chain, ddtree
from kdtree_cupy.record import draft_rows, record
from kdtree_cupy.replay import acceptance, jump
from kdtree_cupy.trace import load_trace

POLICIES = {"chain": chain, "ddtree": ddtree}


def random_head(model: Model, depth: int = 6, features: str = "0,1", seed: int = 0) -> BlockHead:
    """Return a block drafter with random weights for a small model."""
    rng, d, layers = np.random.default_rng(seed), model.config.hidden_size, 2
    shapes = {"fc": (d, 2 * d), "fn": (d,), "inp": (d, d), "norm": (d,), "out": (d, d)}
    for i in range(layers):
        shapes |= {f"layers.{i}.{name}": (d, d) for name in ("q", "k", "v", "o")}
        shapes |= {f"layers.{i}.{name}": (d,) for name in ("n1", "nc", "n2")}
        shapes |= {f"layers.{i}.{name}": (d // 2,) for name in ("qn", "kn")}
        shapes |= {f"layers.{i}.g": (2 * d, d), f"layers.{i}.u": (2 * d, d), f"layers.{i}.dn": (d, 2 * d)}
    weights = {
        f"{name}.weight": rng.normal(size=s).astype(np.float32) / s[-1] ** 0.5 for name, s in shapes.items()
    }
    weights["mask"] = rng.normal(size=d).astype(np.float32)
    settings = {"block": str(depth + 1), "d": str(d), "heads": "2", "layers": str(layers)}
    settings |= {"rope_base": "10000", "feature_layers": features}
    return BlockHead(weights, settings, model)


def live_rounds(model, prompts, drafter, mode, budget, **options):
    """Return (sequence, root, tokens) of the rounds of live decoding, by sequence."""
    done = generate(model, prompts, mode=mode, drafter=drafter, budget=budget, **options)
    return sorted((r.request, r.root, len(r.tokens)) for r in done.rounds), done.tokens


def assert_replays(path, model, prompts, drafter, budget, modes=("chain", "ddtree"), **options):
    trace = load_trace(path)
    for mode in modes:
        rounds, tokens = live_rounds(model, prompts, drafter, mode, budget, **options)
        replayed = jump(trace, acceptance(trace, POLICIES[mode], [budget]).accepted[:, 0])
        roots = replayed.root - trace.sequence_offsets[replayed.sequence]
        found = list(zip(replayed.sequence.tolist(), roots.tolist(), replayed.tokens.tolist(), strict=True))
        np.testing.assert_array_equal(trace.tokens, np.concatenate(tokens))
        assert found == rounds
    return trace


@pytest.mark.parametrize("temperature", [0.0, 1.2])
def test_a_recording_replays_to_what_live_decoding_accepted(temperature, tmp_path):
    model, prompts, drafter = tiny("gqa"), prompts_for(96, 5), NGramDrafter(96, depth=7)
    options = {"max_new": 40, "temperature": temperature, "seed": 3}
    header = {"target": "tiny", "stop_tokens": [11]}
    path = record(model, prompts, drafter, tmp_path / "t.kdtr", width=32, batch=2, header=header, **options)
    trace = assert_replays(path, model, prompts, drafter, 32, stop_tokens=[11], **options)
    assert trace.draft_next_logprob is not None
    assert trace.width == 32
    np.testing.assert_array_equal(trace.extra["prompt_tokens"], np.concatenate(prompts))
    if temperature == 0:
        np.testing.assert_array_equal(trace.extra["target_ids"][:, 0], trace.tokens)


def test_a_drafter_with_features_replays_too(tmp_path):
    model, prompts = tiny("gqa"), prompts_for(96, 3)
    drafter = random_head(model)
    path = record(model, prompts, drafter, tmp_path / "t.kdtr", width=24, max_new=24)
    assert_replays(path, model, prompts, drafter, 24, max_new=24)


def test_a_head_drafts_the_same_alone_and_for_a_whole_text():
    model, prompt = tiny("mla"), prompts_for(96, 8)[3]
    drafter, seen = random_head(model), []

    class Watched:
        depth, features = drafter.depth, drafter.features

        def __call__(self, contexts, width):
            rows = drafter(contexts, width)
            seen.append((len(contexts[0].tokens), *rows))
            return rows

    done = generate(model, [prompt], drafter=Watched(), budget=8, max_new=12)
    text = np.concatenate([prompt, done.tokens[0]])
    from kdtree_cupy.record.engine import read_text

    _, features = read_text(model, text, drafter)
    rows = draft_rows(drafter, text, features, prompt.size, 8, 96)
    for size, ids, logprobs in seen:
        np.testing.assert_array_equal(ids[0], rows.ids[size - 1 - prompt.size])
        np.testing.assert_allclose(logprobs[0], rows.logprobs[size - 1 - prompt.size], atol=1e-4)


def test_an_interrupted_recording_goes_on(tmp_path):
    config, weights = small_gqa(40)
    model, prompts, drafter = Model(from_dict(config), weights), prompts_for(40, 5), NGramDrafter(40, 4)
    options = {"width": 8, "max_new": 12, "batch": 2, "temperature": 0.8, "header": {"target": "small"}}
    whole = record(model, prompts, drafter, tmp_path / "whole.kdtr", **options)
    asked = []

    class Failing(NGramDrafter):
        def __call__(self, contexts, width):
            asked.append(len(contexts))
            if len(asked) == 4:
                raise KeyboardInterrupt
            return super().__call__(contexts, width)

    with pytest.raises(KeyboardInterrupt):
        record(model, prompts, Failing(40, 4), tmp_path / "parts.kdtr", **options)
    assert not (tmp_path / "parts.kdtr").exists()
    done = []
    parts = record(model, prompts, drafter, tmp_path / "parts.kdtr", progress=done.append, **options)
    assert done == [3, 1, 1]
    assert parts.read_bytes() == whole.read_bytes()


def test_width_is_checked():
    rows = draft_rows(NGramDrafter(10, 2), np.int32([1, 2, 1]), None, 1, 10, 10)
    assert rows.next_logprob is None
    assert rows.ids.shape == (2, 2, 10)
    with pytest.raises(ValueError, match=r"width: got 11, wanted 1\.\.10"):
        draft_rows(NGramDrafter(10, 2), np.int32([1, 2, 1]), None, 1, 11, 10)


@pytest.mark.slow
def test_hugging_face_models(tmp_path):
    torch = pytest.importorskip("torch", reason="record.hf: torch is not installed")
    transformers = pytest.importorskip("transformers", reason="record.hf: transformers is not installed")
    from kdtree_cupy.record import hf

    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=96, hidden_size=48, intermediate_size=80, num_hidden_layers=2, num_attention_heads=6,
        num_key_value_heads=2, initializer_range=0.2,
    )  # fmt: skip
    theirs = transformers.LlamaForCausalLM(config).eval()
    theirs.save_pretrained(tmp_path / "model")
    from kdtree_cupy.engine.load import load_model

    ours, _ = load_model(tmp_path / "model")
    prompts, options = prompts_for(96, 3), {"width": 16, "max_new": 20, "header": {"target": "t"}}
    for drafter in (NGramDrafter(96, 5), random_head(ours, features="0,0")):
        one = load_trace(hf.record(theirs, prompts, drafter, tmp_path / f"{drafter.depth}a.kdtr", **options))
        other = load_trace(record(ours, prompts, drafter, tmp_path / f"{drafter.depth}b.kdtr", **options))
        np.testing.assert_array_equal(one.tokens, other.tokens)
        np.testing.assert_array_equal(one.draft_ids[..., 0], other.draft_ids[..., 0])
        np.testing.assert_allclose(one.draft_logprobs, other.draft_logprobs, atol=1e-3)
        many = load_trace(
            hf.record(theirs, prompts, drafter, tmp_path / f"{drafter.depth}c.kdtr", batch=2, **options)
        )
        np.testing.assert_array_equal(many.tokens, one.tokens)
        np.testing.assert_array_equal(many.sequence_offsets, one.sequence_offsets)
        np.testing.assert_allclose(many.draft_logprobs, one.draft_logprobs, atol=1e-4)
        np.testing.assert_allclose(many.extra["target_logprobs"], one.extra["target_logprobs"], atol=1e-4)
    with pytest.raises(ValueError, match="batch: got 0"):
        hf.record(theirs, prompts, drafter, tmp_path / "x.kdtr", batch=0, **options)
    with pytest.raises(ValueError, match="wanted layers below 1"):
        hf.record(theirs, prompts, random_head(ours), tmp_path / "x.kdtr", **options)
    sampled = hf.record(theirs, prompts, NGramDrafter(96, 5), tmp_path / "s.kdtr", temperature=1.0, **options)
    assert load_trace(sampled).header["temperature"] == 1.0


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_an_interrupted_recording_of_a_hugging_face_model_goes_on(temperature, tmp_path):
    torch = pytest.importorskip("torch", reason="record.hf: torch is not installed")
    transformers = pytest.importorskip("transformers", reason="record.hf: transformers is not installed")
    from kdtree_cupy.record import hf

    torch.manual_seed(0)
    sizes = {"vocab_size": 24, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, num_attention_heads=2)).eval()
    prompts, drafter = prompts_for(24, 5), NGramDrafter(24, 3)
    options = {"width": 8, "max_new": 12, "batch": 2, "seed": 7, "temperature": temperature}
    options["header"] = {"target": "t", "stop_tokens": [5, 9]}
    whole = hf.record(model, prompts, drafter, tmp_path / "whole.kdtr", **options)
    ended = [load_trace(whole).tokens[end - 1] in (5, 9) for end in load_trace(whole).sequence_offsets[1:]]
    lengths = load_trace(whole).lengths
    assert all(length == 12 or end for length, end in zip(lengths, ended, strict=True))

    def stop_after_three(count):
        stop_after_three.done += count
        if stop_after_three.done == 3:
            raise KeyboardInterrupt

    stop_after_three.done = 0
    with pytest.raises(KeyboardInterrupt):
        hf.record(model, prompts, drafter, tmp_path / "parts.kdtr", progress=stop_after_three, **options)
    with pytest.raises(ValueError, match="header field 'max_new': got 9"):
        hf.record(model, prompts, drafter, tmp_path / "parts.kdtr", **options | {"max_new": 9})
    with pytest.raises(ValueError, match="header field 'prompts'"):
        hf.record(model, prompts[::-1], drafter, tmp_path / "parts.kdtr", **options)
    told = []
    parts = hf.record(model, prompts, drafter, tmp_path / "parts.kdtr", progress=told.append, **options)
    assert told == [3, 1, 1]
    assert parts.read_bytes() == whole.read_bytes()


@pytest.mark.slow
def test_the_example_of_the_docs_runs(tmp_path, monkeypatch):
    pytest.importorskip("torch", reason="record.hf: torch is not installed")
    transformers = pytest.importorskip("transformers", reason="record.hf: transformers is not installed")
    tokenizers = pytest.importorskip("tokenizers", reason="record.hf: tokenizers is not installed")
    words = {word: i for i, word in enumerate(["end", "one", "two", "three", "four", "five"])}
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="end"))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="end").save_pretrained(tmp_path)
    config = transformers.LlamaConfig(
        vocab_size=20, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
    )
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path)
    text = (Path(__file__).resolve().parents[1] / "docs" / "traces.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```py\n(.*?)```", text, re.S)
    monkeypatch.chdir(tmp_path)
    code = code.replace("path/or/name/of/a/model", str(tmp_path))
    exec(compile(code, "docs/traces.md", "exec"), {"__name__": "example"})
    trace = load_trace("hf.kdtr")
    assert (trace.sequences, trace.depth, trace.width) == (2, 4, 16)
    assert trace.lengths.max() > 1


@pytest.mark.slow
def test_smollm2_records_and_replays(tmp_path):
    model, tokenizer = real()
    prompts = [tokenizer.chat("Say hello."), tokenizer.chat("List three colours.")]
    drafter = NGramDrafter(model.vocab_size, 8)
    path = record(model, prompts, drafter, tmp_path / "t.kdtr", width=16, max_new=12)
    assert_replays(path, model, prompts, drafter, 16, modes=("ddtree",), max_new=12)
