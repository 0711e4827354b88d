"""Between stages 2 and 3: cut each tree where its expected tokens per time are best.

Examples
--------
>>> import numpy as np, kdtree_cupy as kd
>>> from kdtree_cupy.tree_budget import tree_budget
>>> logprobs = np.log(np.float32([[[0.6, 0.3], [0.5, 0.4]]]))
>>> built = kd.tree_build(np.int32([[[7, 8], [9, 5]]]), logprobs, [1], budget=3)
>>> tree_budget(built, np.array([10.0, 11.0, 12.0, 20.0])).tree.counts.tolist()
[3]
"""

from __future__ import annotations

from typing import Any

import numpy as np

from . import checks, stage_run
from .library.resolve import Run, resolve
from .limits import MAX_NODES
from .refs import tree_budget as reference
from .tree import DraftTree
from .tree_arguments import check_tree
from .tree_build import TreeBuild

Array = Any

CUT = ("tokens", "parents", "depths", "ranks", "scores", "counts")
"""Arrays of the tree that are written."""
DYNAMIC_SHARED = {"tree_budget_v1": 8 * MAX_NODES}
"""Most dynamic shared memory of the kernel, in bytes."""


def tree_budget(
    built: TreeBuild, cost: Array, contexts: Array | None = None, *, library: Any = None
) -> TreeBuild:
    """Cut every tree, in place, to the n draft nodes with the most expected tokens per time.

    The rate of n is ``(1 + Phi(n)) / cost[n]``, Phi(n) being the summed probability of the first n nodes.
    All n are looked at, so that a cost with steps (tiles of a kernel, graph buckets) is served; the fewest
    nodes win ties.  Shapes stay: what is cut becomes padding.

    Parameters
    ----------
    built : TreeBuild
        As from :func:`~kdtree_cupy.tree_build.tree_build`; its arrays are written, ``status`` is not.
    cost : float64 [N] or [b, N]
        What a whole round with n draft nodes costs, n = 0..N-1, in any unit; one row for all, or one per
        request (prefixes differ).  Entries that are not finite and above 0 are never chosen; if a request
        has no other, its tree stays.  :func:`kdtree_cupy.cost.round_in_ar_steps` makes such rows.
    contexts : float64 [C], optional
        Ascending prefixes; ``cost`` is then a table [C, N], taken at each request's prefix (its root's
        position), linear between contexts and flat outside.
    library : KernelLibrary, optional
        Where kernels come from; None follows the kind of the arrays.

    Returns
    -------
    TreeBuild
        ``built`` itself.

    Raises
    ------
    TypeError, ValueError, BackendError
        As in :func:`~kdtree_cupy.tree_build.tree_build`.

    Notes
    -----
    The same on all backends, bit for bit: the exponential is made of additions and multiplications.  Each
    round's own rate is maximised, which is near to, but not, the throughput over many rounds.  Scores are
    the drafter's own log-probs, so a drafter that is too sure of itself gets trees that are too large.

    Source: CaDDTree, arXiv 2606.01813, with the scan over all n instead of its stop at the first fall.
    """
    tree, mask, positions = checks.output(built, TreeBuild._fields)
    dims = checks.Dims()
    check_tree(tree, dims)
    slots = checks.integer(dims["N"], "built.tree: N", 1, MAX_NODES)
    dims["W"] = -(-slots // 32)
    checks.array(mask, "built.mask", "uint32", "b N W", dims)
    checks.array(positions, "built.positions", "int32", "b N", dims)
    if contexts is not None:
        checks.array(contexts, "contexts", "float64", "C", dims)
        checks.array(cost, "cost", "float64", "C N", dims)
        checks.integer(dims["C"], "contexts: C", 1, 2**20)
    else:
        checks.array(cost, "cost", "float64", "N" if len(getattr(cost, "shape", ())) == 1 else "b N", dims)
    arrays = [getattr(tree, name) for name in CUT] + [mask, positions]
    names = [f"built.tree.{name}" for name in CUT] + ["built.mask", "built.positions"]
    run = resolve(library, {"cost": cost, "contexts": contexts} | dict(zip(names, arrays, strict=True)))
    if run.backend == "numpy":
        host = DraftTree(*(run.numpy(getattr(tree, name)) for name in DraftTree.__dataclass_fields__))
        given = [run.numpy(value) for value in (mask, positions, cost)]
        cut = reference.tree_budget(host, *given, None if contexts is None else run.numpy(contexts))
        stage_run.deliver(run, arrays, cut)
    else:
        launch(run, arrays, cost, contexts, slots)
    return built


def launch(run: Run, arrays: list[Array], cost: Array, contexts: Array | None, slots: int) -> None:
    """Run the kernel on checked arguments: tree arrays as in :data:`CUT`, then mask and positions."""
    threads = min(-(-slots // 32) * 32, 256)
    stride = slots if len(cost.shape) == 2 and contexts is None else 0
    rows = 0 if contexts is None else int(contexts.shape[0])
    run.launch(
        "tree_budget.cu", "tree_budget_v1", int(arrays[0].shape[0]), threads,
        (cost, contexts, *arrays, slots, stride, rows), shared_bytes=8 * slots,
    )  # fmt: skip


def self_check(library: Any) -> None:
    """Raise ``ValueError`` unless the kernel cuts small trees as the reference does.

    Parameters
    ----------
    library : KernelLibrary
        With backend "cuda" or "host".
    """
    from .tree_build import tree_build

    rng = np.random.default_rng(0)
    for batch, depth, width, slots in ((3, 5, 9, 40), (2, 15, 64, 300), (1, 1, 1, 1)):
        rows = -np.sort(rng.exponential(2.0, (batch, depth, width)).astype(np.float32), axis=-1)
        ids = rng.integers(0, 99, rows.shape, dtype=np.int32)
        budgets = rng.integers(-1, slots, batch, dtype=np.int32)
        cost = 10.0 + np.cumsum(rng.integers(0, 3, (batch, slots)), axis=1)
        args = (ids, rows, np.arange(batch, dtype=np.int32), budgets)
        stage_run.compare(_build_and_cut, library, *args, num_nodes=slots, cost=cost, build=tree_build)


def _build_and_cut(
    *args: Any, num_nodes: int, cost: Array, build: Any, library: Any, **options: Any
) -> TreeBuild:
    return tree_budget(build(*args, num_nodes=num_nodes, library=library, **options), cost, library=library)
