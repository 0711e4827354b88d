"""Tables by depth and rank: against plain loops, and never fitted on what they are used on."""

from __future__ import annotations

import numpy as np
import pytest
from test_acceptance import random_trace
from toy_traces import trace_of

from kdtree_cupy import acceptance as stats
from kdtree_cupy.policies import ddtree, static
from kdtree_cupy.replay import acceptance, jump


@pytest.mark.parametrize("ended", [False, True])
def test_depth_rank_tables_are_what_loops_count(ended):
    last = int(random_trace(3).tokens[29])  # of sequence 0
    trace = random_trace(3, **({"stop_tokens": [last]} if ended else {}))
    assert trace.ended()[0] == ended
    ranks, depth, width = trace.true_ranks(), trace.depth, trace.width
    rounds = jump(trace, acceptance(trace, ddtree, [12]).accepted[:, 0])
    got = stats.depth_rank(trace, ranks, rounds)
    ends = np.repeat(trace.sequence_offsets[1:], trace.lengths)
    closed = np.repeat(trace.ended(), trace.lengths)
    for d in range(depth):
        truth = [
            ranks[t, d]
            for t in range(trace.tokens.size)
            if t + 1 < ends[t] and (closed[t] or t + depth < ends[t]) and ranks[t, d] > -2
        ]
        kept = [
            (r, a) for r, a, c in zip(rounds.root, rounds.accepted, rounds.censored, strict=True) if not c
        ]
        reached = [r for r, a in kept if a >= d]
        through = [ranks[r, d] for r, a in kept if a > d]
        for rank in range(width):
            assert got.recall[d, rank] == pytest.approx(truth.count(rank) / len(truth))
            assert got.unconditional[d, rank] == pytest.approx(through.count(rank) / len(kept))
            assert got.conditional[d, rank] == pytest.approx(through.count(rank) / max(1, len(reached)))
    survival = stats.survival(stats.histogram(rounds, depth))
    np.testing.assert_allclose(got.unconditional.sum(1), survival[1:])
    np.testing.assert_allclose(np.cumprod(got.conditional.sum(1)), survival[1:])


def test_the_fitted_table_leaves_its_own_sequence_out():
    """Changing a sequence changes every table but its own, and leaving out is not a no-op."""
    trace = random_trace(5)
    tables = stats.path_conditional_table(trace, trace.true_ranks())
    assert tables.shape == (6, 4, 5) and (tables >= 0).all() and (tables.sum(2) <= 1).all()
    tokens = trace.tokens.copy()
    tokens[:30] = (tokens[:30] + 1) % 9  # sequence 0
    other = trace.__class__(**{**trace.__dict__, "tokens": tokens})
    changed = stats.path_conditional_table(other, other.true_ranks())
    np.testing.assert_array_equal(changed[0], tables[0])
    assert (changed[1:] != tables[1:]).any(axis=(1, 2)).all()
    everything = stats.path_conditional_table(trace, trace.true_ranks(), leave_out=False)
    assert everything.shape == (1, 4, 5) and (tables[[0, 4, 5]] != everything).any(axis=(1, 2)).all()
    np.testing.assert_array_equal(tables[1:3], np.repeat(everything, 2, 0))  # nothing to leave out


def test_the_fitted_table_is_what_loops_count():
    """Acceptance of a rank given that all true tokens above were kept, whatever the tree."""
    trace = random_trace(7, vocab=12, lengths=(40, 30))
    ranks = trace.true_ranks()
    assert (ranks == -1).any()
    hits, trials = np.zeros((4, 5)), np.zeros(4)
    for t in np.flatnonzero(stats.uncensored_positions(trace)):
        for d in range(4):
            trials[d] += 1
            if ranks[t, d] < 0:
                break
            hits[d, ranks[t, d]] += 1
    profile = hits.sum(0) + 1 / np.arange(1, 6)
    wanted = (hits + 0.5 * profile / profile.sum()) / (trials[:, None] + 1)
    got = stats.path_conditional_table(trace, ranks, leave_out=False)
    np.testing.assert_allclose(got[0], wanted)


def test_the_fitted_table_by_hand():
    """One depth, two ranks: of 4 positions with a successor, rank 0 is right 3 times, rank 1 once."""
    rows = np.tile([0.6, 0.3, 0.1], (5, 1, 1))
    trace = trace_of([np.array([2, 0, 0, 1, 0])], rows, 2, stop_tokens=[0])
    table = stats.path_conditional_table(trace, trace.true_ranks(), leave_out=False)[0, 0]
    profile = np.array([3 + 1, 1 + 1 / 2]) / 5.5
    np.testing.assert_allclose(table, (np.array([3, 1]) + 0.5 * profile) / (4 + 1))
    alone = stats.path_conditional_table(trace, trace.true_ranks())  # one sequence: only the prior is left
    np.testing.assert_allclose(alone[0, 0], 0.5 * np.array([1, 1 / 2]) / 1.5)


def test_a_static_tree_is_never_fitted_on_its_own_text():
    """Replaying with leave-out tables: another text in sequence 0 does not change its trees."""
    trace = random_trace(6)
    tokens = trace.tokens.copy()
    tokens[:30] = (tokens[:30] + 2) % 9
    other = trace.__class__(**{**trace.__dict__, "tokens": tokens})
    nodes = []
    for one in (trace, other):
        table = stats.path_conditional_table(one, one.true_ranks())
        result = acceptance(
            one, static, [9],
            options={"table": table}, per_position={"table_index": one.sequence_of()},
        )  # fmt: skip
        nodes.append(result.nodes_by_depth[:30])
    np.testing.assert_array_equal(*nodes)


@pytest.mark.parametrize("sharpen", [1.0, 2.0])
def test_reliability_tells_calibrated_from_overconfident(sharpen):
    rng = np.random.default_rng(1)
    true = rng.dirichlet(np.ones(6), 4000)
    tokens = np.array([rng.choice(6, p=row) for row in true])
    rows = np.roll(true, -1, axis=0) ** sharpen  # the row at t speaks of t + 1
    trace = trace_of([tokens], (rows / rows.sum(1, keepdims=True))[:, None])
    table = stats.reliability(trace, trace.true_ranks(), bins=5)
    assert table.count.sum() == 3999 * 6
    expected = (rows / rows.sum(1, keepdims=True))[:-1].sum()
    assert np.nansum(table.predicted * table.count) == pytest.approx(expected, rel=1e-6)
    if sharpen == 1:
        sigma = np.sqrt(table.predicted * (1 - table.predicted) / table.count)
        assert (np.abs(table.predicted - table.observed) < 4 * sigma).all() and table.error[0] < 0.02
    else:
        assert table.error[0] > 0.08 and table.observed[0, -1] < table.predicted[0, -1] - 0.1


def test_nothing_is_true_beyond_the_stop_token():
    """An ended sequence of two tokens: depth 1 has one true token, depth 2 none."""
    trace = trace_of([np.array([0, 1])], np.tile([0.1, 0.8, 0.1], (2, 2, 1)), stop_tokens=[1])
    ranks = trace.true_ranks()
    assert stats.reliability(trace, ranks).count.sum(1).tolist() == [3, 0]
    tables = stats.depth_rank(trace, ranks, jump(trace, np.array([1, 0])))
    assert tables.recall.tolist() == [[1, 0, 0], [0, 0, 0]]
