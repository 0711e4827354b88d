"""The parts of the engine: cache pages, rotary tables, routing, counts, best tokens, configs, drafters."""

import ml_dtypes
import numpy as np
import pytest
from engine_tools import golden, prompts_for, small_gqa, tiny
from hypothesis import given
from hypothesis import strategies as st
from test_record import random_head
from tolerances import ENGINE_LOGITS, FLOAT64_SUM

import kdtree_cupy as kd
from kdtree_cupy.engine import Context, Model, NGramDrafter, from_dict, generate
from kdtree_cupy.engine.cache import PagedCache
from kdtree_cupy.engine.generate import open_session, run
from kdtree_cupy.engine.layers import computes_all, join_experts, moe, route, to_bfloat16
from kdtree_cupy.engine.rope import frequencies
from kdtree_cupy.engine.step import PARTS
from kdtree_cupy.engine.topk import best_tokens
from kdtree_cupy.refs import model as reference

BASE = {
    "vocab_size": 9,
    "hidden_size": 16,
    "intermediate_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
}
MOE = {"kv_lora_rank": 8, "n_routed_experts": 12, "num_experts_per_tok": 3, "n_group": 4, "topk_group": 2}


def test_pages_are_handed_out_and_taken_back():
    cache = PagedCache(2, 3, batch=2, capacity=10, page_size=4)
    cache.reserve(0, 5)
    cache.reserve(1, 4)
    cache.reserve(0, 9)
    used = cache.page_table[cache.page_table >= 0]
    assert sorted(used.tolist()) == sorted(set(used.tolist()))
    assert (cache.page_table >= 0).sum(1).tolist() == [3, 1]
    with pytest.raises(ValueError, match="request 1: 13 rows do not fit its capacity of 12"):
        cache.reserve(1, 13)
    cache.release(0)
    assert (cache.page_table[0] == -1).all()
    cache.reserve(1, 12)
    cache.layers[1][cache.page_table[1], :] = np.arange(12 * 3).reshape(3, 4, 3)
    np.testing.assert_array_equal(cache.view(1).rows(1, 0, 7).ravel(), np.arange(21))
    with pytest.raises(ValueError, match="page_size: got 0"):
        PagedCache(1, 1, 1, 1, page_size=0)


@pytest.mark.parametrize(
    "scaling",
    [
        None,
        {"type": "linear", "factor": 4.0},
        {"rope_type": "yarn", "factor": 40, "original_max_position_embeddings": 4096, "beta_fast": 32,
         "beta_slow": 1},
        {"type": "yarn", "factor": 8, "original_max_position_embeddings": 64, "mscale": 1.0,
         "mscale_all_dim": 0.7},
        {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4,
         "original_max_position_embeddings": 64},
    ],
)  # fmt: skip
def test_frequencies_are_those_of_the_reference(scaling):
    config = {**BASE, "rope_theta": 5e5, "rope_scaling": scaling}
    angles, factor = frequencies(from_dict(config), 64)
    wanted, growth = reference.rope_frequencies(config, 64)
    np.testing.assert_allclose(angles, wanted, rtol=FLOAT64_SUM)
    assert factor == pytest.approx(growth)


def test_unknown_scalings_are_refused():
    with pytest.raises(ValueError, match="rope_type: got 'dynamic'"):
        frequencies(from_dict({**BASE, "rope_scaling": {"type": "dynamic", "factor": 2}}), 8)


@pytest.mark.parametrize("method", ["noaux_tc", "group_limited_greedy", "greedy"])
@pytest.mark.parametrize("scoring", ["sigmoid", "softmax"])
def test_routing_is_that_of_the_reference(method, scoring):
    config = {**BASE, **MOE, "topk_method": method, "scoring_func": scoring, "routed_scaling_factor": 2.0}
    rng = np.random.default_rng(0)
    logits = np.round(rng.standard_normal((40, 12)), 1).astype(np.float32)  # with ties
    bias = (rng.standard_normal(12) * 0.1).astype(np.float32) if method == "noaux_tc" else None
    chosen, shares = route(logits, bias, from_dict(config), np)
    scores = (reference.softmax if scoring == "softmax" else reference.sigmoid)(logits)
    for token in range(40):
        np.testing.assert_array_equal(chosen[token], reference.route(config, scores[token], bias))
    np.testing.assert_allclose(shares.sum(-1), 2.0, rtol=1e-6)


