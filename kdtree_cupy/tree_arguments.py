"""Checks of the arguments that the tree stages take: tables, limits per request, trees, outputs."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from . import checks
from .limits import MAX_BUDGET, MAX_DEPTH, MAX_NODES, MAX_WIDTH
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


def check_out(out: Any, batch: int, num_nodes: int) -> tuple[Array, ...]:
    """Return the nine arrays of ``out``, tree first, or raise."""
    tree, mask, positions = checks.output(out, ("tree", "mask", "positions"))
    dims = checks.Dims(b=batch, N=num_nodes, W=-(-num_nodes // 32))
    return (
        *check_tree(tree, dims, "out.tree"),
        checks.target(mask, "out.mask", "uint32", "b N W", dims),
        checks.target(positions, "out.positions", "int32", "b N", dims),
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
