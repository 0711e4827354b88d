"""Top-k: order by logit then id, log-probs of the full softmax."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
from conftest import Backend, run_into_poison
from hypothesis import given
from hypothesis import strategies as st
from tolerances import assert_logprobs

import kdtree_cupy as kd

DTYPES = [np.float32, np.float16, ml_dtypes.bfloat16]
NON_FINITE = 1
BACKENDS = ("numpy", "host", "cuda")


def top(backend: Backend, row, k: int, dtype=np.float32, **options) -> tuple[list[int], np.ndarray]:
    """Return ids and log-probs of one row."""
    logits = np.array(row, np.float32).astype(dtype).reshape(1, 1, -1)
    result = run_into_poison(backend, kd.topk_logprob, logits, k, **options)
    return result.ids[0, 0].tolist(), result.logprobs[0, 0]


def exact(row: np.ndarray, ids: list[int], temperature: float = 1.0) -> np.ndarray:
    """Return float64 log-probs of ``ids`` by exactly rounded sums over the whole row."""
    x = [float(v) / temperature for v in row]
    peak = max(x)
    log_total = math.log(math.fsum(math.exp(v - peak) for v in x))
    return np.array([min(0.0, (x[i] - peak) - log_total) for i in ids])


@given(
    row=st.lists(st.sampled_from([-np.inf, -3.0, -0.0, 0.0, 1.5, 2.0, 1e-40]), min_size=1, max_size=12),
    data=st.data(),
)
def test_order_is_logit_then_id(backend, row, data):
    k = data.draw(st.integers(1, len(row)))
    ids, _ = top(backend, row, k)
    row = np.float32(row).tolist()
    assert ids == sorted(range(len(row)), key=lambda i: (-row[i], i))[:k]


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize(("vocab", "k"), [(1, 1), (2, 2), (33, 33), (257, 16), (5003, 64), (32000, 128)])
@pytest.mark.parametrize("scale", [0.3, 3.0, 40.0])
def test_logprobs_are_those_of_the_full_softmax(backend, dtype, vocab, k, scale):
    logits = (scale * np.random.default_rng(vocab).standard_normal((2, 3, vocab))).astype(dtype)
    result = backend.run(kd.topk_logprob, logits, k)
    for b, d in np.ndindex(2, 3):
        row = logits[b, d].astype(np.float64)
        ids = result.ids[b, d].tolist()
        order = sorted(range(vocab), key=lambda i: (-row[i], i))[:k]
        assert ids == order
        assert_logprobs(result.logprobs[b, d], exact(row, ids))
    assert (result.logprobs <= 0).all() and (np.diff(result.logprobs, axis=-1) <= 0).all()
    assert result.status.tolist() == [0, 0]


def test_large_vocabulary_with_ties(backend):
    """bfloat16 logits of a real vocabulary size: nearly every row ties within the ranks kept."""
    logits = np.random.default_rng(1).standard_normal((1, 2, 163_840)).astype(ml_dtypes.bfloat16)
    result = backend.run(kd.topk_logprob, logits, 1024)
    for d in range(2):
        row = logits[0, d].astype(np.float32)
        np.testing.assert_array_equal(result.ids[0, d], np.argsort(-row, kind="stable")[:1024])
        assert len(np.unique(row[result.ids[0, d]])) < 1024


def test_equal_logits(backend):
    ids, logprobs = top(backend, [0.25] * 100, 7)
    assert ids == list(range(7))
    assert_logprobs(logprobs, np.full(7, -math.log(100)))


def test_one_dominant_token(backend):
    ids, logprobs = top(backend, [0.0, 200.0, 0.0, -1.0], 3)
    assert ids == [1, 0, 2]
    np.testing.assert_array_equal(logprobs, np.float32([0.0, -200.0, -200.0]))


def test_extreme_logits_do_not_overflow(backend):
    big = float(np.finfo(np.float32).max)
    ids, logprobs = top(backend, [-big, big, 0.0, big], 4)
    assert ids == [1, 3, 2, 0]
    assert_logprobs(logprobs[:2], np.full(2, -math.log(2)))
    assert logprobs[2] == np.float32(-big) and logprobs[3] == -np.inf


def test_subnormal_logits_are_told_apart(backend):
    ids, _ = top(backend, [1e-45, -1e-45, 3e-45, 0.0, -0.0], 5)
    assert ids == [2, 0, 3, 4, 1]


@pytest.mark.parametrize("temperature", [0.25, 1.0, 1.7])
def test_temperature(backend, temperature):
    row = np.random.default_rng(3).standard_normal(50).astype(np.float32)
    ids, logprobs = top(backend, row, 10, temperature=temperature)
    assert ids == np.argsort(-row, kind="stable")[:10].tolist()
    assert_logprobs(logprobs, exact(row, ids, temperature))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("where", [0, 5, 99])
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
def test_a_row_that_is_not_finite(backend, bad, where, dtype):
    logits = np.random.default_rng(0).standard_normal((3, 2, 100)).astype(dtype)
    clean = backend.run(kd.topk_logprob, logits, 4)
    logits[1, 0, where] = bad
    result = backend.run(kd.topk_logprob, logits, 4)
    assert result.status.tolist() == [0, NON_FINITE, 0]
    assert np.isnan(result.logprobs[1, 0]).all() and result.ids[1, 0].tolist() == [0, 1, 2, 3]
    for b, d in [(0, 0), (0, 1), (1, 1), (2, 0), (2, 1)]:
        np.testing.assert_array_equal(result.logprobs[b, d], clean.logprobs[b, d])
        np.testing.assert_array_equal(result.ids[b, d], clean.ids[b, d])
    with pytest.raises(ValueError, match=r"topk_logprob: status\[1\] = 1: NaN or \+inf"):
        backend.run(kd.topk_logprob, logits, 4, check=True)


def test_minus_infinity(backend):
    ids, logprobs = top(backend, [-np.inf, 1.0, -np.inf, 1.0], 4)
    assert ids == [1, 3, 0, 2]
    assert_logprobs(logprobs, np.array([-math.log(2)] * 2 + [-np.inf] * 2))
    ids, logprobs = top(backend, [-np.inf] * 9, 4)
    assert ids == [0, 1, 2, 3] and (logprobs == -np.inf).all()


@pytest.mark.parametrize("pad", [50.0, np.nan, np.inf])
def test_padding_of_the_vocabulary_takes_no_part(backend, pad):
    row = np.random.default_rng(4).standard_normal(16).astype(np.float32)
    row[10:] = pad
    ids, logprobs = top(backend, row, 10, valid_vocab=10)
    alone_ids, alone = top(backend, row[:10], 10)
    assert ids == alone_ids
    np.testing.assert_array_equal(logprobs, alone)


def test_vocab_map_is_applied_after_ties(backend):
    reverse = np.arange(5, dtype=np.int32)[::-1].copy() + 100
    ids, _ = top(backend, [1.0, 2.0, 2.0, 2.0, 0.0], 4, vocab_map=reverse)
    assert ids == [103, 102, 101, 104]


def test_vocab_map_must_be_a_map(backend):
    logits, good = np.zeros((1, 1, 5), np.float32), np.int32([7, 3, 0, -1, -1])
    backend.run(kd.topk_logprob, logits, 2, vocab_map=good, valid_vocab=3)  # padding is not looked at
    with pytest.raises(ValueError, match=r"vocab_map\[3\]: got -1, wanted a token id >= 0"):
        backend.run(kd.topk_logprob, logits, 2, vocab_map=good.copy())
    with pytest.raises(ValueError, match="vocab_map: got 3 at 1 and at 4, wanted each token once"):
        backend.run(kd.topk_logprob, logits, 2, vocab_map=np.int32([7, 3, 0, 1, 3]))


def test_result_builds_a_tree(backend):
    logits = np.random.default_rng(5).standard_normal((2, 4, 30)).astype(ml_dtypes.bfloat16)
    best = backend.run(kd.topk_logprob, logits, 12)
    tree = backend.run(kd.tree_build, best.ids, best.logprobs, [1, 2], 12).tree.check()
    assert tree.counts.tolist() == [13, 13]


def test_requests_do_not_influence_each_other(backend):
    logits = np.random.default_rng(6).standard_normal((3, 2, 77)).astype(np.float32)
    together = backend.run(kd.topk_logprob, logits, 5)
    for b in range(3):
        alone = backend.run(kd.topk_logprob, logits[b : b + 1].copy(), 5)
        np.testing.assert_array_equal(together.ids[b : b + 1], alone.ids)
        np.testing.assert_array_equal(together.status[b : b + 1], alone.status)
        # A kernel adds in an order that depends on where rows start and on how many there are.
        assert_logprobs(together.logprobs[b : b + 1], alone.logprobs)


def test_a_map_in_the_memory_of_a_freed_one_is_looked_at(backend):
    logits = backend.to(np.zeros((1, 1, 5), np.float32))
    memory = backend.to(np.int32([7, 3, 0, 1, 2]))
    kd.topk_logprob(logits, 2, vocab_map=memory[:], library=backend.library)
    memory[3] = 7
    with pytest.raises(ValueError, match="wanted each token once"):
        kd.topk_logprob(logits, 2, vocab_map=memory[:], library=backend.library)
