"""One round of draft-tree decoding: every stage once, in order.  This file is the diagram of the system."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .kv_commit import kv_commit
from .round_buffers import RoundBuffers
from .target_token import target_token
from .topk_logprob import topk_logprob
from .tree_accept import tree_accept
from .tree_budget import tree_budget
from .tree_build import tree_build


def decode_round(
    buffers: RoundBuffers, target_model: Callable[[RoundBuffers], object], *, library: Any = None
) -> None:
    """Draft a tree, verify it, commit what the target agrees with; everything stays where the buffers are.

    Allocates nothing and never waits for the device, so that it can be captured (:mod:`.round_graph`).

    Parameters
    ----------
    buffers : RoundBuffers
        Before: ``draft_logits``, ``roots``, ``budgets`` (-1: idle slot), ``lengths``, caches.  After: the
        roots and lengths of the next round, and this round's tree, path and status words.
    target_model : callable
        Fills ``buffers.target_logits`` (and ``tree_kv``) for the nodes in ``buffers.built``: embeddings of
        ``built.tree.tokens``, rotary positions ``built.positions``, attention by
        :func:`kdtree_cupy.verify_attn` under ``built.mask`` on the prefix of ``lengths`` rows.
    library : KernelLibrary, optional
        Default: follows the arrays.
    """
    b, options = buffers, {"library": library}
    topk_logprob(b.draft_logits, b.width, out=b.top, **options)
    tree_build(
        b.top.ids,
        b.top.logprobs,
        b.roots,
        b.budgets,
        lengths=b.lengths,
        num_nodes=b.num_nodes,
        out=b.built,
        **options,
    )
    if b.cost is not None:
        tree_budget(b.built, b.cost, b.contexts, library=library)
    target_model(b)
    target_token(b.target_logits, temperature=b.temperature, uniforms=b.uniforms, out=b.targets, **options)
    tree_accept(b.built.tree, b.targets.tokens, max_depth=b.depth, out=b.accepted, **options)
    kv_commit(
        b.caches, b.accepted.path, b.accepted.path_length, b.lengths,
        tree_kv=b.tree_kv, page_table=b.page_table, out=b.committed, **options,
    )  # fmt: skip