@pytest.mark.parametrize(("experts", "joined"), [(12, True), (13, False)])
def test_experts_give_the_weighted_sum_of_the_reference(experts, joined):
    """Few experts are all computed side by side, many are visited one by one."""
    config = {
        **BASE, "kv_lora_rank": 8, "n_routed_experts": experts, "num_experts_per_tok": 3,
        "moe_intermediate_size": 5, "n_shared_experts": 1, "n_group": 1, "routed_scaling_factor": 2.0,
    }  # fmt: skip
    rng = np.random.default_rng(1)
    shapes = {"gate_proj": (5, 16), "up_proj": (5, 16), "down_proj": (16, 5)}
    names = [f"experts.{i}" for i in range(experts)] + ["shared_experts"]
    layer = {f"mlp.{n}.{part}.weight": rng.standard_normal(s) for n in names for part, s in shapes.items()}
    layer["mlp.gate.weight"] = rng.standard_normal((experts, 16))
    layer["mlp.gate.e_score_correction_bias"] = rng.standard_normal(experts)
    layer = {name: array.astype(np.float32) for name, array in layer.items()}
    x = rng.standard_normal((7, 16)).astype(np.float32)
    parts = {f"model.layers.0.{name}": array for name, array in layer.items()}
    wanted = reference.moe(reference.Layer(config, parts, "model.layers.0", np.float64), x.astype(float))
    assert computes_all(from_dict(config)) == joined
    if joined:
        join_experts(layer, from_dict(config), np)
    got = moe(x, layer, from_dict(config), np)
    np.testing.assert_allclose(got, wanted, atol=ENGINE_LOGITS * np.abs(wanted).max())


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False, allow_subnormal=False)))
def test_bfloat16_rounds_like_the_type(values):
    array = np.array(values, np.float32)
    np.testing.assert_array_equal(to_bfloat16(array), array.astype(ml_dtypes.bfloat16).astype(np.float32))


@given(st.integers(0, 2**32 - 1), st.integers(1, 60), st.integers(1, 60))
def test_best_tokens_are_those_of_the_stage(seed, vocab, width):
    width = min(width, vocab)
    rng = np.random.default_rng(seed)
    logits = np.round(3 * rng.standard_normal((2, 3, vocab)), 1).astype(np.float32)
    ids, logprobs = best_tokens(logits, width)
    wanted = kd.topk_logprob(logits, width, library=tiny("gqa").library)
    np.testing.assert_array_equal(ids, wanted.ids)
    np.testing.assert_allclose(logprobs, wanted.logprobs, rtol=2.0**-23, atol=2.0**-23)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=40), st.integers(1, 12))
def test_counts_make_distributions(text, width):
    vocab = 12
    ids, logprobs = NGramDrafter(vocab, depth=4)([Context(np.int32(text))], vocab)
    assert (np.sort(ids[0], axis=-1) == np.arange(vocab)).all()
    np.testing.assert_allclose(np.exp(logprobs[0].astype(float)).sum(-1), 1.0, rtol=1e-5)
    assert (np.diff(logprobs[0]) <= 0).all()
    assert (logprobs <= 0).all()
    tied = np.diff(logprobs[0]) == 0
    assert (np.diff(ids[0])[tied] > 0).all()
    short, few = NGramDrafter(vocab, depth=4)([Context(np.int32(text))], width)
    np.testing.assert_array_equal(short, ids[..., :width])
    np.testing.assert_array_equal(few, logprobs[..., :width])


def test_counts_copy_from_the_text_and_from_a_corpus():
    text = np.int32([1, 2, 3, 4, 5, 6, 9, 1, 2, 3])
    ids, _ = NGramDrafter(10, depth=3)([Context(text)], 1)
    assert ids[0, :, 0].tolist() == [4, 5, 6]
    ids, _ = NGramDrafter(10, depth=3, corpus=[[7, 8, 0, 7], [7, 8, 0, 7]])([Context(np.int32([7, 8]))], 1)
    assert ids[0, :2, 0].tolist() == [0, 7]


