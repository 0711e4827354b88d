"""Replay: the rounds are those of a live walk; jumps, budgets, censoring and odd sequences."""

from __future__ import annotations

import numpy as np
import pytest
from toy_traces import random_sequences, trace_of

from kdtree_cupy.acceptance import path_conditional_table, tau
from kdtree_cupy.policies import chain, ddtree, static
from kdtree_cupy.refs.tree_accept import tree_accept
from kdtree_cupy.replay import acceptance, check_budgets, jump

BASIC = {"chain": chain, "ddtree": ddtree, "static": static}
BUDGETS = (0, 1, 2, 7, 16, 60, 1024)


def random_trace(seed, *, lengths=(14, 0, 1, 2, 9, 5), depth=4, width=5, vocab=7, **options):
    rng = np.random.default_rng(seed)
    return trace_of(*random_sequences(rng, lengths, vocab, depth), width, **options)


def fitted(trace):
    """Return the options of the static policy."""
    table = path_conditional_table(trace, trace.true_ranks())
    return {"options": {"table": table}, "per_position": {"table_index": trace.sequence_of()}}


# Against a live walk


def live_rounds(trace, sequence, policy, budget, options):
    """Return (root, accepted) of each round: build a tree, let the target choose, walk, move on."""
    start, stop = (int(o) for o in trace.sequence_offsets[sequence : sequence + 2])
    root, rounds = start, []
    while root < stop - 1:
        at = slice(root, root + 1)
        tree = policy(trace.draft_ids[at], trace.draft_logprobs[at], trace.tokens[at], budget, **options)
        future = trace.tokens[root + 1 : stop]
        target = np.full(tree.num_nodes, 10**6, np.int32)  # what the target would say after a wrong token
        on_path = {0}
        for node in range(tree.counts[0]):
            depth = tree.depths[0, node]
            right = node == 0 or (
                depth <= future.size
                and tree.parents[0, node] in on_path
                and tree.tokens[0, node] == future[depth - 1]
            )
            if right:
                on_path.add(node)
                target[node] = future[depth] if depth < future.size else 10**6
        walk = tree_accept(tree, target[None], max_depth=trace.depth)
        accepted = int(walk.path_length[0]) - 1
        rounds.append((root, accepted))
        root += accepted + 1
    return rounds


@pytest.mark.parametrize("policy", BASIC)
@pytest.mark.parametrize("seed", range(4))
def test_rounds_are_those_of_a_live_walk(seed, policy):
    trace = random_trace(seed)
    more = fitted(trace) if policy == "static" else {}
    budgets = (0, 1, 3, 11)
    table = acceptance(trace, BASIC[policy], budgets, **more)
    for j, budget in enumerate(budgets):
        rounds = jump(trace, table.accepted[:, j])
        for s in range(trace.sequences):
            options = {"table": more["options"]["table"][s]} if more else {}
            mine = rounds.sequence == s
            got = list(zip(rounds.root[mine].tolist(), rounds.accepted[mine].tolist(), strict=True))
            assert got == live_rounds(trace, s, BASIC[policy], budget, options)


def test_a_policy_without_attributes_is_built_once_per_budget():
    """And gives what the nested one gives, so cutting a large tree is right."""
    trace = random_trace(9)

    def plain(*arguments, **options):
        return ddtree(*arguments, **options)

    nested, single = acceptance(trace, ddtree, BUDGETS), acceptance(trace, plain, BUDGETS)
    for name in ("budgets", "accepted", "nodes_by_depth"):
        np.testing.assert_array_equal(getattr(single, name), getattr(nested, name))
    np.testing.assert_allclose(single.surrogate, nested.surrogate, rtol=1e-12)
    assert not single.certified.any() and nested.certified.any()


# Jumps


@pytest.mark.parametrize("policy", BASIC)
@pytest.mark.parametrize("seed", range(3))
def test_tokens_of_the_rounds_sum_to_the_sequence(seed, policy):
    trace = random_trace(seed, stop_tokens=[3], lengths=(14, 0, 1, 2, 9, 5, 2, 30))
    table = acceptance(trace, BASIC[policy], BUDGETS, **(fitted(trace) if policy == "static" else {}))
    for j in range(len(BUDGETS)):
        rounds = jump(trace, table.accepted[:, j])
        total = np.bincount(rounds.sequence, weights=rounds.tokens, minlength=trace.sequences)
        np.testing.assert_array_equal(total, np.maximum(trace.lengths - 1, 0))
        assert (rounds.tokens >= 1).all() and (rounds.tokens <= rounds.accepted + 1).all()
        ahead = rounds.root + rounds.accepted + 1
        same = rounds.sequence[1:] == rounds.sequence[:-1]
        np.testing.assert_array_equal(rounds.root[1:][same], ahead[:-1][same])


