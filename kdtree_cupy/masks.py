"""What other code derives from a tree: dense and additive masks, positions, SGLang's linked lists.

``tree_build`` already returns the packed mask and the positions; these functions serve trees from elsewhere
and consumers with other layouts.  They run where the tree's arrays are (``library`` as for the stages),
always return new arrays of the same kind and stay bounded on any parents.

Examples
--------
>>> import numpy as np, kdtree_cupy as kd
>>> logprobs = np.log(np.float32([[[0.6, 0.3], [0.5, 0.4]]]))
>>> tree = kd.tree_build(np.int32([[[7, 8], [9, 5]]]), logprobs, [1], budget=3).tree
>>> bool_mask(tree)[0].astype(int).tolist()
[[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 0, 0, 1]]
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from . import checks, numpy_backend, stage_run
from .library.resolve import Run, resolve
from .limits import MAX_NODES
from .refs import masks as reference
from .refs.masks import Retrieve
from .tree import DraftTree
from .tree_arguments import TREE_DTYPES, check_tree

Array = Any
_BLOCK = 128  # KD_MASK_BLOCK of masks.cu

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


def bool_mask(tree: DraftTree, *, library: Any = None, check: bool = False) -> Array:
    """Return the dense ancestor mask: True where node i sees node j.

    Parameters
    ----------
    tree : DraftTree
        Trees with at most 1025 slots, unless they are numpy's or on the numpy backend.
    library : KernelLibrary, optional
        Where kernels come from; None follows the kind of the arrays.
    check : bool
        Wait for the device and raise ``ValueError`` on a node whose parent is not an earlier node; without it
        such a node sees itself only.

    Returns
    -------
    bool [b, N, N]
        Row i is True at i and its ancestors; a padding row at itself only.

    Raises
    ------
    TypeError, ValueError, BackendError
        As in :func:`~kdtree_cupy.tree_build.tree_build`.
    """
    run, fields = _start(tree, "bool_mask", library, check)
    if run.backend == "numpy":
        return run.give_back(reference.bool_mask(fields))
    visible = run.empty((tree.batch, tree.num_nodes, tree.num_nodes), "bool")
    _launch_pairs(run, "bool_mask", tree, [_packed(run, tree), visible])
    return visible


def packed_mask(tree: DraftTree, *, library: Any = None, check: bool = False) -> Array:
    """Return :func:`bool_mask` as uint32 [b, N, ceil(N/32)]: bit j of a row is word j >> 5, bit j & 31."""
    run, fields = _start(tree, "packed_mask", library, check)
    if run.backend == "numpy":
        return run.give_back(reference.packed_mask(fields))
    return _packed(run, tree)


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
    tree: DraftTree,
    *,
    dtype: Any = np.float32,
    hidden: float | None = None,
    library: Any = None,
    check: bool = False,
) -> Array:
    """Return a mask to add to attention scores: 0 where node i sees node j, ``hidden`` elsewhere.

    Parameters
    ----------
    tree : DraftTree
        As in :func:`bool_mask`.
    dtype : dtype
        Floating type of the result, numpy's; ``ml_dtypes.bfloat16`` is one.
    hidden : float, optional
        Value of hidden pairs; default the lowest finite number of ``dtype``, which keeps a softmax over an
        all-hidden row free of NaN.  Pass ``-np.inf`` for consumers that want it.
    library, check
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
    run, fields = _start(tree, "additive_mask", library, check)
    if run.backend == "numpy":
        return run.give_back(reference.additive_mask_zero_is_visible(fields, dtype, hidden))
    bits = int(np.array(hidden, dtype).view(f"u{dtype.itemsize}"))
    added = run.empty((tree.batch, tree.num_nodes, tree.num_nodes), dtype.name)
    octets = added.view(sys.modules["torch"].uint8) if run.kind == "torch" else added.view("u1")
    size = np.int32(dtype.itemsize)
    _launch_pairs(run, "additive_mask", tree, [_packed(run, tree), octets, np.uint64(bits), size])
    return added