def test_drafters_are_held_to_their_promise():
    config, weights = small_gqa(9)
    model, prompt = Model(from_dict(config), weights), [np.int32([1])]

    class Short(NGramDrafter):
        def __call__(self, contexts, width):
            ids, logprobs = super().__call__(contexts, width)
            return ids[:, :2], logprobs

    with pytest.raises(ValueError, match=r"drafter: ids: got shape \(1, 2, 4\), wanted \[b=1, D=3, K=4\]"):
        generate(model, prompt, drafter=Short(9, 3), budget=4)
    with pytest.raises(TypeError, match="no int attribute 'depth'"):
        generate(model, prompt, drafter=lambda contexts, width: None)
    with pytest.raises(TypeError, match="drafter: got None"):
        generate(model, prompt)
    for options, message in (
        ({"mode": "tree"}, "mode: got 'tree'"),
        ({"budget": 2000}, r"budget: got 2000, wanted 0\.\.1024"),
        ({"max_new": 0}, "max_new: got 0"),
        ({"seed": [(0, 0), (0, 1)]}, "seed: got 2 pairs"),
    ):
        with pytest.raises(ValueError, match=message):
            generate(model, prompt, drafter=NGramDrafter(9), **options)


def test_stop_tokens_end_a_text_and_belong_to_it():
    model, prompts = tiny("gqa"), prompts_for(96, 4)
    free = generate(model, prompts, mode="ar", max_new=30)
    stop = int(free.tokens[0][9])
    wanted = []
    for tokens in free.tokens:
        hits = np.flatnonzero(tokens == stop)
        wanted.append(tokens[: hits[0] + 1] if hits.size else tokens)
    for mode in ("ar", "chain", "ddtree"):
        done = generate(model, prompts, mode=mode, drafter=NGramDrafter(96), max_new=30, stop_tokens=[stop])
        for got, want in zip(done.tokens, wanted, strict=True):
            np.testing.assert_array_equal(got, want)
        assert sum(len(r.tokens) for r in done.rounds) == sum(len(t) - 1 for t in done.tokens)


def test_rounds_tell_what_happened():
    model, prompt, told = tiny("gqa"), prompts_for(96, 1), []
    done = generate(model, prompt, drafter=NGramDrafter(96), budget=6, max_new=20, on_round=told.append)
    assert told[0].index == 0 and told[0].tree is None
    assert told[1:] == done.rounds
    text = [token for one in told for token in one.tokens]
    assert text == done.tokens[0].tolist()
    place = 0
    for one in done.rounds:
        assert one.root == place
        assert one.path[0] == 0
        assert one.tree.tokens[0, 0] == done.tokens[0][place]
        place += len(one.tokens)
    assert done.tau == pytest.approx(19 / len(done.rounds))
    assert np.isnan(generate(model, prompt, mode="ar", max_new=1).tau)


def test_a_clock_is_told_of_every_part_of_every_round():
    told = []
    session = open_session(
        tiny("gqa"), prompts_for(96, 2), drafter=NGramDrafter(96), budget=3, max_new=6, clock=told.append
    )
    done = run(session)
    rounds = max(one.index for one in done.rounds)
    assert told == ["draft", *PARTS, "host"] * rounds
    assert set(PARTS) == {"build", "layers", "head", "accept_commit"}


@pytest.mark.parametrize("with_features", [False, True])
def test_a_batch_takes_the_place_of_one_that_has_ended(with_features):
    config, weights, _ = golden("gqa")
    model, fresh = (Model(from_dict(config), weights) for _ in range(2))
    drafter, other = (random_head(m) if with_features else NGramDrafter(96) for m in (model, fresh))
    prompts = [prompts_for(96, 2, seed=seed) for seed in range(2)]
    options = {"budget": 4, "max_new": 9, "temperature": 1.0}
    first, second = (
        open_session(model, prompts[0], drafter=drafter, **options, seed=seed) for seed in range(2)
    )
    run(first)
    again = open_session(model, prompts[1], drafter=drafter, **options, seed=5)
    assert again.cache is first.cache
    assert second.cache is not first.cache  # it was opened while the first was at work
    wanted = generate(fresh, prompts[1], drafter=other, **options, seed=5)
    for got, tokens in zip(run(again).tokens, wanted.tokens, strict=True):
        np.testing.assert_array_equal(got, tokens)
    larger = open_session(model, prompts[1] * 2, drafter=drafter, **options)
    assert larger.cache is not first.cache
