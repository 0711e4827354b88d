"""DraftTree.check: every invariant fails on its own, naming array and index."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
from strategies import ids_for, random_table, stack, tree_from

import kdtree_cupy as kd


def built() -> kd.DraftTree:
    table = random_table(seed=0, batch=2, depth=3, width=3)
    return kd.tree_build(ids_for(table), table, [5, 6], np.int32([8, 5])).tree


def changed(array: str, index: tuple[int, ...], value: float) -> kd.DraftTree:
    tree = built()
    new = getattr(tree, array).copy()
    new[index] = value
    return replace(tree, **{array: new})


def test_a_good_tree_passes_and_returns_itself():
    tree = built()
    assert tree.check() is tree
    assert len(tree) == tree.batch == 2 and tree.num_nodes == 9


@pytest.mark.parametrize(
    ("array", "index", "value", "message"),
    [
        ("status", (1,), 1, r"status\[1\] = 1: NaN or \+inf"),
        ("counts", (0,), 10, r"counts\[0\] = 10, wanted 0\.\.9"),
        ("counts", (1,), -1, r"counts\[1\] = -1"),
        ("parents", (0, 0), 0, r"node \[0, 0\]: parent, depth, rank, score"),
        ("depths", (1, 0), 1, r"node \[1, 0\]"),
        ("ranks", (1, 0), 0, r"node \[1, 0\]"),
        ("scores", (1, 0), -0.5, r"node \[1, 0\]"),
        ("parents", (0, 3), 3, r"parents\[0, 3\] = 3, wanted 0\.\.2"),
        ("parents", (0, 3), -1, r"parents\[0, 3\] = -1, wanted 0\.\.2"),
        ("depths", (1, 4), 9, r"depths\[1, 4\] = 9, wanted"),
        ("scores", (0, 2), np.nan, r"scores\[0, 2\] = nan, wanted finite"),
        ("scores", (0, 2), 0.5, r"scores\[0, 2\] = 0.5, wanted finite and <= its parent's"),
        ("scores", (0, 2), -np.inf, r"scores\[0, 2\] = -inf, wanted finite"),
        ("ranks", (0, 2), -1, r"ranks\[0, 2\] < 0"),
        ("tokens", (1, 7), 1, r"padding slot \[1, 7\]"),
        ("parents", (1, 6), 0, r"padding slot \[1, 6\]"),
        ("depths", (1, 8), 1, r"padding slot \[1, 8\]"),
        ("ranks", (1, 6), 0, r"padding slot \[1, 6\]"),
        ("scores", (1, 6), 0.0, r"padding slot \[1, 6\]"),
    ],
)
def test_each_broken_invariant_is_named(array, index, value, message):
    with pytest.raises(ValueError, match=message):
        changed(array, index, value).check()


def test_two_siblings_of_one_rank_are_named():
    tree = tree_from([-1, 0, 0], [9, 5, 6])
    tree.ranks[0, 2] = tree.ranks[0, 1]
    with pytest.raises(ValueError, match=r"node \[0, 2\] repeats rank 0 under parent 0"):
        tree.check()


@pytest.mark.parametrize("name", [f.name for f in fields(kd.DraftTree)])
def test_dtype_and_shape_of_each_array_are_checked(name):
    tree = built()
    array = getattr(tree, name)
    with pytest.raises(ValueError, match=f"{name}: got dtype"):
        replace(tree, **{name: np.zeros(array.shape, np.int64)}).check()
    if name == "tokens":
        with pytest.raises(ValueError, match="tokens: got shape"):
            replace(tree, tokens=array[0]).check()
    else:
        with pytest.raises(ValueError, match=f"{name}: got shape"):
            replace(tree, **{name: array[..., :-1]}).check()


def test_one_request_of_a_batch_is_a_view():
    tree = built()
    second = tree[1]
    assert second.batch == 1 and second.check() is second
    assert np.shares_memory(second.tokens, tree.tokens)
    assert tree[-1].tokens.tolist() == second.tokens.tolist()
    with pytest.raises(IndexError):
        tree[2]


def test_paths_and_repr():
    tree = stack([tree_from([-1, 0, 0, 1], [0] * 4), tree_from([-1, 0, -1, -1], [0] * 4, count=2)])
    assert tree.paths(0) == [(), (0,), (1,), (0, 0)]
    assert tree.paths(1) == [(), (0,)]
    assert repr(tree) == "DraftTree(batch=2, num_nodes=4, counts=[4, 2], deepest=2)"
