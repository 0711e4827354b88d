"""Traces: what loads, what is refused and in which words, and what a trace says about itself."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from tiny import tiny_arrays, tiny_trace

from kdtree_cupy import kdtr
from kdtree_cupy.convert import write_arrays
from kdtree_cupy.errors import KdtrError
from kdtree_cupy.trace import bundled_traces, load_trace, make_trace
from kdtree_cupy.vocabulary import gpt2_bytes, pack_vocabulary, readable

LENGTHS = (9, 12, 2, 1, 0, 15)  # of tiny_arrays: T = 39, D = 4, K = 3, V = 12
HEADER = {"vocab_size": 12}


def full_arrays():
    """Return a trace with every optional array."""
    arrays, rng = tiny_arrays(LENGTHS), np.random.default_rng(1)
    pieces = [b"<end>", *(b" w%d" % i for i in range(11))]
    offsets, data = pack_vocabulary(pieces)
    return arrays | {
        "prompt_offsets": np.arange(7, dtype=np.int32), "prompt_tokens": rng.integers(0, 12, 6),
        "target_ids": np.argsort(rng.random((39, 12)), axis=1)[:, :2].astype(np.uint16),
        "target_logprobs": -np.sort(rng.random((39, 2)), axis=1).astype(np.float32),
        "draft_next_logprob": arrays["draft_logprobs"][:, :, -1] - np.float32(0.5),
        "vocab_offsets": offsets, "vocab_bytes": data,
    }  # fmt: skip


# The recorded traces


@pytest.mark.parametrize("path", bundled_traces(), ids=lambda path: path.stem)
def test_bundled_traces_are_what_their_readme_says(path):
    trace, readme = load_trace(path), (path.parent / "README.md").read_text(encoding="utf-8")
    sampled = path.stem.endswith("t1")
    row = next(line for line in readme.splitlines() if line.startswith(f"| `{path.name}`"))
    assert hashlib.sha256(path.read_bytes()).hexdigest() in row
    assert f"| {path.stat().st_size:,} |" in row and f"| {trace.tokens.size:,} |" in row
    assert f"| {trace.sequences} ({int(trace.ended().sum())}) |" in row
    assert (trace.depth, trace.width, trace.vocab_size, trace.sequences) == (15, 32, 49152, 12)
    assert trace.header["temperature"] == (1.0 if sampled else 0.0) and trace.header["stop_tokens"] == [2]
    assert trace.ended().all() != sampled and not trace.looping().any()
    assert "Apache-2.0" in trace.header["licence"] and "MIT" in trace.header["licence"]
    assert trace.draft_ids.dtype == np.uint16 and trace.draft_logprobs.dtype == np.float32


def test_bundled_traces_can_be_read_as_text():
    trace = load_trace(bundled_traces()[0])
    assert [trace.text(t) for t in trace.tokens[:6]] == ["```", "python", r"'\n'", "def", "' below'", "_"]
    assert trace.decode(trace.tokens[:8]) == "```python\ndef below_threshold("
    prompt = trace.extra["prompt_tokens"][: trace.extra["prompt_offsets"][1]]
    assert trace.decode(prompt).startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
    assert trace.decode(trace.tokens[trace.sequence_offsets[1:] - 1]) == "<|im_end|>" * 12


def test_greedy_text_is_the_targets_own_best_token():
    trace = load_trace(bundled_traces()[0])
    np.testing.assert_array_equal(trace.extra["target_ids"][:, 0], trace.tokens)


# What a trace says about itself


def test_derived_facts_by_hand():
    arrays = tiny_arrays(lengths=(5, 0, 1, 2), depth=2, width=2, vocab=9)
    arrays["tokens"] = np.array([4, 5, 4, 5, 4, 7, 8, 3])
    arrays["draft_ids"] = np.array(
        [[[5, 1], [1, 4]], [[1, 2], [5, 1]], [[5, 0], [1, 2]], [[0, 4], [1, 2]], [[7, 1], [1, 2]],
         [[8, 1], [1, 3]], [[1, 3], [3, 1]], [[1, 2], [1, 2]]]
    )  # fmt: skip
    trace = make_trace("x", {"vocab_size": 9, "stop_tokens": [3, 4]}, arrays)
    assert trace.lengths.tolist() == [5, 0, 1, 2] and trace.sequences == 4
    assert trace.sequence_of().tolist() == [0, 0, 0, 0, 0, 2, 3, 3]
    assert trace.ended().tolist() == [True, False, False, True]
    assert trace.distinct_bigrams().tolist() == [0.5, 1.0, 1.0, 1.0]
    assert not trace.looping().any()
    wanted = [[0, 1], [-1, 0], [0, -1], [1, -2], [-2, -2], [-2, -2], [1, -2], [-2, -2]]
    assert trace.true_ranks().tolist() == wanted
    summary = trace.summary()
    assert (summary["sequences_skipped"], summary["sequences_ended"], summary["longest_sequence"]) == (
        2,
        2,
        5,
    )
    assert repr(trace) == "Trace('x', 4 sequences, 8 tokens, D=2, K=2, V=9)"


def test_looping_is_a_quarter_of_distinct_bigrams():
    period = np.tile([1, 2], 20)  # 40 tokens, 39 bigrams, 2 distinct
    arrays = tiny_arrays(lengths=(40, 9, 10))
    arrays["tokens"] = np.concatenate([period, np.tile([1, 2], 5)[:9], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]])
    assert make_trace("x", {}, arrays).looping().tolist() == [True, True, False]  # 2/39, 2/8, 1


def test_stop_tokens_can_be_given_at_loading(tmp_path):
    kdtr.write(tmp_path / "a.kdtr", tiny_arrays() | {"tokens": np.full(39, 7)}, HEADER)
    assert not load_trace(tmp_path / "a.kdtr").ended().any()
    assert load_trace(tmp_path / "a.kdtr", stop_tokens=[7]).ended().tolist() == [n > 0 for n in LENGTHS]
    with pytest.raises(KdtrError, match=r"a.kdtr: header field 'stop_tokens': got 12, wanted .* 0..11"):
        load_trace(tmp_path / "a.kdtr", stop_tokens=[12])


@pytest.mark.parametrize("suffix", [".kdtr", ".npz", ".safetensors"])
def test_formats_load_alike(tmp_path, suffix):
    write_arrays(tmp_path / f"a{suffix}", full_arrays(), HEADER)
    trace, want = load_trace(tmp_path / f"a{suffix}"), make_trace("a", HEADER, full_arrays())
    assert trace.name == "a" and trace.path == tmp_path / f"a{suffix}"
    for name in ("sequence_offsets", "tokens", "draft_ids", "draft_logprobs", "draft_next_logprob"):
        np.testing.assert_array_equal(getattr(trace, name), getattr(want, name))
    assert set(trace.extra) == set(want.extra) and trace.text(1) == "' w0'"
    np.testing.assert_array_equal(trace.true_ranks(), want.true_ranks())


def test_float16_becomes_float32_exactly():
    arrays = full_arrays()
    half = {k: arrays[k].astype(np.float16) for k in ("draft_logprobs", "draft_next_logprob")}
    trace = make_trace("x", HEADER, arrays | half)
    assert trace.draft_logprobs.dtype == trace.draft_next_logprob.dtype == np.float32
    np.testing.assert_array_equal(trace.draft_logprobs, half["draft_logprobs"])
    assert trace.precision == 2.0**-10 > tiny_trace().precision


# Vocabularies


def test_gpt2_letters_stand_for_bytes():
    assert gpt2_bytes("Ġthe") == b" the" and gpt2_bytes("Ċ") == b"\n" and gpt2_bytes("Ã©") == "é".encode()
    every = "".join(chr(c) for c in (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x144)))
    assert sorted(gpt2_bytes(every)) == list(range(256))
    with pytest.raises(ValueError, match="' ' stands for no byte"):
        gpt2_bytes("a b")
    with pytest.raises(TypeError, match=r"pieces\[1\]: got str, wanted bytes"):
        pack_vocabulary([b"a", "b"])


@pytest.mark.parametrize(
    ("raw", "label"),
    [(b"def", "def"), (b" the", "' the'"), (b"\n", r"'\n'"), (b"\t x", r"'\t x'"), ("é".encode(), "é")],
)
def test_labels_show_blanks(raw, label):
    assert readable(raw) == label


def test_text_without_a_vocabulary_is_the_id():
    trace = tiny_trace()
    assert trace.text(7) == "7" and trace.decode([7, 8]) == "<7><8>"
    full = make_trace("x", HEADER, full_arrays())
    assert full.text(0) == "<end>" and full.text(99) == "99" and full.text(-1) == "-1"


def test_an_installation_without_data_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr("kdtree_cupy.trace.__file__", str(tmp_path / "a" / "b" / "trace.py"))
    with pytest.raises(FileNotFoundError, match="incomplete installation"):
        bundled_traces()
