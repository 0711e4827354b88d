"""Stage 5: the longest path of the tree that the target agrees with.

Examples
--------
>>> import numpy as np, kdtree_cupy as kd
>>> logprobs = np.log(np.float32([[[0.6, 0.3], [0.5, 0.4]]]))
>>> tree = kd.tree_build(np.int32([[[7, 8], [9, 5]]]), logprobs, [1], budget=3).tree
>>> accepted = kd.tree_accept(tree, np.int32([[7, 9, 4, 0]]))
>>> accepted.path[0].tolist(), int(accepted.next_token[0])
([0, 1, 2, -1], 4)
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from . import checks, stage_run
from .library.resolve import Run, resolve
from .limits import MAX_DEPTH, MAX_NODES
from .refs import tree_accept as reference
from .tree import DraftTree
from .tree_arguments import TREE_DTYPES, check_tree

Array = Any

DYNAMIC_SHARED = {"tree_accept_v1": 0, "tree_accept_v2": 4 * MAX_NODES}
"""Most dynamic shared memory of each kernel, in bytes."""


class Accepted(NamedTuple):
    """Result of :func:`tree_accept`."""

    path: Array
    path_length: Array
    next_token: Array
    status: Array


def tree_accept(
    tree: DraftTree,
    target_tokens: Array,
    *,
    max_depth: int | None = None,
    vocab_size: int | None = None,
    library: Any = None,
    out: Accepted | None = None,
    check: bool = False,
) -> Accepted:
    """Walk each tree along the target's tokens; return the path and the token that follows it.

    Parameters
    ----------
    tree : DraftTree
        Trees with N slots per request.
    target_tokens : int32 [b, N]
        Token the target chose (argmax or sample) after each node; read at visited nodes only.
    max_depth : int, optional
        Drafted nodes a path can hold, 0..N-1; default ``min(N - 1, MAX_DEPTH)``.  A longer agreement is
        cut there, which stays lossless.  Pass the number of drafted positions D for the narrowest path.
    vocab_size : int, optional
        Target tokens from here on are out of range; without it only negative ones are.
    library, out, check
        As in :func:`~kdtree_cupy.tree_build.tree_build`.

    Returns
    -------
    path : int32 [b, max_depth + 1]
        Node indices from the root on, padded with -1.
    path_length : int32 [b]
        Nodes on the path, root included: the tokens that the round commits.  0 in idle slots.
    next_token : int32 [b]
        Target token at the last node, the next root; -1 in idle slots and after a bad target token.
    status : int32 [b]
        Bit 2: a parent that is not an earlier node (never stepped to).  Bit 3: a bad target token at a
        visited node (the walk ends there).  Bit 4: ``counts`` exceeds N (cut to N).

    Raises
    ------
    TypeError, ValueError, BackendError
        As in :func:`~kdtree_cupy.tree_build.tree_build`.

    Notes
    -----
    If several children hold the target's token, the lowest node index is taken.  Matching the target's own
    token is the optimal lossless verification of a deterministic tree, greedy or sampled.

    Source: DDTree, arXiv 2604.12989, section on verification.
    """
    dims = checks.Dims()
    fields = check_tree(tree, dims)
    target_tokens = checks.array(target_tokens, "target_tokens", "int32", "b N", dims)
    slots = checks.integer(dims["N"], "tree: N", 1, 2**31 - 1)
    if max_depth is None:
        max_depth = min(slots - 1, MAX_DEPTH)
    max_depth = checks.integer(max_depth, "max_depth", 0, max(slots - 1, MAX_DEPTH))
    if vocab_size is not None:
        vocab_size = checks.integer(vocab_size, "vocab_size", 1, 2**31 - 1)
    targets = None if out is None else check_out(out, dims["b"], max_depth)
    given = dict(zip((f"tree.{name}" for name in TREE_DTYPES), fields, strict=True))
    run = resolve(library, stage_run.placed(given | {"target_tokens": target_tokens}, (), targets))
    if run.backend == "numpy":
        tree = DraftTree(*map(run.numpy, fields))
        ref = reference.tree_accept(
            tree, run.numpy(target_tokens), max_depth=max_depth, vocab_size=vocab_size
        )
        accepted = Accepted(*stage_run.deliver(run, targets, ref))
    else:
        checks.integer(slots, "tree: N", 1, MAX_NODES)
        accepted = Accepted(*(targets or new_results(run, dims["b"], max_depth)))
        launch(run, tree, target_tokens, accepted, vocab_size or 0)
    if check:
        checks.raise_on_status("tree_accept", accepted.status)
    return accepted


def new_results(run: Run, batch: int, max_depth: int) -> tuple[Array, ...]:
    """Return the four arrays that a kernel writes, uninitialised."""
    return run.empty((batch, max_depth + 1), "int32"), *(run.empty((batch,), "int32") for _ in range(3))


def launch(
    run: Run, tree: DraftTree, target_tokens: Array, results: Accepted, vocab_size: int, *, version: int = 2
) -> None:
    """Run kernel ``tree_accept_v<version>`` on checked arguments; ``vocab_size`` 0 stands for no limit."""
    batch, slots = tree.batch, tree.num_nodes
    max_depth = int(results.path.shape[1]) - 1
    threads = 32 if version == 1 else min(-(-slots // 32) * 32, 256)
    run.launch(
        "tree_accept.cu",
        f"tree_accept_v{version}",
        -(-batch // 32) if version == 1 else batch,
        threads,
        [
            tree.tokens,
            tree.parents,
            tree.counts,
            target_tokens,
            *results,
            batch,
            slots,
            max_depth,
            vocab_size,
        ],
        shared_bytes=0 if version == 1 else 4 * slots,
    )


def self_check(library: Any) -> None:
    """Raise ``ValueError`` unless the kernels walk like the reference on small trees, broken ones included.

    Parameters
    ----------
    library : KernelLibrary
        With backend "cuda" or "host".
    """
    rng = np.random.default_rng(0)
    for batch, slots, alphabet in ((5, 1, 2), (4, 33, 3), (3, 200, 2)):
        below = np.maximum(np.arange(slots), 1)
        tree = DraftTree(
            tokens=rng.integers(0, alphabet, (batch, slots), dtype=np.int32),
            parents=(rng.integers(0, below, (batch, slots)) - (rng.random((batch, slots)) < 0.02)).astype(
                np.int32
            ),
            depths=np.zeros((batch, slots), np.int32),
            ranks=np.zeros((batch, slots), np.int32),
            scores=np.zeros((batch, slots)),
            counts=rng.integers(0, slots + 2, batch, dtype=np.int32),
            status=np.zeros(batch, np.int32),
        )
        targets = rng.integers(-1 if slots == 33 else 0, alphabet, (batch, slots), dtype=np.int32)
        stage_run.compare(tree_accept, library, tree, targets, vocab_size=alphabet)


def check_out(out: Accepted, batch: int, max_depth: int) -> tuple[Array, ...]:
    """Return the four arrays of ``out``, or raise."""
    arrays = checks.output(out, Accepted._fields)
    dims = checks.Dims(b=batch, P=max_depth + 1)
    return tuple(
        checks.target(value, f"out.{name}", "int32", "b P" if name == "path" else "b", dims)
        for name, value in zip(Accepted._fields, arrays, strict=True)
    )
