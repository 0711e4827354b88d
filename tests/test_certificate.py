"""Certificates: a certified tree is the tree of the whole vocabulary, without exception."""

from __future__ import annotations

import numpy as np
import pytest
from toy_traces import random_sequences, ranked, trace_of

from kdtree_cupy.certificate import PRECISION, certified_exact, outside_bound, rows_used
from kdtree_cupy.policies import ddtree
from kdtree_cupy.replay import acceptance

VOCAB, DEPTH = 24, 4


def drafts(seed, batch=12, vocab=VOCAB, depth=DEPTH):
    """Return ids and log-probs of rows from flat to sure, over the whole vocabulary."""
    rng = np.random.default_rng(seed)
    logits = rng.standard_normal((batch, depth, vocab)) * rng.uniform(0.5, 8, (batch, 1, 1))
    if seed % 3 == 0:
        logits = np.round(logits)  # ties, also across the cut
    rows = np.exp(logits)
    return ranked(rows / rows.sum(-1, keepdims=True))


def same_trees(one, other):
    """Return which requests have the same tree, bit for bit."""
    same = one.counts == other.counts
    for name in ("tokens", "parents", "scores"):
        same &= (getattr(one, name) == getattr(other, name)).all(1)
    return same


@pytest.mark.parametrize("with_next", [False, True], ids=["mass", "next"])
@pytest.mark.parametrize("seed", range(30))
def test_a_certified_tree_is_the_tree_of_the_vocabulary(seed, with_next):
    """360 drafts times 4 widths times 5 budgets."""
    ids, logprobs = drafts(seed)
    roots = np.zeros(12, np.int32)
    certified_beyond = 0
    for budget in (3, 6, 20, 60, 200):
        whole = ddtree(ids, logprobs, roots, budget)
        for width in (1, 2, 5, 12):
            rest = logprobs[:, :, width] if with_next else None
            cut = ddtree(ids[..., :width], logprobs[..., :width], roots, budget)
            sure = certified_exact(cut, logprobs[..., :width], budget, VOCAB, rest)
            same = same_trees(cut, whole)
            assert same[sure].all()
            certified_beyond += int(sure.sum()) if budget > width else 0
            if with_next:  # the recorded rank is the true bound: what is not certified differs, but for ties
                equal = cut.scores[:, -1] == outside_bound(logprobs[..., :width], rest)
                assert not same[~sure & ~equal].any()
    assert certified_beyond > 0


@pytest.mark.parametrize("seed", range(8))
def test_the_recorded_next_rank_certifies_more(seed):
    ids, logprobs = drafts(seed)
    tree = ddtree(ids[..., :5], logprobs[..., :5], np.zeros(12, np.int32), 20)
    by_mass = certified_exact(tree, logprobs[..., :5], 20, VOCAB)
    by_next = certified_exact(tree, logprobs[..., :5], 20, VOCAB, logprobs[:, :, 5])
    assert (by_next | ~by_mass).all()
    bounds = outside_bound(logprobs[..., :5]), outside_bound(logprobs[..., :5], logprobs[:, :, 5])
    assert (bounds[0] >= bounds[1]).all()


def test_the_rounding_of_peaked_rows_is_allowed_for():
    """One half, nearly one half, and 1e-8: float32 log-probs say that a fifth as much is left as there is."""
    found = 0
    for tail in np.linspace(0.8e-8, 2e-8, 13):
        rows = np.array([[[0.5, 0.5 - tail, tail], [1 - 1.05e-8, 1e-8, 0.05e-8]]])
        ids, logprobs = ranked(rows)
        whole = ddtree(ids, logprobs, [0], 6)
        cut = ddtree(ids[..., :2], logprobs[..., :2], [0], 6)
        naive = certified_exact(cut, logprobs[..., :2], 6, 3, precision=0.0)
        found += int((naive & ~same_trees(cut, whole)).sum())
        assert not certified_exact(cut, logprobs[..., :2], 6, 3).any()
    assert found > 0  # without the allowance some would be certified, wrongly


