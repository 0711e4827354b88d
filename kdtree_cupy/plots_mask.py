"""Picture of what verify attention reads: which node sees which KV row, and how kernels cut that."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from . import style
from .masks import bool_mask
from .tree import DraftTree

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot_mask(
    tree: DraftTree, prefix: int, *, request: int = 0, heads: int = 1, tile: int = 16, unit: int = 16
) -> Figure:
    """Draw what the nodes of one tree see, left by node, right by (node, head) pair under a grid of squares.

    Parameters
    ----------
    tree : DraftTree
        Trees in numpy arrays.
    prefix : int
        Rows of the prefix, all of which every node sees.
    request : int
        Which tree of the batch.
    heads : int
        Heads; the pairs, ``node * heads + head``, are the rows of the right-hand picture.
    tile, unit : int
        Pairs of a tile, KV rows of a unit: the sides of a square.

    Returns
    -------
    Figure
        Light: prefix; dark: tree; white: hidden.
    """
    import matplotlib.pyplot as plt

    count = int(tree.counts[request])
    sees = bool_mask(tree)[request, :count, :count]
    shade = np.concatenate([np.full((count, prefix), 0.35), sees], axis=1)
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.2), layout="constrained")
    ends = (("node", count, 1), ("node * heads + head", count * heads, heads))
    for ax, (label, height, times) in zip((left, right), ends, strict=True):
        extent = (0, prefix + count, height, 0)
        ax.imshow(shade.repeat(times, axis=0), cmap="Blues", vmin=0, vmax=1, aspect="auto", extent=extent)
        ax.set(xlabel=f"KV row: {prefix} of the prefix, then {count} nodes", ylabel=label)
        ax.grid(False)
    left.set_title("what a node sees")
    right.set_title(f"tiles of {tile} rows, units of {unit} KV rows")
    right.set_xticks(range(0, prefix + count + 1, unit))
    right.set_yticks(range(0, count * heads + 1, tile))
    right.grid(color=style.ORANGE, linewidth=1)
    right.set_axisbelow(False)
    return figure
