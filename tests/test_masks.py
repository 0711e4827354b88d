"""Masks, positions and linked lists: closures of the parent relation, bounded on any parents."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from oracles import closure
from strategies import draft_trees, random_parents, stack, tree_from

from kdtree_cupy import masks

BACKENDS = ("numpy", "host", "cuda")


@given(tree=draft_trees())
def test_mask_is_the_closure_of_the_parents(backend, tree):
    visible = backend.run(masks.bool_mask, tree)
    np.testing.assert_array_equal(visible[0], closure(tree.parents[0], int(tree.counts[0])))
    np.testing.assert_array_equal(masks.unpack_mask(backend.run(masks.packed_mask, tree)), visible)


@pytest.mark.parametrize("num_nodes", [1, 2, 31, 32, 33, 64, 65, 129])
@pytest.mark.parametrize("shape", ["chain", "star", "binary", "random"])
def test_shapes_that_hurt(backend, num_nodes, shape):
    parents = random_parents(np.random.default_rng(num_nodes), num_nodes, shape)
    tree = tree_from(parents, [0] * num_nodes)
    words = backend.run(masks.packed_mask, tree)
    assert words.dtype == np.uint32 and words.shape == (1, num_nodes, -(-num_nodes // 32))
    expected = closure(tree.parents[0], num_nodes)
    octets = np.packbits(expected, axis=-1, bitorder="little")
    stored = words[0].astype("<u4").view(np.uint8)
    np.testing.assert_array_equal(stored[:, : octets.shape[1]], octets)
    assert (stored[:, octets.shape[1] :] == 0).all(), "bits from N on must be zero"


def test_padding_sees_itself_only_whatever_its_parent(backend):
    tree = tree_from([-1, 0, -1, -1], [9, 5, 0, 0], count=2)
    tree.parents[0, 2:] = 0
    assert backend.run(masks.bool_mask, tree)[0, 2:].tolist() == [
        [False, False, True, False],
        [False] * 3 + [True],
    ]
    assert backend.run(masks.retrieve, tree).retrieve_next_sibling.tolist() == [[-1] * 4]


def test_pack_honours_any_pattern():
    visible = np.random.default_rng(0).random((2, 37, 37)) < 0.5
    np.testing.assert_array_equal(masks.unpack_mask(masks.pack_mask(visible)), visible)


@given(tree=draft_trees(broken=True))
def test_broken_trees_are_survived(backend, tree):
    visible, links = backend.run(masks.bool_mask, tree)[0], backend.run(masks.retrieve, tree)
    assert visible.diagonal().all()
    assert not np.triu(visible, 1).any(), "a node sees only itself and earlier nodes"
    for table in links[1:]:
        assert ((table == -1) | (table > np.arange(tree.num_nodes))).all(), "links only go forward: no cycle"


@pytest.mark.parametrize("parents", [[-1, 2, 1], [-1, 7, 0], [-1, 1, 1], [-1, -1, 0]])
def test_bad_parents_see_themselves_and_are_reported(backend, parents):
    good = tree_from([-1, 0, 1], [1, 2, 3])
    batch = stack([tree_from(parents, [1, 2, 3]), good])
    visible = backend.run(masks.bool_mask, batch)
    assert visible[0, 1].tolist() == [False, True, False]
    np.testing.assert_array_equal(visible[1], np.tril(np.ones((3, 3), bool)))
    for derive in (masks.bool_mask, masks.packed_mask, masks.retrieve, masks.additive_mask_zero_is_visible):
        with pytest.raises(ValueError, match=r"status\[0\] = 4: a node's parent is not an earlier node"):
            backend.run(derive, batch, check=True)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.float64])
def test_additive_mask(backend, dtype):
    tree = tree_from([-1, 0, 0], [1, 2, 3])
    added = backend.run(masks.additive_mask_zero_is_visible, tree, dtype=dtype)
    assert added.dtype == dtype
    lowest = float(ml_dtypes.finfo(dtype).min)
    visible = backend.run(masks.bool_mask, tree)
    np.testing.assert_array_equal(added.astype(np.float64), np.where(visible, 0.0, lowest))
    infinite = backend.run(masks.additive_mask_zero_is_visible, tree, dtype=dtype, hidden=-np.inf)
    assert (infinite[~visible].astype(np.float64) == -np.inf).all()


def test_positions(backend):
    tree = stack([tree_from([-1, 0, 0, 1], [0] * 4), tree_from([-1, 0, -1, -1], [0] * 4, count=2)])
    got = backend.run(masks.positions, tree, np.int32([10, 100_000]))
    assert got.tolist() == [[10, 11, 11, 12], [100_000, 100_001, 100_000, 100_000]]
    assert got.dtype == np.int32


def test_retrieve_by_hand(backend):
    """Root with children 1, 3, 4; node 1 with child 2; request 1 has two nodes and padding."""
    tree = stack(
        [tree_from([-1, 0, 1, 0, 0], [0] * 5), tree_from([-1, 0, -1, -1, -1], [0] * 5, count=2)],
    )
    links = backend.run(masks.retrieve, tree)
    assert all(table.dtype == np.int64 for table in links)
    assert links.retrieve_index.tolist() == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    assert links.retrieve_next_token.tolist() == [[1, 2, -1, -1, -1], [1, -1, -1, -1, -1]]
    assert links.retrieve_next_sibling.tolist() == [[-1, 3, -1, 4, -1], [-1] * 5]


@given(tree=draft_trees())
def test_lists_hold_every_child_once_in_node_order(backend, tree):
    links = backend.run(masks.retrieve, tree)
    for node in range(tree.num_nodes):
        listed, child = [], int(links.retrieve_next_token[0, node])
        while child >= 0:
            listed.append(child)
            child = int(links.retrieve_next_sibling[0, child])
        n = int(tree.counts[0])
        assert listed == [i for i in range(1, n) if tree.parents[0, i] == node]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: masks.bool_mask(3), TypeError, "tree: got int, wanted a DraftTree"),
        (lambda: masks.pack_mask(np.zeros((1, 2, 3), bool)), ValueError, r"visible: got shape \(1, 2, 3\)"),
        (lambda: masks.pack_mask(np.zeros((1, 2, 2))), TypeError, "visible: got dtype float64, wanted bool"),
        (lambda: masks.unpack_mask(np.zeros((1, 33, 1), np.uint32)), ValueError, r"wanted \[b, N, ceil"),
        (
            lambda: masks.additive_mask_zero_is_visible(tree_from([-1], [0]), dtype=np.int32),
            TypeError,
            "dtype: got int32, wanted float64 or float32",
        ),
        (
            lambda: masks.additive_mask_zero_is_visible(tree_from([-1], [0]), hidden=1.0),
            ValueError,
            "hidden: got 1.0, wanted a negative number",
        ),
        (lambda: masks.positions(tree_from([-1], [0]), [-4]), ValueError, r"lengths\[0\]: got -4"),
    ],
)
def test_bad_arguments_are_named(call, error, message):
    with pytest.raises(error, match=message):
        call()