def test_rows_that_are_no_distribution_are_bounded_by_their_last_rank():
    rows = np.float32([[[-0.1, -0.3, -0.5], [-0.1, -0.1, -0.1]]])  # masses 2.3 and 2.7
    assert outside_bound(rows)[0] == pytest.approx(-0.2)
    rows[:, 1] = [-0.1, -np.inf, -np.inf]
    assert outside_bound(rows)[0] == pytest.approx(-0.5)


@pytest.mark.parametrize(("width", "vocab", "sure"), [(8, 24, True), (7, 24, False), (7, 7, True)])
def test_enough_ranks_need_no_certificate(width, vocab, sure):
    """K >= min(B, V), here B = 8 and flat rows."""
    ids, logprobs = ranked(np.full((1, 2, vocab), 1.0 / vocab))
    tree = ddtree(ids[..., :width], logprobs[..., :width], [0], 8)
    assert certified_exact(tree, logprobs[..., :width], 8, vocab).tolist() == [sure]


def test_a_tree_that_ran_out_of_nodes_is_not_certified():
    ids, logprobs = drafts(1, depth=1)
    tree = ddtree(ids[..., :3], logprobs[..., :3], np.zeros(12, np.int32), 9)
    assert not certified_exact(tree, logprobs[..., :3], 9, VOCAB).any()


@pytest.mark.parametrize("limits", [{}, {"max_rank": 3}, {"max_depth": 2}, {"max_rank": 2, "max_depth": 3}])
@pytest.mark.parametrize("rest", [False, True])
def test_replay_certifies_what_the_policy_looked_at(limits, rest):
    """A study of fewer ranks must not borrow the certificate of all recorded ones."""
    rng = np.random.default_rng(8)
    sequences, rows = random_sequences(rng, (30,), VOCAB, DEPTH, sure=6.0)
    trace, wide = trace_of(sequences, rows, 6, rest=rest), trace_of(sequences, rows)
    budgets = [2, 4, 9, 30]
    table = acceptance(trace, ddtree, budgets, options=limits)
    for j, budget in enumerate(budgets):
        depth = {"max_depth": limits.get("max_depth")}
        cut = ddtree(trace.draft_ids, trace.draft_logprobs, trace.tokens, budget, **limits)
        whole = ddtree(wide.draft_ids, wide.draft_logprobs, trace.tokens, budget, **depth)
        sure = table.certified[:, j]
        assert same_trees(cut, whole)[sure].all()
    assert table.certified[:, 0].any()
    assert table.certified.all(0)[0]  # K >= B


def test_limits_that_vary_are_not_certified():
    rng = np.random.default_rng(9)
    trace = trace_of(*random_sequences(rng, (12,), VOCAB, DEPTH), 6)
    varying = {"max_rank": np.full(12, 6)}
    assert acceptance(trace, ddtree, [4]).certified.all()
    assert not acceptance(trace, ddtree, [4], per_position=varying).certified.any()


def test_rows_used_gives_the_first_rank_left_out():
    rows = np.arange(0, -24, -1, dtype=np.float32).reshape(2, 3, 4)
    rest = rows[:, :, -1] - 9
    for kept, beyond, shape in (
        (rows_used(rows, rest, None, None), rest, (2, 3, 4)),
        (rows_used(rows, rest, 2, None), rest[:, :2], (2, 2, 4)),
        (rows_used(rows, rest, None, 9), rest, (2, 3, 4)),
        (rows_used(rows, rest, 9, 3), rows[:, :, 3], (2, 3, 3)),
        (rows_used(rows, None, 2, 1), rows[:, :2, 1], (2, 2, 1)),
    ):
        assert kept[0].shape == shape
        np.testing.assert_array_equal(kept[1], beyond)
    assert rows_used(rows)[1] is None and PRECISION == 2.0**-21
