"""SmolLM2-135M-Instruct out of its package: the recorded texts, the recorded drafter, its tokenizer."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from engine_tools import real
from tolerances import LOSSLESS_REAL, RECORDED_HEAD

from kdtree_cupy.engine import NGramDrafter, generate
from kdtree_cupy.engine.block_head import load_block_head
from kdtree_cupy.engine.lossless import check_mode, recorded
from kdtree_cupy.record.engine import read_text
from kdtree_cupy.record.rows import draft_rows
from kdtree_cupy.trace import bundled_traces, load_trace

pytestmark = pytest.mark.slow
FOLDER = os.environ.get("KDTREE_TRACES")


def greedy_traces():
    """Return the greedy traces at hand: the bundled one, and those in the folder KDTREE_TRACES."""
    found = [path for path in bundled_traces() if path.stem.endswith("_t0")]
    if FOLDER:
        found += sorted(Path(FOLDER).glob("smollm2_*_t0.npz"))
    return found


def sequence(trace, s):
    prompts, offsets = trace.extra["prompt_offsets"], trace.sequence_offsets
    prompt = trace.extra["prompt_tokens"][prompts[s] : prompts[s + 1]]
    return prompt.astype(np.int32), trace.tokens[offsets[s] : offsets[s + 1]]


def test_plain_decoding_writes_the_recorded_text():
    model, _ = real()
    prompt, response = sequence(load_trace(greedy_traces()[0]), 0)
    done = generate(model, [prompt], mode="ar", max_new=24)
    np.testing.assert_array_equal(done.tokens[0], response[:24])


@pytest.mark.parametrize("path", greedy_traces(), ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_every_recorded_token_is_the_best_one(path):
    model, _ = real()
    trace, flips, places = load_trace(path), [], 0
    count = trace.sequences if FOLDER else 3  # a pass over a text takes seconds on a busy CPU
    for s in range(count):
        prompt, response = sequence(trace, s)
        hidden, _ = read_text(model, np.concatenate([prompt, response[:-1]]), None)
        logits = model.logits(hidden[prompt.size - 1 :])
        wrong = np.flatnonzero(logits.argmax(-1) != response)
        best = np.sort(logits[wrong], axis=-1)
        flips += (best[:, -1] - best[:, -2]).tolist()
        places += response.size
    print(f"{path.stem}: {len(flips)} of {places} tokens differ, gaps {flips}")
    assert all(gap < LOSSLESS_REAL for gap in flips)
    assert len(flips) <= places // 1000


def test_another_runtime_writes_the_same():
    """Prompts, and greedy tokens one by one: each is the best one after those before it."""
    model, tokenizer = real()
    found = json.loads(Path(__file__).with_name("smollm2_texts.json").read_text(encoding="utf-8"))
    assert "transformers" in found["made_by"] and len(found["texts"]) == 6
    for text in found["texts"]:
        prompt, response = (np.array(text[name], np.int32) for name in ("prompt", "tokens"))
        np.testing.assert_array_equal(tokenizer.chat(text["question"]), prompt)
        hidden, _ = read_text(model, np.concatenate([prompt, response[:-1]]), None)
        np.testing.assert_array_equal(model.logits(hidden[prompt.size - 1 :]).argmax(-1), response)
    text = found["texts"][-2]
    done = generate(
        model, [np.array(text["prompt"])], drafter=NGramDrafter(model.vocab_size), budget=8,
        max_new=len(text["tokens"]), stop_tokens=model.config.stop_tokens,
    )  # fmt: skip
    np.testing.assert_array_equal(done.tokens[0], text["tokens"])


def test_trees_and_chains_write_the_same_text():
    model, _ = real()
    trace = load_trace(greedy_traces()[0])
    prompts = [sequence(trace, s)[0] for s in (0, 6)]
    plain = recorded(model, prompts, mode="ar", max_new=16)
    drafter = NGramDrafter(model.vocab_size)
    for mode, budget, page_size in (("chain", 15, 1), ("ddtree", 15, 16)):
        found = check_mode(
            model, plain, prompts, drafter, batch=2, mode=mode, budget=budget, max_new=16, page_size=page_size
        )
        print(mode, budget, found)
        assert found.flips == found.unexplained == 0
        assert found.difference <= LOSSLESS_REAL


def test_tokenizer_round_trips():
    model, tokenizer = real()
    text = "def f(x):\n    return x + 12345  # na\N{LATIN SMALL LETTER I WITH DIAERESIS}ve "
    text += "\N{GRINNING FACE}\n\n\tit's"
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert ids.max() < model.vocab_size
    assert [tokenizer.pieces[i] for i in tokenizer.encode("12345")] == [b"1", b"2", b"3", b"4", b"5"]
    special = tokenizer.encode("<|im_start|>user")
    assert (special[0], tokenizer.decode(special)) == (1, "user")
    prompt, _ = sequence(load_trace(bundled_traces()[0]), 0)
    question = tokenizer.decode(prompt).split("user\n", 1)[1].rsplit("\nassistant\n", 1)[0]
    np.testing.assert_array_equal(tokenizer.chat(question), prompt)  # as it was tokenized for the recording
    own = tokenizer.decode(tokenizer.chat("Hi", system="Be brief."))
    assert own == "system\nBe brief.\nuser\nHi\nassistant\n"


def test_block_head_drafts_what_was_recorded():
    weights = Path(FOLDER).parent / "drafter" / "smollm2_block15.safetensors" if FOLDER else None
    if weights is None or not weights.exists():
        pytest.skip("the block drafter's weights are not here (folder drafter beside KDTREE_TRACES)")
    model, _ = real()
    head = load_block_head(weights, model)
    trace = load_trace(greedy_traces()[0])
    prompt, response = sequence(trace, 0)
    text = np.concatenate([prompt, response[:12]])
    _, features = read_text(model, text, head)
    rows = draft_rows(head, text, features, prompt.size, 32, model.vocab_size)
    wanted = trace.draft_ids[:12], trace.draft_logprobs[:12]
    assert np.abs(rows.logprobs - wanted[1]).max() < RECORDED_HEAD  # recorded in float32, stored in bfloat16
    assert (rows.ids[..., 0] == wanted[0][..., 0]).mean() > 0.98
