"""Statistics of rounds: by hand, against published figures, and against plain loops."""

from __future__ import annotations

import numpy as np
import pytest
from toy_traces import random_sequences, trace_of

from kdtree_cupy import acceptance as stats
from kdtree_cupy.policies import ddtree
from kdtree_cupy.replay import Rounds, acceptance, jump
from kdtree_cupy.trace import bundled_traces, load_trace

# DDTree (arXiv 2604.12989), Fig. 4: % of rounds that give 1 .. 16 tokens, MATH-500, Qwen3-8B
DFLASH = (10.25, 11.89, 9.97, 8.21, 6.97, 5.52, 4.52, 4.07, 3.63, 3.30, 2.97, 2.78, 2.61, 2.35, 2.34, 18.62)
DDTREE = (0.07, 0.73, 3.50, 6.40, 7.88, 7.21, 7.24, 6.19, 5.57, 4.48, 4.76, 3.94, 3.96, 3.29, 2.73, 32.05)


def rounds_of(accepted, sequence=None, censored=None):
    accepted = np.asarray(accepted, np.int64)
    sequence = np.zeros(accepted.size, np.int64) if sequence is None else np.asarray(sequence)
    censored = np.zeros(accepted.size, bool) if censored is None else np.asarray(censored)
    return Rounds(sequence, np.arange(accepted.size), accepted, accepted + 1, censored)


def random_trace(seed, lengths=(30, 0, 1, 2, 17, 25), depth=4, width=5, vocab=9, **header):
    rng = np.random.default_rng(seed)
    return trace_of(*random_sequences(rng, lengths, vocab, depth, sure=5.0), width, **header)


# tau, histogram, survival


def test_tau_by_hand():
    rounds = rounds_of([0, 2, 3, 1], [0, 0, 0, 4])
    tau = stats.tau(rounds)
    assert (tau.pooled, tau.mean) == (10 / 4, (8 / 3 + 2) / 2)
    assert (tau.rounds, tau.tokens, tau.sequences) == (4, 10, 2)
    assert tau.low <= tau.mean <= tau.high
    only = stats.tau(rounds, np.array([False] * 4 + [True]))
    assert (only.pooled, only.mean, only.low, only.high, only.rounds) == (2, 2, 2, 2, 1)
    assert np.isnan(stats.tau(rounds, np.zeros(5, bool)).mean)


def test_bootstrap_is_seeded_and_does_not_depend_on_its_blocks(monkeypatch):
    values = np.random.default_rng(0).exponential(3.0, 40)
    low, high = stats.bootstrap(values)
    assert (low, high) == stats.bootstrap(values) != stats.bootstrap(values, seed=1)
    monkeypatch.setattr(stats, "_DRAWS", 1000)
    assert stats.bootstrap(values) == (low, high)
    expected = 1.96 * values.std() / np.sqrt(40)  # the normal interval, roughly
    assert abs((high - low) / 2 - expected) < 0.15 * expected


@pytest.mark.parametrize(("shares", "pooled"), [(DFLASH, 7.606), (DDTREE, 10.664)], ids=["chain", "ddtree"])
def test_published_histograms(shares, pooled):
    """Per cent with two decimals, so 10,000 rounds carry them; that rounding may move the mean by 1e-3."""
    counts = np.round(100 * np.array(shares)).astype(int)
    rounds = rounds_of(np.repeat(np.arange(16), counts))
    histogram = stats.histogram(rounds, 15)
    np.testing.assert_array_equal(histogram, counts)
    assert histogram.sum() == 10000
    assert stats.tau(rounds).pooled == pytest.approx(pooled, abs=1.05e-3)
    survival = stats.survival(histogram)
    assert survival[0] == 1 and survival.sum() == pytest.approx(stats.tau(rounds).pooled)


def test_published_survival_is_nearly_geometric():
    counts = np.round(100 * np.array(DFLASH)).astype(int)
    survival = stats.survival(counts)[1:]
    wanted = (
        0.8975, 0.7786, 0.6789, 0.5968, 0.5271, 0.4719, 0.4267, 0.3860, 0.3497, 0.3167, 0.2870, 0.2592,
        0.2331, 0.2096, 0.1862,
    )  # fmt: skip
    np.testing.assert_allclose(survival, wanted, atol=5e-5)
    assert survival[-1] == pytest.approx(0.894**15, abs=1e-3)


def test_censored_rounds_count_in_tau_only():
    rounds = rounds_of([0, 3, 1], censored=[False, False, True])
    assert stats.tau(rounds).rounds == 3 and stats.histogram(rounds, 3).tolist() == [1, 0, 0, 1]
    both = rounds_of([0, 3, 1], [0, 1, 1], [False, False, True])
    assert stats.histogram(both, 3, np.array([False, True])).tolist() == [0, 0, 0, 1]
    assert np.isnan(stats.survival(np.zeros(4, int))).all()


# Yardsticks


def test_expected_tokens_of_a_chain():
    assert round(stats.expected_tokens(0.8, 4), 4) == 3.3616
    assert stats.expected_tokens(0, 4) == 1 and stats.expected_tokens(1, 4) == 5
    assert stats.expected_tokens(0.3, 0) == 1
    rng = np.random.default_rng(0)
    hits = np.logical_and.accumulate(rng.random((40000, 4)) < 0.8, axis=1).sum(1) + 1
    assert abs(hits.mean() - 3.3616) < 4 * hits.std() / 200
    with pytest.raises(ValueError, match=r"rate 1\.2, drafts 3"):
        stats.expected_tokens(1.2, 3)


def chance_of_the_leaf(ratios, sequence_level):
    """Return how probable it is that a drafted chain is accepted down to its end, by enumerating the coins.

    Token level: node d passes with min(1, ratio), root to leaf.  Sequence level: the leaf passes with
    min(1, product of ratios), carried as min(1, p * ratio) along the chain.
    """
    if sequence_level:
        carried = 1.0
        for ratio in ratios:
            carried = min(1.0, carried * ratio)
        return carried
    outcomes = np.stack(np.meshgrid(*[[0, 1]] * len(ratios), indexing="ij"), -1).reshape(-1, len(ratios))
    coins = np.minimum(1.0, ratios)
    return float(sum(np.where(o, coins, 1 - coins).prod() for o in outcomes if o.all()))


def test_traversal_accepts_more_of_a_sampled_chain():
    """Traversal verification (arXiv 2505.12398): target / draft ratio 1/2 above 4/3."""
    assert chance_of_the_leaf([1 / 2, 4 / 3], sequence_level=False) == pytest.approx(0.5)
    assert round(chance_of_the_leaf([1 / 2, 4 / 3], sequence_level=True), 3) == 0.667


# Bounds


def test_no_policy_passes_the_oracles():
    trace = load_trace(bundled_traces()[0])
    ranks = trace.true_ranks()
    bound = stats.oracle(ranks)
    table = acceptance(trace, ddtree, [1024])
    assert (table.accepted[:, 0] <= bound.kept_ranks).all() and (bound.kept_ranks <= bound.unlimited).all()
    left = np.repeat(trace.sequence_offsets[1:], trace.lengths) - 1 - np.arange(trace.tokens.size)
    np.testing.assert_array_equal(bound.unlimited, np.minimum(left, 15))
    expected, realised, error = stats.surrogate_by_decile(table, 0, jump(trace, table.accepted[:, 0]))
    assert expected.shape == (10,) and (np.diff(expected) > 0).all() and (error > 0).all()
    assert realised[-1] > realised[0]
