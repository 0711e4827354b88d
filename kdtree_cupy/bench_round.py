"""Benchmark case of a whole round: everything but the model, checked stage by stage on the very input."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from . import refs
from .bench_cases import ACCEPTED, LAYERS, ROW_BYTES, Case, Shape
from .bench_data import Place, agreeing_targets, checked_requests
from .library.arrays import numpy_dtype
from .round import decode_round
from .round_buffers import RoundBuffers, round_buffers

Array = Any
ROUNDS = 256
"""Rounds of one request that a graph may hold; of a batch fewer, at least 16."""


@dataclass
class RoundInput:
    """Buffers of a round that can be run again and again: roots and lengths are put back by ``reset``."""

    place: Place
    buffers: RoundBuffers
    prefix: int

    def run(self) -> None:
        """Run one round; the model does nothing, its logits and KV rows lie ready."""
        decode_round(self.buffers, _no_model, library=self.place.library)

    def reset(self) -> None:
        """Put roots and lengths back."""
        self.buffers.lengths.fill(self.prefix)
        self.buffers.roots.fill(1)


def _no_model(_: RoundBuffers) -> None:
    pass


def round_input(place: Place, shape: Shape, seed: int, *, layers: int = LAYERS) -> RoundInput:
    """Allocate and fill buffers: peaked draft logits, and a target that agrees with about seven drafts."""
    nodes, prefix = shape.budget + 1, min(shape.prefix, 64)  # commit cares for lengths only as an offset
    room = prefix + max(16, ROUNDS // shape.batch) * (ACCEPTED + 2)
    xp = place.xp
    buffers = round_buffers(
        shape.batch, shape.depth, nodes, shape.width, shape.vocab,
        xp.zeros((layers, shape.batch, room, ROW_BYTES), np.uint8),
        tree_kv=place.bytes(seed + 1, (layers, shape.batch, nodes, ROW_BYTES)),
        dtype=numpy_dtype(shape.dtype), xp=xp,
    )  # fmt: skip
    logits = place.peaked_logits(seed, shape.batch, shape.depth, shape.vocab, shape.dtype)
    place.raw(buffers.draft_logits)[...] = place.raw(logits)
    logits = place.normal(seed + 2, (shape.batch, nodes, shape.vocab), shape.dtype)
    place.raw(buffers.target_logits)[...] = place.raw(logits)
    buffers.budgets.fill(shape.budget)
    given = RoundInput(place, buffers, prefix)
    given.reset()
    given.run()  # for the tree; the target's answer is written into its logits
    tree, request, node, token = buffers.built.tree.to_numpy(), [], [], []
    for b in range(shape.batch):
        for parent, wanted in agreeing_targets(tree, b, ACCEPTED).items():
            request.append(b), node.append(parent), token.append(wanted)
    if request:
        where = tuple(place.array(np.array(i)) for i in (request, node, token))
        number = np.array([30], numpy_dtype(shape.dtype))  # far above N(0, 1)
        bits = number.view(f"u{number.itemsize}")
        buffers.target_logits.view(bits.dtype)[where] = int(bits[0])
    given.reset()
    return given


def check_round(given: RoundInput) -> None:
    """Run one round from poisoned results; raise ``ValueError`` unless every stage's result is right.

    Each stage is compared with its reference on what the stage before it left (some requests of many).
    """
    place, b = given.place, given.buffers
    given.reset()
    tree = b.built.tree
    for array in (b.top.ids, b.top.logprobs, tree.tokens, tree.parents, b.built.mask, b.targets.tokens):
        array.fill(77)
    given.run()
    for r in checked_requests(b.batch):
        one = lambda array, r=r: place.host(array[r : r + 1])  # noqa: E731
        ids = refs.topk_logprob.topk_logprob(one(b.draft_logits), b.width).ids
        _equal("top-k ids", one(b.top.ids), ids, r)
        built = refs.tree_build.tree_build(
            ids, one(b.top.logprobs), np.int32([1]), one(b.budgets),
            lengths=np.int32([given.prefix]), num_nodes=b.num_nodes,
        )  # fmt: skip
        for name in ("tokens", "parents", "scores", "counts"):
            _equal(f"tree {name}", one(getattr(tree, name)), getattr(built.tree, name), r)
        _equal("mask", one(b.built.mask), built.mask, r)
        _equal("positions", one(b.built.positions), built.positions, r)
        tokens = refs.target_token.target_token(one(b.target_logits)).tokens
        _equal("target tokens", one(b.targets.tokens), tokens, r)
        walked = refs.tree_accept.tree_accept(built.tree, tokens, max_depth=b.depth)
        _equal("path", one(b.accepted.path), walked.path, r)
        _equal("root", one(b.roots), walked.next_token, r)
        length = int(walked.path_length[0])
        if length != int(one(b.lengths)[0]) - given.prefix:
            raise ValueError(f"round: length of request {r} did not grow by {length}")
        rows = place.host(b.caches[:, r, given.prefix : given.prefix + length])
        _equal("KV rows", rows, place.host(b.tree_kv[:, r])[:, walked.path[0, :length]], r)


def _equal(what: str, got: np.ndarray, wanted: np.ndarray, request: int) -> None:
    if not np.array_equal(got, wanted):
        raise ValueError(f"round: {what} of request {request} are not the reference's")


def round_case(place: Place, shape: Shape, l2_bytes: int, *, layers: int = LAYERS) -> Case:
    """decode_round with a model that does nothing; cold by running on several sets of buffers in turn."""
    shape = replace(shape, q_len=shape.budget + 1, heads=0, prefix=0)
    given = [round_input(place, shape, 10, layers=layers)]
    b = given[0].buffers
    tree = b.built.tree
    logits = b.draft_logits.nbytes + b.target_logits.nbytes
    more = int(2 * l2_bytes / logits) if place.backend == "cuda" else 0
    given += [round_input(place, shape, 20 + i, layers=layers) for i in range(min(more, 15))]

    def before() -> None:
        for one in given:
            one.reset()

    def check() -> None:
        for one in given[:2]:
            check_round(one)

    def after() -> None:
        for one in given:
            if place.host(one.buffers.committed.status).any():
                raise ValueError("round: the caches were too small for the rounds of a graph")

    given[0].run()
    rows = float(place.host(b.accepted.path_length).sum())
    between = tree.tokens.size * 28 + b.built.mask.nbytes + 8 * b.top.ids.size
    return Case(
        "round", f"{layers} layers", shape, [one.run for one in given], check,
        logits + 2 * between + 2 * rows * layers * ROW_BYTES,
        cold=more > 0 or logits > 2 * l2_bytes > 0, before=before, after=after,
    )  # fmt: skip
