"""Every array of a decoding round, allocated once for fixed (batch, nodes, depth, ranks, vocabulary)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .kv_commit import Committed
from .limits import MAX_BUDGET, MAX_DEPTH, MAX_WIDTH
from .target_token import TargetTokens
from .topk_logprob import TopK
from .tree import DraftTree
from .tree_accept import Accepted
from .tree_build import TreeBuild

Array = Any


@dataclass(frozen=True, repr=False, eq=False)
class RoundBuffers:
    """What a round reads and writes; write new inputs into these arrays, never replace one.

    A captured round keeps the addresses: a new array in place of an old one would be ignored in silence, so
    the record is frozen.

    Parameters
    ----------
    draft_logits : [b, D, V]
        Filled by the drafter before a round.
    roots : int32 [b]
        Last committed token of each request; the round leaves the next one here (-1 for an idle slot or after
        a bad target token).
    budgets : int32 [b]
        Draft nodes of each request, at most N - 1; -1 makes the slot idle.
    lengths : int32 [b]
        Rows of each prefix; grows by the path.
    target_logits : [b, N, V]
        Filled by the target model.
    uniforms : float32 [b, N] or None
        Random numbers in [0, 1) for temperature > 0.
    caches, tree_kv, page_table
        As :func:`kdtree_cupy.kv_commit` takes them.
    top, built, targets, accepted, committed
        Results of the stages, in order.
    width : int
        Ranks K kept per position.
    temperature : float
        Of the target; 0 is greedy.
    cost, contexts
        Cost of a round by draft nodes, float64 [N] or [b, N], or with ``contexts`` [C] a table [C, N]; None
        for none.  Trees are cut where tokens per time are best, ``budgets`` being the most
        (:func:`kdtree_cupy.tree_budget.tree_budget`).
    """

    draft_logits: Array
    roots: Array
    budgets: Array
    lengths: Array
    target_logits: Array
    uniforms: Array | None
    caches: Array | Sequence[Array]
    tree_kv: Array | Sequence[Array] | None
    page_table: Array | None
    top: TopK
    built: TreeBuild
    targets: TargetTokens
    accepted: Accepted
    committed: Committed
    width: int
    temperature: float
    cost: Array | None = None
    contexts: Array | None = None

    @property
    def batch(self) -> int:
        """Slots b."""
        return int(self.draft_logits.shape[0])

    @property
    def depth(self) -> int:
        """Drafted positions D."""
        return int(self.draft_logits.shape[1])

    @property
    def num_nodes(self) -> int:
        """Slots N of a tree, root included."""
        return int(self.target_logits.shape[1])

    def __repr__(self) -> str:
        vocab = int(self.draft_logits.shape[2])
        shape = f"batch={self.batch}, depth={self.depth}, num_nodes={self.num_nodes}, width={self.width}"
        return f"RoundBuffers({shape}, vocab={vocab}, temperature={self.temperature})"


def round_buffers(
    batch: int,
    depth: int,
    num_nodes: int,
    width: int,
    vocab: int,
    caches: Array | Sequence[Array],
    *,
    tree_kv: Array | Sequence[Array] | None = None,
    page_table: Array | None = None,
    dtype: Any = "float32",
    temperature: float = 0.0,
    cost: Array | tuple[Array, Array] | None = None,
    xp: Any = np,
) -> RoundBuffers:
    """Allocate the buffers of a round; all slots start idle.

    Parameters
    ----------
    batch, depth, num_nodes, width, vocab : int
        b, D (1..32), N (1..1025, root included), K (1..1024, at most V), V.
    caches, tree_kv, page_table
        The model's own KV arrays, used as they are.
    dtype : dtype
        Of the draft and target logits.
    temperature : float
        Above 0, ``uniforms`` is allocated too and must be refilled before each round.
    cost : float64 [N] or [b, N], or (float64 [C, N], float64 [C]), optional
        Where given, each tree is cut to the nodes that pay; a pair is a table and its contexts.  May be
        rewritten between rounds.
    xp : module
        ``numpy`` or ``cupy``: where the arrays live.

    Raises
    ------
    ValueError
        A size out of range; the message names it.
    """
    limits = {
        "batch": (batch, 1, 65535),
        "depth": (depth, 1, MAX_DEPTH),
        "num_nodes": (num_nodes, 1, MAX_BUDGET + 1),
    }
    limits |= {"vocab": (vocab, 1, 1 << 20), "width": (width, 1, min(MAX_WIDTH, vocab))}
    for name, (value, low, high) in limits.items():
        if not low <= value <= high:
            raise ValueError(f"{name}: got {value}, wanted {low}..{high}")

    def ints(*shape: int, fill: int = 0) -> Array:
        return xp.full(shape, fill, np.int32)

    cost, contexts = cost if isinstance(cost, tuple) else (cost, None)
    b, n = batch, num_nodes
    roots, lengths = ints(b), ints(b)
    tree = DraftTree(
        tokens=ints(b, n), parents=ints(b, n), depths=ints(b, n), ranks=ints(b, n),
        scores=xp.zeros((b, n), np.float64), counts=ints(b), status=ints(b),
    )  # fmt: skip
    return RoundBuffers(
        draft_logits=xp.zeros((b, depth, vocab), dtype),
        roots=roots,
        budgets=ints(b, fill=-1),
        lengths=lengths,
        target_logits=xp.zeros((b, n, vocab), dtype),
        uniforms=xp.zeros((b, n), np.float32) if temperature > 0 else None,
        caches=caches,
        tree_kv=tree_kv,
        page_table=page_table,
        top=TopK(ints(b, depth, width), xp.zeros((b, depth, width), np.float32), ints(b)),
        built=TreeBuild(tree, xp.zeros((b, n, -(-n // 32)), np.uint32), ints(b, n)),
        targets=TargetTokens(ints(b, n), ints(b)),
        accepted=Accepted(ints(b, depth + 1), ints(b), roots, ints(b)),  # the next token is the next root
        committed=Committed(lengths, ints(b)),
        width=width,
        temperature=temperature,
        cost=None if cost is None else xp.asarray(cost, np.float64),
        contexts=None if contexts is None else xp.asarray(contexts, np.float64),
    )
