"""Drawings of a tree: everything shown is in the tree, bad arguments are named."""

from __future__ import annotations

import matplotlib as mpl
import numpy as np
import pytest

import kdtree_cupy as kd
from kdtree_cupy.tree_draw import draw_tree, tree_text

mpl.use("Agg")


@pytest.fixture
def tree():
    lp = np.log(np.float32([[[0.6, 0.3], [0.5, 0.4], [0.9, 0.05]]]))
    return kd.tree_build(np.int32([[[7, 8], [9, 5], [0, 1]]]), lp, [42], budget=6).tree


def test_text_has_every_node_once_with_its_step(tree):
    lines = tree.to_text().splitlines()
    assert len(lines) == 7
    assert lines[0] == "42"
    tokens = sorted(int(line.split()[-1]) for line in lines)
    assert tokens == sorted(tree.tokens[0].tolist())
    assert "-0.511  7" in lines[1]  # log 0.6


def test_text_marks_the_path_and_names_tokens(tree):
    path, *_ = kd.tree_accept(tree, np.where(np.arange(7) == 0, 7, 9)[None].astype(np.int32))
    text = tree_text(tree, path=path[0], text=lambda token: f"<{token}>")
    assert [line.split()[-2] for line in text.splitlines() if line.endswith(" *")] == ["<42>", "<7>", "<9>"]


def test_text_of_long_trees_is_cut_and_says_so(tree):
    assert tree.to_text(max_nodes=3).splitlines()[-1] == "... and 4 more nodes"


def test_idle_slot_and_root_only():
    lp = np.zeros((2, 1, 1), np.float32)
    trees = kd.tree_build(np.zeros((2, 1, 1), np.int32), lp, [1, 2], np.int32([-1, 0]), num_nodes=2).tree
    assert trees.to_text(0) == "(idle slot)"
    assert trees.to_text(1) == "2"
    assert draw_tree(trees, request=0).get_title() == "idle slot"


def test_draws_edges_nodes_and_labels(tree):
    import matplotlib.pyplot as plt

    figure, ax = plt.subplots()
    same = tree.draw(ax, path=np.int32([0, 1, -1]), text=["a$b"] * 50)
    assert same is ax
    assert len(ax.lines) == 6 + 7  # an edge and a dot per node, no edge for the root
    labels = [text.get_text() for text in ax.texts]
    assert labels.count(r"a\$b") == 7  # a dollar sign is no mathematics
    assert "-0.51" in labels
    figure.canvas.draw()
    plt.close(figure)


def test_large_trees_draw(tree):
    lp = np.full((1, 8, 8), -2.0, np.float32)
    big = kd.tree_build(np.arange(64, dtype=np.int32).reshape(1, 8, 8), lp, [0], budget=1024).tree
    ax = big.draw()
    assert not [t for t in ax.texts if t.get_text() not in {"0"}]  # labels would overlap: left out


@pytest.mark.parametrize("request_index", [1, -2])
def test_request_out_of_range(tree, request_index):
    with pytest.raises(ValueError, match="request: got"):
        tree.draw(request=request_index)


@pytest.mark.parametrize("path", [[0, 7], [-2], [0.5]])
def test_bad_paths_are_named(tree, path):
    with pytest.raises(ValueError, match="path: wanted node indices"):
        tree.to_text(path=path)