def test_chain_is_the_tree_of_a_drafter_that_is_sure():
    """One-hot rows, B = D."""
    trace = random_trace(3, width=1)
    sure = trace.draft_logprobs.copy()
    sure[...] = 0.0
    one_hot = trace.__class__(**{**trace.__dict__, "draft_logprobs": sure})
    np.testing.assert_array_equal(
        acceptance(one_hot, ddtree, [4]).accepted, acceptance(trace, chain, [4]).accepted
    )


def test_budget_zero_is_plain_decoding():
    trace = random_trace(0)
    table = acceptance(trace, ddtree, [0])
    rounds = jump(trace, table.accepted[:, 0])
    assert tau(rounds).pooled == tau(rounds).mean == 1.0 and rounds.root.size == 13 + 1 + 8 + 4
    assert (table.nodes_by_depth[:, 0] == [1, 0, 0, 0, 0]).all() and (table.surrogate == 0).all()


def test_sequences_without_a_round():
    trace = random_trace(0, lengths=(0, 1, 0, 1))
    rounds = jump(trace, acceptance(trace, ddtree, [4]).accepted[:, 0])
    assert rounds.root.size == 0 and np.isnan(tau(rounds).pooled)
    empty = random_trace(0, lengths=(0,))
    assert acceptance(empty, ddtree, [4]).accepted.shape == (0, 1)
    assert jump(empty, np.zeros(0, int)).root.size == 0


def test_one_depth_and_one_rank():
    trace = random_trace(1, depth=1, width=1)
    table = acceptance(trace, ddtree, [1, 1024])
    np.testing.assert_array_equal(table.accepted[:, 0], trace.true_ranks()[:, 0] == 0)
    np.testing.assert_array_equal(table.accepted[:, 1], table.accepted[:, 0])
    assert (table.nodes_by_depth == 1).all()


def test_a_budget_above_all_nodes_is_the_oracle():
    trace = random_trace(2, depth=3, width=3)  # 3 + 9 + 27 nodes
    table = acceptance(trace, ddtree, [39, 1024])
    kept = np.logical_and.accumulate(trace.true_ranks() >= 0, axis=1).sum(1)
    np.testing.assert_array_equal(table.accepted, np.stack([kept, kept], 1))
    assert (table.nodes_by_depth == [1, 3, 9, 27]).all()
    mass = np.exp(trace.draft_logprobs.astype(np.float64)).sum(2)
    np.testing.assert_allclose(table.surrogate[:, 0], np.cumprod(mass, axis=1).sum(1), rtol=1e-9)


def test_rounds_at_the_end_of_a_cut_recording_are_censored():
    trace = random_trace(4, lengths=(9, 9), depth=4, stop_tokens=[6])
    tokens = trace.tokens.copy()
    tokens[8], tokens[17] = 6, 0  # only the first sequence ended
    trace = trace.__class__(**{**trace.__dict__, "tokens": tokens})
    rounds = jump(trace, np.zeros(18, int))
    assert not rounds.censored[rounds.sequence == 0].any()
    roots = rounds.root[rounds.censored]
    assert roots.tolist() == [9 + t for t in range(5, 8)]  # t + D >= n


def test_long_traces_are_replayed_in_pieces(monkeypatch):
    trace = random_trace(5, lengths=(40, 30))
    whole, done = acceptance(trace, ddtree, BUDGETS), []
    monkeypatch.setattr("kdtree_cupy.replay._CHUNK", 16)
    pieces = acceptance(trace, ddtree, BUDGETS, progress=done.append)
    assert sum(done) == 70 and len(done) == 5
    for name in whole._fields:
        np.testing.assert_array_equal(getattr(pieces, name), getattr(whole, name))


@pytest.mark.parametrize(
    ("budgets", "message"),
    [
        ([], r"budgets: got \[\], wanted at least one integer in 0..1024"),
        ([4, -1], r"budgets: got -1, wanted 0..1024"),
        ([1025], "budgets: got 1025"),
        ([1.5], r"budgets: got \[1.5\]"),
    ],
)
def test_bad_budgets_are_named(budgets, message):
    with pytest.raises(ValueError, match=message):
        acceptance(random_trace(0), ddtree, budgets)


def test_budgets_are_sorted_and_unique():
    assert check_budgets([64, 4, 64]).tolist() == [4, 64]


def test_arguments_per_position_must_fit_the_trace():
    with pytest.raises(ValueError, match=r"per_position\['table_index'\]: got 3 values, wanted 31"):
        acceptance(random_trace(0), static, [4], per_position={"table_index": np.zeros(3)})
