"""Benchmark cases of the stages but attention: inputs, the call to time, its check, its floor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from . import refs
from .bench_data import Place, agreeing_targets, checked_requests
from .kv_commit import Committed, kv_commit
from .refs.topk_logprob import topk_logprob as reference_topk
from .selftest import LOGPROB_BOUND
from .stage_run import leaves
from .target_token import target_token
from .topk_logprob import topk_logprob
from .tree import DraftTree
from .tree_accept import tree_accept
from .tree_build import TreeBuild, tree_build

Array = Any
LAYERS, ROW_BYTES = 61, 1152
"""Rows that kv_commit moves: 61 layers of 576 numbers of two bytes."""
ACCEPTED = 7
"""Drafts that the target of the benchmarks agrees with, where the tree is that deep."""


@dataclass(frozen=True)
class Shape:
    """Sizes of a case; 0 where a stage does not have them."""

    batch: int = 1
    heads: int = 0
    q_len: int = 0
    prefix: int = 0
    dtype: str = "bfloat16"
    budget: int = 64
    depth: int = 15
    width: int = 64
    vocab: int = 163_840


@dataclass
class Case:
    """One thing to time.

    Parameters
    ----------
    stage : str
    variant : str
        What of the stage: a kernel, a mode.
    shape : Shape
    calls : sequence of callables
        The same call on copies of the inputs; together they exceed the L2 cache where ``cold``.
    check : callable
        Raises ``ValueError`` if the result on this very input is wrong.
    moved, flops : float
        Bytes to read and write, and operations, at least.
    reference : callable or None
        The numpy reference on the same input; None where it would take too long.
    cold : bool
        Whether ``calls`` can find a cold cache.
    before, after : callable or None
        Puts inputs back before each sample; raises ``ValueError`` after the last if the samples mean nothing.
    """

    stage: str
    variant: str
    shape: Shape
    calls: Sequence[Callable[[], object]]
    check: Callable[[], None]
    moved: float
    flops: float = 0.0
    reference: Callable[[], object] | None = None
    cold: bool = False
    before: Callable[[], object] | None = None
    after: Callable[[], object] | None = None

    def row(self) -> dict[str, Any]:
        """Return the columns that say what was timed."""
        return {"stage": self.stage, "variant": self.variant, **asdict(self.shape)}


REFERENCE_NUMBERS = 6e6
"""Logits beyond which the numpy reference is not timed beside."""


def copies(place: Place, array: Array, l2_bytes: int) -> list[Array]:
    """Return the array, and as many copies as exceed the L2 cache twice, if that takes at most 256."""
    count = int(2 * l2_bytes / max(array.nbytes, 1)) if place.backend == "cuda" else 0
    return [array, *(array.copy() for _ in range(count if count <= 256 else 0))]


def topk_case(place: Place, shape: Shape, l2_bytes: int) -> Case:
    """topk_logprob on the logits of a peaked drafter."""
    logits = place.peaked_logits(0, shape.batch, shape.depth, shape.vocab, shape.dtype)
    out = topk_logprob(logits, shape.width, library=place.library)
    inputs = copies(place, logits, l2_bytes)

    def check() -> None:
        for array in out:
            array.fill(77)
        topk_logprob(logits, shape.width, library=place.library, out=out)
        for b in checked_requests(shape.batch):
            wanted = reference_topk(place.host(logits[b : b + 1]), shape.width)
            if not np.array_equal(place.host(out.ids[b : b + 1]), wanted.ids):
                raise ValueError(f"topk_logprob: ids of request {b} are not the reference's")
            error = np.abs(place.host(out.logprobs[b : b + 1]).astype(np.float64) - wanted.logprobs)
            if not (error <= 1.125 * LOGPROB_BOUND * np.maximum(1, np.abs(wanted.logprobs))).all():
                raise ValueError(f"topk_logprob: log-probs of request {b} are off by {error.max():.3g}")

    small = logits.size <= REFERENCE_NUMBERS
    return Case(
        "topk_logprob", "default", replace(shape, budget=0), _each(inputs, lambda x: topk_logprob(
            x, shape.width, library=place.library, out=out)), check, logits.nbytes + 8 * out.ids.size,
        reference=(lambda: reference_topk(place.host(logits), shape.width)) if small else None,
        cold=len(inputs) > 1 or logits.nbytes > 2 * l2_bytes > 0,
    )  # fmt: skip


def _each(inputs: Sequence[Any], call: Callable[[Any], object]) -> list[Callable[[], object]]:
    return [lambda x=x: call(x) for x in inputs]


def tree_cases(place: Place, shape: Shape) -> list[Case]:
    """tree_build and tree_accept on the same rows; warm, as a round finds them."""
    width, budget = shape.width, shape.budget
    vocab = min(shape.vocab, 16_384)  # of the rows' making: ids and log-probs of few tokens do
    logits = place.host(place.peaked_logits(0, shape.batch, shape.depth, vocab, "float32"))
    top = reference_topk(logits, min(width, vocab))
    roots = np.arange(shape.batch, dtype=np.int32)
    ids, rows, root_tokens = map(place.array, (top.ids, top.logprobs, roots))
    out = tree_build(ids, rows, root_tokens, budget, num_nodes=budget + 1, library=place.library)
    wanted = refs.tree_build.tree_build(top.ids, top.logprobs, roots, np.full(shape.batch, budget, np.int32))
    tree = DraftTree(*wanted.tree)
    targets = np.full((shape.batch, budget + 1), vocab, np.int32)
    for b in range(shape.batch):
        for node, token in agreeing_targets(tree, b, ACCEPTED).items():
            targets[b, node] = token
    device_targets = place.array(targets)
    accepted = tree_accept(out.tree, device_targets, max_depth=shape.depth, library=place.library)

    def check() -> None:
        _same(place, "tree_build", out, TreeBuild(tree, wanted.mask, wanted.positions))
        walked = refs.tree_accept.tree_accept(tree, targets, max_depth=shape.depth)
        _same(place, "tree_accept", accepted, walked)

    own = replace(shape, q_len=budget + 1, vocab=0, dtype="float32")
    build = lambda: tree_build(  # noqa: E731
        ids, rows, root_tokens, budget, num_nodes=budget + 1, library=place.library, out=out
    )
    accept = lambda: tree_accept(  # noqa: E731
        out.tree, device_targets, max_depth=shape.depth, library=place.library, out=accepted
    )
    written = sum(a.nbytes for a in leaves(out).values())
    reference = lambda: refs.tree_build.tree_build(  # noqa: E731
        top.ids, top.logprobs, roots, np.full(shape.batch, budget, np.int32)
    )
    walk = lambda: refs.tree_accept.tree_accept(tree, targets, max_depth=shape.depth)  # noqa: E731
    return [
        Case("tree_build", "default", own, [build], check, rows.nbytes + written, reference=reference),
        Case("tree_accept", "default", replace(own, width=0), [accept], check, 3 * targets.nbytes,
             reference=walk),
    ]  # fmt: skip


def _same(place: Place, stage: str, got: Any, wanted: Any) -> None:
    found = leaves(wanted)
    for name, array in leaves(got).items():
        if not np.array_equal(place.host(array), found[name], equal_nan=found[name].dtype.kind == "f"):
            raise ValueError(f"{stage}: {name} is not the reference's")


def target_case(place: Place, shape: Shape, l2_bytes: int) -> Case:
    """target_token at temperature 0 on normal logits."""
    nodes = shape.budget + 1
    logits = place.normal(1, (shape.batch, nodes, shape.vocab), shape.dtype)
    out = target_token(logits, library=place.library)
    inputs = copies(place, logits, l2_bytes)

    def check() -> None:
        out.tokens.fill(77)
        target_token(logits, library=place.library, out=out)
        for b in checked_requests(shape.batch):
            wanted = refs.target_token.target_token(place.host(logits[b : b + 1]))
            if not np.array_equal(place.host(out.tokens[b : b + 1]), wanted.tokens):
                raise ValueError(f"target_token: tokens of request {b} are not the reference's")

    small = logits.size <= REFERENCE_NUMBERS
    call = lambda x: target_token(x, library=place.library, out=out)  # noqa: E731
    return Case(
        "target_token", "argmax", replace(shape, q_len=nodes, depth=0, width=0), _each(inputs, call), check,
        logits.nbytes,
        reference=(lambda: refs.target_token.target_token(place.host(logits))) if small else None,
        cold=len(inputs) > 1 or logits.nbytes > 2 * l2_bytes > 0,
    )  # fmt: skip


def commit_case(place: Place, shape: Shape, l2_bytes: int, *, layers: int = LAYERS) -> Case:
    """kv_commit of eight rows a request from tree_kv to contiguous caches; lengths stay, so it can repeat."""
    batch, nodes, room = shape.batch, shape.budget + 1, 64
    taken = np.unique(np.linspace(0, nodes - 1, min(ACCEPTED, shape.depth, nodes - 1) + 1).astype(np.int32))
    path = np.full((batch, shape.depth + 1), -1, np.int32)
    path[:, : taken.size] = taken
    half = layers * batch * taken.size * ROW_BYTES
    caches = place.xp.zeros((layers, batch, room, ROW_BYTES), np.uint8)
    tree_kv = place.bytes(2, (layers, batch, nodes, ROW_BYTES))
    count, lengths = np.full(batch, taken.size, np.int32), np.full(batch, 5, np.int32)
    arguments = tuple(map(place.array, (path, count, lengths)))
    out = Committed(place.array(lengths.copy()), place.array(np.zeros(batch, np.int32)))

    def call(tree: Array) -> None:
        kv_commit(caches, *arguments, tree_kv=tree, library=place.library, out=out)

    def check() -> None:
        call(tree_kv)
        want = tree_kv[:, :, place.array(taken)]
        if not bool((caches[:, :, 5 : 5 + taken.size] == want).all()):
            raise ValueError("kv_commit: rows are not where they belong")
        if (place.host(out.lengths) != 5 + taken.size).any() or place.host(out.status).any():
            raise ValueError("kv_commit: lengths or status are wrong")

    def reference() -> None:
        refs.kv_commit.kv_commit(list(host[0]), path, count, lengths, tree_kv=list(host[1]))

    host = [place.host(a).copy() for a in (caches, tree_kv)] if batch <= 8 else None
    more = min(int(2 * l2_bytes / half), 255) if place.backend == "cuda" else 0
    inputs = [tree_kv, *(tree_kv.copy() for _ in range(more))]
    own = replace(shape, q_len=nodes, width=0, vocab=0, dtype="uint8")
    return Case(
        "kv_commit", f"{layers} layers", own, _each(inputs, call), check, 2 * half,
        reference=reference if host else None, cold=more > 0 or half > 2 * l2_bytes > 0,
    )  # fmt: skip
