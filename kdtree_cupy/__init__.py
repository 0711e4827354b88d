"""kdtree_cupy: a bench for DDTree draft-tree speculative decoding (not a spatial k-d tree).

One stage, one function.  A round of decoding calls them in this order::

    topk_logprob   draft logits [b, D, V]  -> ids, logprobs [b, D, K]
    tree_build     ids, logprobs           -> DraftTree, ancestor mask, positions
    verify_attn    queries of N nodes      -> attention over prefix and tree (verify_attn_gqa: grouped heads)
    target_token   target logits [b, N, V] -> token the target chose at each node
    tree_accept    tree, target tokens     -> path, next root
    kv_commit      caches, path            -> KV rows moved to the prefix

The contract.  The root is node 0: the last committed token, whose KV is not in the cache yet.  A budget B
counts draft nodes, root excluded, so N = B + 1 rows are verified.  Nodes stand in best-first order, parents
first.  ``counts[b]`` says how many nodes are real; padding is never recognised by token id.  Every stage
takes ``library=None, out=None, check=False``, never waits for the device unless ``check=True``, and reports
faults of the data in a status word per request (:mod:`kdtree_cupy.limits`).
"""

from __future__ import annotations

# The stages are imported here, not on first use: function and module share a name, and a later import of
# the module would put itself in the function's place.
from .errors import BackendError, CompileError, KdtrError
from .kv_commit import Committed, kv_commit
from .target_token import TargetTokens, target_token
from .topk_logprob import TopK, topk_logprob
from .tree import DraftTree
from .tree_accept import Accepted, tree_accept
from .tree_build import TreeBuild, tree_build
from .verify_attn import Attention, verify_attn
from .verify_attn_gqa import verify_attn_gqa
from .version import __version__

__all__ = [
    "__version__",
    # stages, in the order of a round
    "topk_logprob",
    "tree_build",
    "verify_attn",
    "verify_attn_gqa",
    "target_token",
    "tree_accept",
    "kv_commit",
    # by hand
    "explore",
    # records
    "DraftTree",
    "TopK",
    "TreeBuild",
    "Attention",
    "TargetTokens",
    "Accepted",
    "Committed",
    # errors
    "BackendError",
    "CompileError",
    "KdtrError",
]


def explore(traces: object = None, **choices: object) -> object:
    """Look at rounds of a trace: tree, mask, tau curve, predicted speedup; see :func:`.explorer.explore`."""
    from .explorer import explore as run

    return run(traces, **choices)


def load_ipython_extension(shell: object) -> None:
    """Register ``%%kernel``, ``%kernels``, ``%tree`` and ``%study``: what ``%load_ext kdtree_cupy`` calls."""
    import importlib

    importlib.import_module("kdtree_cupy.magics").load(shell)  # by name: nothing below imports the front ends


def unload_ipython_extension(shell: object) -> None:
    """Leave a kernel's ``printf`` alone again; the magics stay until the shell ends."""
    import importlib

    importlib.import_module("kdtree_cupy.magics").unload(shell)