def positions(tree: DraftTree, lengths: Array, *, library: Any = None) -> Array:
    """Return int32 [b, N], the RoPE position ``lengths[b] + depth`` of every slot; ``lengths`` int32 [b]."""
    run, fields = _start(tree, "positions", library, False, lengths if checks.kind(lengths) else None)
    lengths = checks.int_vector(lengths, "lengths", tree.batch, 0)
    if run.backend == "numpy":
        return run.give_back(reference.positions(fields, run.numpy(lengths)))
    places = run.empty((tree.batch, tree.num_nodes), "int32")
    lengths = run.array(lengths, "int32") if checks.kind(lengths) == "numpy" else lengths
    _launch_rows(run, "positions", tree, [tree.depths, lengths, places])
    return places


def retrieve(tree: DraftTree, *, library: Any = None, check: bool = False) -> Retrieve:
    """Return first-child and next-sibling lists as SGLang's EAGLE kernels take them.

    Parameters
    ----------
    tree : DraftTree
        As in :func:`bool_mask`.
    library, check
        As in :func:`bool_mask`; without ``check`` a node with a bad parent is nobody's child.

    Returns
    -------
    retrieve_index : int64 [b, N]
        Row of the node in the flattened batch: ``b * N + i``.
    retrieve_next_token : int64 [b, N]
        First child of node i, an index inside the request; -1 if none.
    retrieve_next_sibling : int64 [b, N]
        Next child of the same parent, an index inside the request; -1 if none.  Siblings stand in node order.
    """
    run, fields = _start(tree, "retrieve", library, check)
    if run.backend == "numpy":
        return Retrieve(*map(run.give_back, reference.retrieve(fields)))
    lists = Retrieve(*(run.empty((tree.batch, tree.num_nodes), "int64") for _ in Retrieve._fields))
    _launch_rows(run, "retrieve", tree, [tree.parents, tree.counts, *lists])
    return lists


def self_check(library: Any) -> None:
    """Raise ``ValueError`` unless the kernels agree with the reference on small trees, broken ones included.

    Parameters
    ----------
    library : KernelLibrary
        With backend "cuda" or "host".
    """
    rng = np.random.default_rng(0)
    for batch, slots in ((3, 1), (2, 33), (2, 70)):
        parents = rng.integers(-1, np.arange(slots) + 1, (batch, slots), dtype=np.int32)
        zeros = np.zeros((batch, slots), np.int32)
        counts = rng.integers(slots // 2, slots + 2, batch, dtype=np.int32)
        tree = DraftTree(zeros, parents, zeros, zeros, zeros.astype(float), counts, counts)
        for derive in (packed_mask, bool_mask, additive_mask_zero_is_visible, retrieve):
            stage_run.compare(derive, library, tree)
        stage_run.compare(positions, library, tree, counts)


def _start(
    tree: DraftTree, name: str, library: Any, check: bool, lengths: Array | None = None
) -> tuple[Run, DraftTree | None]:
    """Return where the call runs and, on the numpy backend, the tree in numpy."""
    fields = check_tree(tree, checks.Dims())
    given = dict(zip((f"tree.{field}" for field in TREE_DTYPES), fields, strict=True))
    run = resolve(library, given if lengths is None else given | {"lengths": lengths})
    if check:
        checks.raise_on_status(name, reference.parent_status(tree.to_numpy()))
    if run.backend == "numpy":
        return run, DraftTree(*map(run.numpy, fields))
    checks.integer(tree.num_nodes, "tree: N", 1, MAX_NODES)
    return run, None


def _launch_rows(run: Run, kernel: str, tree: DraftTree, arguments: list[Any]) -> None:
    grid = (-(-tree.num_nodes // _BLOCK), tree.batch)
    run.launch("masks.cu", kernel, grid, _BLOCK, [*arguments, np.int32(tree.num_nodes)])


def _launch_pairs(run: Run, kernel: str, tree: DraftTree, arguments: list[Any]) -> None:
    grid = (-(-tree.num_nodes // _BLOCK), tree.num_nodes, tree.batch)
    run.launch("masks.cu", kernel, grid, _BLOCK, [*arguments, np.int32(tree.num_nodes)])


def _packed(run: Run, tree: DraftTree) -> Array:
    mask = run.empty((tree.batch, tree.num_nodes, -(-tree.num_nodes // 32)), "uint32")
    _launch_rows(run, "packed_mask", tree, [tree.parents, tree.counts, mask])
    return mask
