"""DDTree's propositions by enumeration: the tree is the best one for independent positions."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from conftest import Backend
from hypothesis import given
from hypothesis import strategies as st
from strategies import ids_for
from tolerances import FLOAT64_SUM

import kdtree_cupy as kd


def drafter(seed: int, depth: int, vocab: int) -> tuple[np.ndarray, np.ndarray]:
    """Return float32 log-probs [1, D, V] (rows descending) of independent positions, and the ids."""
    rows = np.random.default_rng(seed).dirichlet(np.ones(vocab), size=depth)
    logprobs = np.log(-np.sort(-rows, axis=-1)).astype(np.float32)[None]
    return logprobs, ids_for(logprobs) % 1000


def masses(tree: kd.DraftTree) -> np.ndarray:
    """Return exp(score) of the drafted nodes: the probability that a response begins with the node."""
    return np.exp(tree.scores[0, 1 : tree.counts[0]])


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("budget", [1, 4, 9, 20, 39])
def test_expected_acceptance_is_the_mass_of_the_tree(backend, seed, budget):
    """Proposition 1: E[accepted drafts] = sum of the nodes' probabilities, over all V**D responses."""
    depth, vocab = 3, 3
    logprobs, ids = drafter(seed, depth, vocab)
    tree = backend.run(kd.tree_build, ids, logprobs, [7], budget).tree
    expected, total = 0.0, 0.0
    for response in itertools.product(range(vocab), repeat=depth):
        chance = np.exp(sum(float(logprobs[0, d, token]) for d, token in enumerate(response)))
        targets = np.int32([[*response, vocab]])[:, np.minimum(tree.depths[0], depth)]
        accepted = backend.run(kd.tree_accept, tree, np.ascontiguousarray(targets))
        expected += chance * (int(accepted.path_length[0]) - 1)
        total += chance
    assert total == pytest.approx(1, abs=1e-6)  # float32 log-probs
    assert expected / total == pytest.approx(masses(tree).sum(), abs=1e-6)


@given(seed=st.integers(0, 10**6), budget=st.integers(1, 5))
def test_no_prefix_closed_set_has_more_mass(backend, seed, budget):
    """Proposition 2: brute force over every set of B nodes that holds the parent of each node."""
    logprobs, ids = drafter(seed, 3, 2)
    tree = backend.run(kd.tree_build, ids, logprobs, [7], budget).tree
    nodes = [r for d in (1, 2, 3) for r in itertools.product(range(2), repeat=d)]
    mass = {r: np.exp(sum(float(logprobs[0, d, rank]) for d, rank in enumerate(r))) for r in nodes}
    best = max(
        sum(mass[r] for r in chosen)
        for chosen in itertools.combinations(nodes, budget)
        if all(len(r) == 1 or r[:-1] in chosen for r in chosen)
    )
    assert masses(tree).sum() == pytest.approx(best, abs=FLOAT64_SUM)


@given(seed=st.integers(0, 10**6), budget=st.integers(1, 30), depth=st.integers(1, 4))
def test_as_many_ranks_as_the_budget_lose_nothing(backend, seed, budget, depth):
    """Lemma 1: the best min(B, V) ranks of each position give the tree of the whole vocabulary."""
    logprobs, ids = drafter(seed, depth, 40)
    whole = backend.run(kd.tree_build, ids, logprobs, [7], budget).tree
    k = min(budget, 40)
    part = backend.run(
        kd.tree_build,
        np.ascontiguousarray(ids[..., :k]),
        np.ascontiguousarray(logprobs[..., :k]),
        [7],
        budget,
    ).tree
    for name in ("tokens", "parents", "depths", "ranks", "scores", "counts"):
        np.testing.assert_array_equal(getattr(part, name), getattr(whole, name))


def test_fewer_ranks_can_change_the_tree(backend: Backend):
    logprobs, ids = drafter(0, 3, 40)
    ids, logprobs = ids[..., :2].copy(), logprobs[..., :2].copy()
    tree = backend.run(kd.tree_build, ids, logprobs, [7], 12).tree
    whole = backend.run(kd.tree_build, *drafter(0, 3, 40)[::-1], [7], 12).tree
    assert masses(tree).sum() < masses(whole).sum()
