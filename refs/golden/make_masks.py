"""Golden cases of the mask functions, on the trees of the other files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import golden_file as golden
import make_tree_accept
import numpy as np

from kdtree_cupy.refs import masks


def cases() -> golden.Cases:
    """Return the trees of tree_accept's cases, with lengths for the positions."""
    return {
        name: {"tree": case["tree"], "lengths": golden.integers(0, 5000, case["tree"].counts.shape, 70)}
        for name, case in make_tree_accept.cases().items()
    }


def run(tree: Any, lengths: np.ndarray) -> dict[str, Any]:
    """Return everything that is derived from a tree."""
    return {
        "bool_mask": masks.bool_mask(tree),
        "packed_mask": masks.packed_mask(tree),
        "positions": masks.positions(tree, lengths),
        "parent_status": masks.parent_status(tree),
        "retrieve": masks.retrieve(tree),
    }


def make(folder: Path = golden.HERE) -> Path:
    """Write masks.kdtr into ``folder``."""
    return golden.save(folder, "masks", cases(), run)


if __name__ == "__main__":
    print(make())
