"""Sampled targets: replaying plain samples has the law of live decoding; matching is the best verifier."""

from __future__ import annotations

import numpy as np
import pytest
from toy_traces import ranked, trace_of

from kdtree_cupy.policies import ddtree
from kdtree_cupy.refs.tree_accept import tree_accept
from kdtree_cupy.replay import acceptance, jump

VOCAB, DEPTH, LENGTH, RUNS, BUDGET = 4, 3, 14, 1200, 7
TARGET = np.array(
    [[0.5, 0.3, 0.1, 0.1], [0.1, 0.1, 0.7, 0.1], [0.25, 0.25, 0.25, 0.25], [0.05, 0.9, 0.0, 0.05]]
)


def drafter():
    """Return the drafter's rows after each root token, [V, D, V]: powers of the chain, ever more blurred."""
    rows = [np.linalg.matrix_power(TARGET, d + 1) for d in range(DEPTH)]
    blurred = [(1 - 0.1 * (d + 1)) * row + 0.1 * (d + 1) / VOCAB for d, row in enumerate(rows)]
    return np.stack(blurred, axis=1)


def sample(rng, last):
    """Draw the target's next token after each of ``last``."""
    return (rng.random(last.shape)[..., None] > np.cumsum(TARGET, axis=1)[last]).sum(-1)


def plain_sequences(rng):
    tokens = np.zeros((RUNS, LENGTH), int)
    for t in range(1, LENGTH):
        tokens[:, t] = sample(rng, tokens[:, t - 1])
    return tokens


def live(rng):
    """Decode with a tree: the target draws a token at every node, on the path or not, and the walk decides.

    Returns the tokens of each run, and (run, accepted) of every round.
    """
    ids, logprobs = ranked(drafter())
    tokens, filled, log = np.zeros((RUNS, LENGTH + DEPTH), int), np.ones(RUNS, int), []
    while (filled < LENGTH).any():
        runs = np.flatnonzero(filled < LENGTH)
        root = tokens[runs, filled[runs] - 1]
        tree = ddtree(ids[root], logprobs[root], root, BUDGET)
        drawn = sample(rng, tree.tokens).astype(np.int32)
        walk = tree_accept(tree, drawn, max_depth=DEPTH)
        for i, run in enumerate(runs):
            path = walk.path[i, : walk.path_length[i]]
            new = [*tree.tokens[i, path[1:]], walk.next_token[i]]
            tokens[run, filled[run] : filled[run] + len(new)] = new
            log.append((run, filled[run] - 1, len(new) - 1))
            filled[run] += len(new)
    return tokens[:, :LENGTH], np.array(log)


def per_run(run, root, accepted):
    """Return, for every run, how many rounds that cannot reach the end accept 0 .. D drafts."""
    counts = np.zeros((RUNS, DEPTH + 1))
    early = root < LENGTH - 1 - DEPTH
    np.add.at(counts, (run[early], accepted[early]), 1)
    return counts


def test_replay_of_plain_samples_has_the_law_of_live_decoding():
    """Rounds per run and the histogram of accepted drafts agree within 4 sigma."""
    live_tokens, log = live(np.random.default_rng(1))
    plain = plain_sequences(np.random.default_rng(2))
    trace = trace_of(list(plain), drafter()[plain.reshape(-1)], temperature=1.0)
    rounds = jump(trace, acceptance(trace, ddtree, [BUDGET]).accepted[:, 0])
    one = per_run(*log.T)
    other = per_run(rounds.sequence, rounds.root % LENGTH, rounds.accepted)
    for a, b in zip((*one.T, one.sum(1)), (*other.T, other.sum(1)), strict=True):
        sigma = np.sqrt((a.var() + b.var()) / RUNS)
        assert sigma > 0 and abs(a.mean() - b.mean()) < 4 * sigma
    pairs = np.zeros((VOCAB, VOCAB))  # and live decoding is lossless
    np.add.at(pairs, (live_tokens[:, :-1], live_tokens[:, 1:]), 1)
    seen = pairs.sum(1, keepdims=True)
    assert (np.abs(pairs / seen - TARGET) <= 4 * np.sqrt(TARGET * (1 - TARGET) / seen)).all()


@pytest.mark.parametrize(
    ("target", "draft", "ranks", "wanted"),
    [
        ((0.5, 0.3, 0.2), (0.2, 0.3, 0.5), 1, 0.2), ((0.5, 0.3, 0.2), (0.2, 0.3, 0.5), 2, 0.5),
        ((0.5, 0.3, 0.2), (0.2, 0.3, 0.5), 3, 1.0), ((0.7, 0.2, 0.1), (0.6, 0.3, 0.1), 1, 0.7),
        ((0.7, 0.2, 0.1), (0.6, 0.3, 0.1), 2, 0.9), ((0.7, 0.2, 0.1), (0.6, 0.3, 0.1), 3, 1.0),
    ],
)  # fmt: skip
def test_one_node_accepts_the_targets_mass_of_its_children(target, draft, ranks, wanted):
    sequences = [np.array([0, y]) for y in range(3)]
    trace = trace_of(sequences, np.tile(draft, (6, 1, 1)))
    accepted = acceptance(trace, ddtree, [ranks]).accepted[::2, 0]
    assert accepted @ np.array(target) == pytest.approx(wanted, abs=1e-12)


@pytest.mark.parametrize("budget", [1, 4, 9, 20, 39])
@pytest.mark.parametrize("seed", range(4))
def test_expected_acceptance_is_the_mass_of_the_tree(seed, budget):
    """Proposition 1 through replay: over all responses, weighted by the drafter's own probability.

    And Proposition 2: the surrogate is the largest that any prefix-closed set of that size can have, because
    it holds the heaviest nodes of all.
    """
    rng = np.random.default_rng(seed)
    rows = rng.dirichlet(np.ones(3), size=3)
    responses = np.stack(np.meshgrid(*[np.arange(3)] * 3, indexing="ij"), -1).reshape(-1, 3)
    sequences = [np.array([0, *response]) for response in responses]
    trace = trace_of(sequences, np.tile(rows, (4 * 27, 1, 1)))
    table = acceptance(trace, ddtree, [budget])
    chance = rows[np.arange(3), responses].prod(1)
    assert table.accepted[::4, 0] @ chance == pytest.approx(table.surrogate[0, 0], abs=1e-6)
    heaviest = [np.multiply.outer(np.multiply.outer(rows[0], rows[1]), rows[2]).ravel()]
    heaviest += [np.multiply.outer(rows[0], rows[1]).ravel(), rows[0]]
    best = np.sort(np.concatenate(heaviest))[::-1][:budget].sum()
    assert table.surrogate[0, 0] == pytest.approx(best, abs=1e-6)
