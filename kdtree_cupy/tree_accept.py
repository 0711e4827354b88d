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

from . import checks, numpy_backend
from .limits import MAX_DEPTH
from .refs import tree_accept as reference
from .tree import DraftTree
from .tree_build import TREE_DTYPES, check_tree

Array = Any


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
    arrays = dict(zip(TREE_DTYPES, fields, strict=True)) | {"target_tokens": target_tokens}
    numpy_backend.require("tree_accept", library, arrays)
    ref = reference.tree_accept(tree, target_tokens, max_depth=max_depth, vocab_size=vocab_size)
    accepted = Accepted(*numpy_backend.fill(targets, ref))
    if check:
        checks.raise_on_status("tree_accept", accepted.status)
    return accepted


def check_out(out: Accepted, batch: int, max_depth: int) -> tuple[Array, ...]:
    """Return the four arrays of ``out``, or raise."""
    arrays = checks.output(out, Accepted._fields)
    dims = checks.Dims(b=batch, P=max_depth + 1)
    return tuple(
        checks.array(value, f"out.{name}", "int32", "b P" if name == "path" else "b", dims)
        for name, value in zip(Accepted._fields, arrays, strict=True)
    )
