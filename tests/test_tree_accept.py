"""Accept: the longest path that the target agrees with, bounded on any input."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from conftest import Backend, assert_same, run_into_poison
from hypothesis import given
from hypothesis import strategies as st
from oracles import longest_match
from strategies import draft_trees, random_parents, stack, tree_from, with_distinct_siblings

import kdtree_cupy as kd
from kdtree_cupy.limits import STATUS_BAD_PARENT, STATUS_BAD_TARGET, STATUS_CAPACITY
from kdtree_cupy.masks import retrieve

BACKENDS = ("numpy", "host", "cuda")
FORK = tree_from([-1, 0, 0, 1, 1, 4], [9, 5, 6, 5, 7, 0])  # root 9; 5, 6; under 5: 5, 7; under 7: 0


def accept(backend: Backend, tree: kd.DraftTree, targets, **options) -> kd.Accepted:
    return backend.run(kd.tree_accept, tree, np.array([targets], np.int32), **options)


def accepted_path(result: kd.Accepted, b: int = 0) -> list[int]:
    return result.path[b, : result.path_length[b]].tolist()


@pytest.mark.parametrize(
    ("targets", "path", "bonus"),
    [
        ([5, 7, 1, 1, 0, 8], [0, 1, 4, 5], 8),  # to the end of the tree
        ([5, 7, 1, 1, 2, 8], [0, 1, 4], 2),  # token 0 is not what the target wants
        ([6, 7, 3, 1, 0, 8], [0, 2], 3),
        ([4, 7, 3, 1, 0, 8], [0], 4),  # nothing drafted agrees
        ([0, 7, 3, 1, 0, 8], [0], 0),  # token 0 must not match padding or the root
    ],
)
def test_walk(backend, targets, path, bonus):
    result = run_into_poison(backend, kd.tree_accept, FORK, np.int32([targets]), max_depth=4)
    assert accepted_path(result) == path
    assert result.path.tolist() == [path + [-1] * (5 - len(path))]
    assert result.next_token.tolist() == [bonus] and result.status.tolist() == [0]


@given(tree=draft_trees(), data=st.data())
def test_longest_match(backend, tree, data):
    """On a tree whose siblings differ, the walk ends at the deepest node that the target agrees with."""
    tree = with_distinct_siblings(tree)
    targets = data.draw(st.lists(st.integers(0, 5), min_size=tree.num_nodes, max_size=tree.num_nodes))
    result = accept(backend, tree, targets, max_depth=tree.num_nodes - 1)
    wanted = longest_match(tree.tokens[0], tree.parents[0], int(tree.counts[0]), np.array(targets))
    assert accepted_path(result) == wanted
    assert result.next_token[0] == targets[wanted[-1]]


@given(tree=draft_trees(), data=st.data())
def test_walk_over_linked_lists_agrees(backend, tree, data):
    """A walk over first child and next sibling, as serving engines do it, finds the same path."""
    targets = data.draw(st.lists(st.integers(0, 3), min_size=tree.num_nodes, max_size=tree.num_nodes))
    links = retrieve(tree)
    node, path = 0, [0]
    while True:
        child = int(links.retrieve_next_token[0, node])
        while child >= 0 and tree.tokens[0, child] != targets[node]:
            child = int(links.retrieve_next_sibling[0, child])
        if child < 0:
            break
        node = child
        path.append(node)
    assert accepted_path(accept(backend, tree, targets, max_depth=tree.num_nodes - 1)) == path


@given(tree=draft_trees(broken=True), data=st.data())
def test_any_tree_is_survived(backend, tree, data):
    targets = data.draw(st.lists(st.integers(-2, 4), min_size=tree.num_nodes, max_size=tree.num_nodes))
    result = accept(backend, tree, targets)
    n = min(int(tree.counts[0]), tree.num_nodes)
    parents = tree.parents[0, 1:n]
    bad = bool(((parents < 0) | (parents >= np.arange(1, n))).any()) if n > 1 else False
    assert bool(result.status[0] & STATUS_BAD_PARENT) == bad
    assert bool(result.status[0] & STATUS_CAPACITY) == (tree.counts[0] > tree.num_nodes)
    path = accepted_path(result)
    for node, child in itertools.pairwise(path):
        assert tree.parents[0, child] == node < child < n and tree.tokens[0, child] == targets[node]
    bad_end = bool(path) and targets[path[-1]] < 0
    assert bool(result.status[0] & STATUS_BAD_TARGET) == bad_end
    assert result.next_token[0] == (targets[path[-1]] if path and not bad_end else -1)


@given(tree=draft_trees(), drop=st.integers(1, 11), data=st.data())
def test_more_nodes_never_shorten_the_path(backend, tree, drop, data):
    targets = data.draw(st.lists(st.integers(0, 3), min_size=tree.num_nodes, max_size=tree.num_nodes))
    large = with_distinct_siblings(tree)  # equal siblings may lead a longer tree astray
    kept = max(1, int(tree.counts[0]) - drop)
    small = tree_from(large.parents[0].tolist(), large.tokens[0].tolist(), kept)
    assert accept(backend, small, targets).path_length[0] <= accept(backend, large, targets).path_length[0]


def test_equal_siblings_lowest_index_first(backend):
    tree = tree_from([-1, 0, 0, 2], [9, 5, 5, 6])  # only the second 5 has a child
    assert accepted_path(accept(backend, tree, [5, 6, 6, 0])) == [0, 1]


@pytest.mark.parametrize(
    ("parents", "targets", "path"),
    [
        ([-1, 2, 1], [5, 6, 5], [0]),  # a cycle
        ([-1, 7, 0], [5, 5, 5], [0, 2]),  # out of range, the walk goes on among good nodes
        ([-1, 1, 0], [5, 5, 5], [0, 2]),  # its own parent
        ([-1, -1, 1], [5, 5, 5], [0]),  # an orphan; its child is well-formed but out of reach
        ([-1, -(2**31), 2**31 - 1], [5, 5, 5], [0]),
    ],
)
def test_bad_parents(backend, parents, targets, path):
    tree = tree_from(parents, [9, 5, 5])
    result = accept(backend, tree, targets)
    assert accepted_path(result) == path
    assert result.status.tolist() == [STATUS_BAD_PARENT]
    with pytest.raises(ValueError, match=r"tree_accept: status\[0\] = 4: a node's parent is not an earlier"):
        accept(backend, tree, targets, check=True)


@pytest.mark.parametrize("bad", [-1, -5, 8])
def test_bad_target_token_ends_the_walk(backend, bad):
    result = accept(backend, FORK, [5, bad, -1, -1, -1, -1], vocab_size=8)
    assert accepted_path(result) == [0, 1]
    assert result.next_token.tolist() == [-1] and result.status.tolist() == [STATUS_BAD_TARGET]
    at_root = accept(backend, FORK, [bad, 0, 0, 0, 0, 0], vocab_size=8)
    assert accepted_path(at_root) == [0] and at_root.next_token.tolist() == [-1]


def test_bad_target_elsewhere_is_not_looked_at(backend):
    result = accept(backend, FORK, [6, -1, 3, -1, -1, -1])
    assert accepted_path(result) == [0, 2] and result.status.tolist() == [0]


def test_a_negative_target_never_matches_a_negative_token(backend):
    tree = tree_from([-1, 0], [9, -1])
    assert accepted_path(accept(backend, tree, [-1, 0])) == [0]


@pytest.mark.parametrize("num_nodes", [1, 2, 31, 32, 33, 64, 65, 127, 128, 129, 1025])
@pytest.mark.parametrize("shape", ["chain", "star", "binary", "random"])
def test_shapes_that_hurt(backend, num_nodes, shape):
    rng = np.random.default_rng(num_nodes)
    tree = tree_from(random_parents(rng, num_nodes, shape), list(range(num_nodes)))
    targets = rng.integers(0, num_nodes, num_nodes)
    path = [num_nodes - 1]  # lead the target to the last node
    while path[0]:
        path.insert(0, int(tree.parents[0, path[0]]))
    targets[path[:-1]] = path[1:]
    targets[path[-1]] = 5_000
    wide = accept(backend, tree, targets, max_depth=num_nodes - 1)
    assert accepted_path(wide) == path and wide.next_token[0] == 5_000
    narrow = accept(backend, tree, targets)
    assert narrow.path.shape[1] == min(num_nodes, 33)
    assert accepted_path(narrow) == path[:33]
    assert narrow.next_token[0] == targets[path[:33][-1]]


def test_a_path_cut_at_max_depth_commits_the_same_tokens(backend):
    result = accept(backend, FORK, [5, 7, 1, 1, 0, 8], max_depth=1)
    assert accepted_path(result) == [0, 1] and result.next_token.tolist() == [7]
    assert accepted_path(accept(backend, FORK, [5, 7, 1, 1, 0, 8], max_depth=0)) == [0]


def test_requests_do_not_influence_each_other(backend):
    idle = tree_from([-1] * 6, [0] * 6, count=0)
    broken = tree_from([-1, 0, 5, 4, 3, 2], [9, 5, 5, 5, 5, 5])
    short = tree_from([-1, 0, -1, -1, -1, -1], [9, 5, 0, 0, 0, 0], count=2)
    trees = [FORK, idle, broken, FORK, short]
    targets = np.int32([[5, 7, 1, 1, 0, 8], [5] * 6, [5] * 6, [-1] * 6, [5, 0, 0, 0, 0, 0]])
    together = backend.run(kd.tree_accept, stack(trees), targets)
    for b, tree in enumerate(trees):
        alone = backend.run(kd.tree_accept, tree, targets[b : b + 1])
        assert_same(kd.Accepted(*(x[b : b + 1] for x in together)), alone)
    assert together.path_length.tolist() == [4, 0, 2, 1, 2]
    assert together.next_token.tolist() == [8, -1, 5, -1, 0]


def test_padding_is_never_stepped_to(backend):
    """Slots past the count look like children of the root here; the count alone says that they are not."""
    tree = tree_from([-1, 0, 0, 0], [9, 5, 0, 0], count=2)
    tree.parents[0, 2:] = 0
    assert accepted_path(accept(backend, tree, [0, 0, 0, 0])) == [0]
