"""Golden cases of tree_accept: trees of tree_build, and broken ones by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import golden_file as golden
import make_tree_build
import numpy as np

from kdtree_cupy.refs.tree_accept import tree_accept
from kdtree_cupy.refs.tree_build import Tree, empty_tree, tree_build


def along_the_tree(tree: Tree, seed: int) -> np.ndarray:
    """Return target tokens that often agree with a child: int32 [b, N]."""
    targets = golden.integers(0, 160_000, tree.tokens.shape, seed)
    for b, parents in enumerate(tree.parents):
        for node in range(int(tree.counts[b])):
            children = [i for i in range(1, int(tree.counts[b])) if parents[i] == node]
            if children and node % 4 != 3:
                targets[b, node] = tree.tokens[b, children[(node + seed) % len(children)]]
    return targets


def built(batch: int, depth: int, width: int, seed: int, budget: Any) -> dict[str, Any]:
    """Return a built tree and targets along it."""
    tree = tree_build(**make_tree_build.table((batch, depth, width), seed), budget=budget).tree
    return {"tree": tree, "target_tokens": along_the_tree(tree, seed)}


def by_hand(parents: list[list[int]], tokens: list[list[int]], counts: list[int]) -> Tree:
    """Return a batch with the given parents and tokens; the walk reads nothing else."""
    tree = empty_tree(len(parents), len(parents[0]))
    tree.parents[:], tree.tokens[:], tree.counts[:] = parents, tokens, counts
    return tree


def cases() -> golden.Cases:
    """Return the arguments of every case."""
    broken = by_hand(
        [[-1, 2, 1, 0], [-1, 7, 0, 2], [-1, 0, 0, 2], [-1, 0, 1, 2], [-1, 0, 0, 0], [-1, 0, 1, 2]],
        [[9, 5, 5, 6], [9, 5, 5, 6], [9, 5, 5, 6], [9, 5, -1, 0], [9, 5, 6, 0], [9, 5, 6, 7]],
        [4, 4, 4, 4, 3, 7],
    )
    targets = np.int32([[6, 5, 5, 1], [5, 5, 6, 8], [5, 6, 6, 1], [5, -1, 0, 0], [0, 0, 0, 0], [5, 6, 7, 99]])
    return {
        "built": built(4, 7, 8, 50, np.int32([40, 0, -1, 12])) | {"max_depth": 7},
        "long_chain": built(1, 15, 1, 51, 15),
        "cut": built(2, 9, 3, 52, 64) | {"max_depth": 2},
        "broken": {"tree": broken, "target_tokens": targets, "vocab_size": 50},
    }


def make(folder: Path = golden.HERE) -> Path:
    """Write tree_accept.kdtr into ``folder``."""
    return golden.save(folder, "tree_accept", cases(), lambda **arguments: tree_accept(**arguments))


if __name__ == "__main__":
    print(make())
