"""Stage 2: the best tree of B candidate tokens from per-position log-probs.

Examples
--------
>>> import numpy as np, kdtree_cupy as kd
>>> logprobs = np.log(np.float32([[[0.6, 0.3], [0.5, 0.4]]]))
>>> built = kd.tree_build(np.int32([[[7, 8], [9, 5]]]), logprobs, [1], budget=3)
>>> built.tree.paths()
[(), (0,), (0, 0), (1,)]
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from . import checks, numpy_backend
from .limits import MAX_BUDGET, MAX_DEPTH, MAX_NODES, MAX_WIDTH
from .refs import tree_build as reference
from .tree import DraftTree

Array = Any

TREE_DTYPES = {
    "tokens": "int32",
    "parents": "int32",
    "depths": "int32",
    "ranks": "int32",
    "scores": "float64",
    "counts": "int32",
    "status": "int32",
}
"""Dtype of each array of a :class:`~kdtree_cupy.tree.DraftTree`."""


class TreeBuild(NamedTuple):
    """Result of :func:`tree_build`."""

    tree: DraftTree
    mask: Array
    positions: Array


class Arguments(NamedTuple):
    """Arguments of one call after the checks: arrays, per-request limits and N."""

    ids: Array
    logprobs: Array
    root_tokens: Array
    budget: Array
    lengths: Array
    num_nodes: int
    max_depth: Array
    max_rank: Array


def tree_build(
    ids: Array,
    logprobs: Array,
    root_tokens: Array,
    budget: Array | int,
    *,
    lengths: Array | None = None,
    num_nodes: int | None = None,
    max_depth: Array | int | None = None,
    max_rank: Array | int | None = None,
    library: Any = None,
    out: TreeBuild | None = None,
    check: bool = False,
) -> TreeBuild:
    """Build the draft tree of every request by best-first search, with its ancestor mask and positions.

    Parameters
    ----------
    ids : int32 [b, D, K]
        Token of each rank at each drafted position.
    logprobs : float32 [b, D, K]
        Their log-probs, each row descending and <= 0; -inf never becomes a node.
    root_tokens : int32 [b]
        Last committed token of each request (or a list of ints).
    budget : int or int [b]
        Draft nodes B wanted, root excluded; 0 gives the root alone, -1 marks an idle slot.
    lengths : int32 [b], optional
        Committed tokens whose KV is in the cache; zeros if not given.
    num_nodes : int, optional
        Slots N per request.  Default ``max(budget) + 1``, at least 1; required when ``budget`` is a device
        array, because the default would have to wait for it.
    max_depth : int or int [b], optional
        Deepest node allowed; default D.
    max_rank : int or int [b], optional
        Ranks in use per position: rank < max_rank; default K.
    library : KernelLibrary, optional
        Where kernels come from; None follows the kind of the arrays.
    out : TreeBuild, optional
        Arrays to write into instead of new ones.
    check : bool
        Wait for the device and raise on a status word other than 0.

    Returns
    -------
    tree : DraftTree
        Nodes in pop order; slots past ``counts[b]`` are padding.
    mask : uint32 [b, N, ceil(N/32)]
        Bit j of row i (word j >> 5, bit j & 31): node i sees node j, that is j is i or an ancestor of it.
    positions : int32 [b, N]
        ``lengths[b] + depth``, the RoPE position of each slot; padding has depth 0.

    Raises
    ------
    TypeError
        Wrong kind or dtype of an argument.
    ValueError
        Wrong shape, range or layout; with ``check=True``, a status word other than 0.
    BackendError
        No backend takes arrays of this kind.

    Notes
    -----
    Scores are float64 sums of the float32 log-probs, root to node; ties go to the lexicographically smaller
    rank tuple.  A row with NaN or +inf ends the tree before its depth (status bit 0).  A row that ascends or
    holds a value above 0 sets bit 1, and the tree is what the search pops all the same.  A budget in a
    device array that exceeds N - 1 is cut and sets bit 4.  Rows beyond ``max_depth``, ranks from
    ``max_rank`` on and tables of requests with budget <= 0 are not read.

    Source: DDTree, arXiv 2604.12989, algorithm 1 (with K given by the caller).
    """
    arguments = check_arguments(ids, logprobs, root_tokens, budget, lengths, num_nodes, max_depth, max_rank)
    batch, slots = arguments.ids.shape[0], arguments.num_nodes
    targets = None if out is None else check_out(out, batch, slots)
    numpy_backend.require("tree_build", library, arguments._asdict() | {"num_nodes": None})
    ref = reference.tree_build(
        *arguments[:4], **{name: getattr(arguments, name) for name in Arguments._fields[4:]}
    )
    results = numpy_backend.fill(targets, (*ref.tree, ref.mask, ref.positions))
    built = TreeBuild(DraftTree(*results[:7]), results[7], results[8])
    if check:
        checks.raise_on_status("tree_build", built.tree.status)
    return built


def check_arguments(
    ids: Array,
    logprobs: Array,
    root_tokens: Array,
    budget: Array | int,
    lengths: Array | None,
    num_nodes: int | None,
    max_depth: Array | int | None,
    max_rank: Array | int | None,
) -> Arguments:
    """Return the arguments of :func:`tree_build`, defaults filled in, or raise."""
    dims = checks.Dims()
    ids = checks.array(ids, "ids", "int32", "b D K", dims)
    logprobs = checks.array(logprobs, "logprobs", "float32", "b D K", dims)
    batch, depth, width = dims["b"], dims["D"], dims["K"]
    checks.integer(depth, "ids: D", 0, MAX_DEPTH)
    checks.integer(width, "ids: K", 0, MAX_WIDTH)
    root_tokens = checks.int_vector(root_tokens, "root_tokens", batch)
    budget = checks.per_request(budget, "budget", batch, -1, MAX_BUDGET)
    on_host = checks.kind(budget) == "numpy"
    largest = max(int(np.max(budget, initial=0)), 0) if on_host else 0
    if num_nodes is None:
        if not on_host:
            raise ValueError("num_nodes: got None, wanted an int because budget is a device array")
        num_nodes = largest + 1
    num_nodes = checks.integer(num_nodes, "num_nodes", largest + 1, MAX_NODES)
    if lengths is None:
        lengths = np.zeros(batch, np.int32)
    lengths = checks.int_vector(lengths, "lengths", batch, 0)
    max_depth = depth if max_depth is None else max_depth
    max_rank = width if max_rank is None else max_rank
    max_depth = checks.per_request(max_depth, "max_depth", batch, 0, checks.INT32[1])
    max_rank = checks.per_request(max_rank, "max_rank", batch, 0, checks.INT32[1])
    return Arguments(ids, logprobs, root_tokens, budget, lengths, num_nodes, max_depth, max_rank)


def check_out(out: TreeBuild, batch: int, num_nodes: int) -> tuple[Array, ...]:
    """Return the nine arrays of ``out``, tree first, or raise."""
    tree, mask, positions = checks.output(out, ("tree", "mask", "positions"))
    dims = checks.Dims(b=batch, N=num_nodes, W=-(-num_nodes // 32))
    return (
        *check_tree(tree, dims, "out.tree"),
        checks.array(mask, "out.mask", "uint32", "b N W", dims),
        checks.array(positions, "out.positions", "int32", "b N", dims),
    )


def check_tree(tree: DraftTree, dims: checks.Dims, name: str = "tree") -> tuple[Array, ...]:
    """Return the seven arrays of a draft tree after checking dtype, shape and layout (not the values)."""
    if not isinstance(tree, DraftTree):
        raise TypeError(f"{name}: got {type(tree).__name__}, wanted a DraftTree")
    specs = {"counts": "b", "status": "b"}
    return tuple(
        checks.array(getattr(tree, field), f"{name}.{field}", dtype, specs.get(field, "b N"), dims)
        for field, dtype in TREE_DTYPES.items()
    )
