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

from . import checks, stage_run
from .library.resolve import Run, resolve
from .limits import MAX_NODES
from .refs import tree_build as reference
from .tree import DraftTree
from .tree_arguments import TREE_DTYPES, Arguments, check_arguments, check_out

Array = Any

_SHARED, _SHARED_NODE = 25088, 70  # KD_TREE_SHARED and KD_TREE_SHARED_NODE of tree_build.cu
DYNAMIC_SHARED = {
    "tree_build_v1": 16 * MAX_NODES,
    "tree_build_v2": _SHARED + _SHARED_NODE * MAX_NODES,
}
"""Most dynamic shared memory of each kernel, in bytes."""


class TreeBuild(NamedTuple):
    """Result of :func:`tree_build`."""

    tree: DraftTree
    mask: Array
    positions: Array


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
    given = {"ids": ids, "logprobs": logprobs, "root_tokens": root_tokens, "lengths": lengths}
    given |= {"budget": budget, "max_depth": max_depth, "max_rank": max_rank}
    run = resolve(library, stage_run.placed(given, ("budget", "max_depth", "max_rank"), targets))
    if run.backend == "numpy":
        results = _reference(run, arguments, targets)
    else:
        results = targets or new_results(run, batch, slots)
        launch(run, arguments, results)
    built = TreeBuild(DraftTree(*results[:7]), results[7], results[8])
    if check:
        checks.raise_on_status("tree_build", built.tree.status)
    return built


def _reference(run: Run, arguments: Arguments, targets: tuple[Array, ...] | None) -> tuple[Array, ...]:
    host = {n: v if n == "num_nodes" else run.numpy(v) for n, v in arguments._asdict().items()}
    first = [host.pop(name) for name in ("ids", "logprobs", "root_tokens", "budget")]
    built = reference.tree_build(*first, **host)
    return stage_run.deliver(run, targets, (*built.tree, built.mask, built.positions))


def new_results(run: Run, batch: int, slots: int) -> tuple[Array, ...]:
    """Return the nine arrays that a kernel writes, uninitialised: the tree's, mask, positions."""
    per_request = ("counts", "status")
    tree = [
        run.empty((batch,) if name in per_request else (batch, slots), dtype)
        for name, dtype in TREE_DTYPES.items()
    ]
    mask = run.empty((batch, slots, -(-slots // 32)), "uint32")
    return (*tree, mask, run.empty((batch, slots), "int32"))


def launch(
    run: Run,
    arguments: Arguments,
    results: tuple[Array, ...],
    *,
    version: int = 2,
    threads: int | None = None,
) -> None:
    """Run kernel ``tree_build_v<version>`` on checked arguments; ``results`` as from :func:`new_results`."""
    batch, depth, width = arguments.ids.shape
    slots = arguments.num_nodes
    optional = ("budget", "lengths", "max_depth", "max_rank")
    values = [_one_or_many(run, getattr(arguments, name)) for name in optional]
    roots = arguments.root_tokens
    roots = run.array(roots, "int32") if checks.kind(roots) == "numpy" else roots
    if version == 1:
        threads, shared = 1, 16 * slots
    else:
        threads, shared = threads or _threads(slots), _SHARED + _SHARED_NODE * slots
    run.launch(
        "tree_build.cu",
        f"tree_build_v{version}",
        batch,
        threads,
        [
            *(arguments.ids, arguments.logprobs, roots, *(array for array, _ in values)),
            *(*results, depth, width, slots, *(number for _, number in values)),
        ],
        shared_bytes=shared,
    )


def _threads(slots: int) -> int:
    return 256 if slots <= 129 else 512


def _one_or_many(run: Run, value: Array) -> tuple[Array | None, int]:
    """Return (array, 0), or (None, number) when host values are all the same: nothing is copied then."""
    if checks.kind(value) != "numpy":
        return value, 0
    if not value.size or (value == value[0]).all():
        return None, int(value[0]) if value.size else 0
    return run.array(value, "int32"), 0


def self_check(library: Any) -> None:
    """Raise ``ValueError`` unless the kernels give the reference's trees on small inputs.

    Parameters
    ----------
    library : KernelLibrary
        With backend "cuda" or "host".
    """
    rng = np.random.default_rng(0)
    for batch, depth, width, budget in ((3, 5, 9, 40), (2, 15, 64, 64), (1, 3, 200, 200), (2, 1, 1, 1)):
        logits = 3.0 * rng.standard_normal((batch, depth, width))
        logits = -np.sort(-np.round(logits, 1), axis=-1)
        table = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        table = np.minimum(table, 0).astype(np.float32)
        table[0, -1, width // 2] = (np.nan, 1.0, -np.inf)[budget % 3]
        ids = rng.integers(0, 1000, table.shape, dtype=np.int32)
        stage_run.compare(tree_build, library, ids, table, np.arange(batch, dtype=np.int32), budget)
