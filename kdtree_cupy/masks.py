"""What other code derives from a tree: dense and additive masks, positions, SGLang's linked lists.

``tree_build`` already returns the packed mask and the positions; these functions serve trees from elsewhere
and consumers with other layouts.  They take numpy arrays (``tree.to_numpy()``), always return new ones and
stay bounded on any parent array.

Examples
--------
>>> import numpy as np, kdtree_cupy as kd
>>> logprobs = np.log(np.float32([[[0.6, 0.3], [0.5, 0.4]]]))
>>> tree = kd.tree_build(np.int32([[[7, 8], [9, 5]]]), logprobs, [1], budget=3).tree
>>> bool_mask(tree)[0].astype(int).tolist()
[[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 0, 0, 1]]
"""

from __future__ import annotations

from typing import Any

import numpy as np

from . import checks, numpy_backend
from .refs import masks as reference
from .refs.masks import Retrieve
from .tree import DraftTree
from .tree_arguments import TREE_DTYPES, check_tree

Array = Any

__all__ = [
    "Retrieve",
    "additive_mask_zero_is_visible",
    "bool_mask",
    "pack_mask",
    "packed_mask",
    "positions",
    "retrieve",
    "unpack_mask",
]


def bool_mask(tree: DraftTree, *, check: bool = False) -> np.ndarray:
    """Return the dense ancestor mask: True where node i sees node j.

    Parameters
    ----------
    tree : DraftTree
        Trees as numpy arrays.
    check : bool
        Raise ``ValueError`` on a node whose parent is not an earlier node; without it such a node sees
        itself only.

    Returns
    -------
    bool [b, N, N]
        Row i is True at i and its ancestors; a padding row at itself only.

    Raises
    ------
    TypeError, ValueError, BackendError
        As in :func:`~kdtree_cupy.tree_build.tree_build`.
    """
    return reference.bool_mask(_checked(tree, "bool_mask", check))


def packed_mask(tree: DraftTree, *, check: bool = False) -> np.ndarray:
    """Return :func:`bool_mask` as uint32 [b, N, ceil(N/32)]: bit j of a row is word j >> 5, bit j & 31."""
    return reference.packed_mask(_checked(tree, "packed_mask", check))


def pack_mask(visible: np.ndarray) -> np.ndarray:
    """Pack bool [b, N, N] into uint32 [b, N, ceil(N/32)]; any bit pattern is taken."""
    visible = checks.array(visible, "visible", "bool", "b N N", checks.Dims())
    numpy_backend.require("pack_mask", None, {"visible": visible})
    return reference.pack_mask(visible)


def unpack_mask(mask: np.ndarray) -> np.ndarray:
    """Unpack uint32 [b, N, ceil(N/32)] into bool [b, N, N]."""
    dims = checks.Dims()
    mask = checks.array(mask, "mask", "uint32", "b N W", dims)
    if dims["W"] != -(-dims["N"] // 32):
        raise ValueError(f"mask: got shape {mask.shape}, wanted [b, N, ceil(N/32)]")
    numpy_backend.require("unpack_mask", None, {"mask": mask})
    return reference.unpack_mask(mask, dims["N"])


def additive_mask_zero_is_visible(
    tree: DraftTree, *, dtype: Any = np.float32, hidden: float | None = None, check: bool = False
) -> np.ndarray:
    """Return a mask to add to attention scores: 0 where node i sees node j, ``hidden`` elsewhere.

    Parameters
    ----------
    tree : DraftTree
        Trees as numpy arrays.
    dtype : dtype
        Floating type of the result; ``ml_dtypes.bfloat16`` is one.
    hidden : float, optional
        Value of hidden pairs; default the lowest finite number of ``dtype``, which keeps a softmax over an
        all-hidden row free of NaN.  Pass ``-np.inf`` for consumers that want it.
    check : bool
        As in :func:`bool_mask`.

    Returns
    -------
    dtype [b, N, N]
    """
    dtype = np.dtype(dtype)
    if dtype.name not in ("float64", *checks.FLOATS):
        raise TypeError(f"dtype: got {dtype}, wanted float64 or {' or '.join(checks.FLOATS)}")
    if hidden is None:
        import ml_dtypes

        hidden = float(ml_dtypes.finfo(dtype).min)
    hidden = checks.number(hidden, "hidden", "a negative number", lambda v: v < 0)
    return reference.additive_mask_zero_is_visible(_checked(tree, "additive_mask", check), dtype, hidden)


def positions(tree: DraftTree, lengths: Array) -> np.ndarray:
    """Return int32 [b, N], the RoPE position ``lengths[b] + depth`` of every slot; ``lengths`` int32 [b]."""
    tree = _checked(tree, "positions", False)
    lengths = checks.int_vector(lengths, "lengths", tree.batch, 0)
    numpy_backend.require("positions", None, {"lengths": lengths})
    return reference.positions(tree, lengths)


def retrieve(tree: DraftTree, *, check: bool = False) -> Retrieve:
    """Return first-child and next-sibling lists as SGLang's EAGLE kernels take them.

    Parameters
    ----------
    tree : DraftTree
        Trees as numpy arrays.
    check : bool
        As in :func:`bool_mask`; without it a node with a bad parent is nobody's child.

    Returns
    -------
    retrieve_index : int64 [b, N]
        Row of the node in the flattened batch: ``b * N + i``.
    retrieve_next_token : int64 [b, N]
        First child of node i, an index inside the request; -1 if none.
    retrieve_next_sibling : int64 [b, N]
        Next child of the same parent, an index inside the request; -1 if none.  Siblings stand in node order.
    """
    return reference.retrieve(_checked(tree, "retrieve", check))


def _checked(tree: DraftTree, name: str, check: bool) -> DraftTree:
    fields = check_tree(tree, checks.Dims())
    numpy_backend.require(name, None, {f"tree.{k}": v for k, v in zip(TREE_DTYPES, fields, strict=True)})
    if check:
        checks.raise_on_status(name, reference.parent_status(tree))
    return tree
