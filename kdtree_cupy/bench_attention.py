"""Benchmark cases of the attention stages: inputs, the call, its check against float64, its floor."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from .bench_cases import Case, Shape, copies
from .bench_data import Place, checked_requests, random_trees
from .masks import pack_mask
from .refs import verify_attn as reference
from .refs.verify_attn_gqa import verify_attn_gqa as reference_gqa
from .verify_attn import verify_attn
from .verify_attn_gqa import verify_attn_gqa

Array = Any
SCALE = 192**-0.5
WIDTH, LATENT = 576, 512
GROUP, SIZE = 4, 128
"""Of verify_attn_gqa: heads of a KV head, as far as there are so many, and numbers of a head."""
ALLOWED = {"bfloat16": (4e-3, 1e-5, 1e-4), "float16": (1e-3, 1e-6, 1e-4), "float32": (2e-6, 1e-9, 1e-5)}
"""Most relative Frobenius error, 1 - cosine and error of lse on N(0, 1) inputs (docs/numerics.md)."""
CHECKED_NODES = 16
REFERENCE_PAIRS = 1e5
"""Pairs of a query row and a KV row beyond which verify_attn_gqa's, which is slower, is not timed beside."""
REFERENCE_FLOPS = 4e8
"""Operations beyond which the numpy reference is not timed beside."""


def attention_flops(shape: Shape) -> float:
    """Return operations of a call: every node sees the prefix and, as an upper bound, all nodes."""
    pairs = shape.batch * shape.heads * shape.q_len * (shape.prefix + shape.q_len)
    return 2.0 * pairs * (WIDTH + LATENT)


def attention_bytes(shape: Shape, itemsize: int) -> float:
    """Return bytes that must move: each KV row once, queries in, results out."""
    rows = shape.batch * (shape.prefix + shape.q_len) * WIDTH
    return itemsize * (rows + shape.batch * shape.q_len * shape.heads * (WIDTH + LATENT))


def attention_case(place: Place, shape: Shape, l2_bytes: int) -> Case:
    """verify_attn on N(0, 1) numbers and random trees."""
    nodes, batch = shape.budget + 1, shape.batch
    shape = replace(shape, q_len=nodes, width=0, vocab=0, depth=0)
    q = place.normal(3, (batch, nodes, shape.heads, WIDTH), shape.dtype)
    cache = place.normal(4, (batch, max(shape.prefix, 1), WIDTH), shape.dtype)
    tree_kv = place.normal(5, (batch, nodes, WIDTH), shape.dtype)
    visible = random_trees(6, batch, nodes)
    mask = place.array(pack_mask(visible))
    lengths = place.array(np.full(batch, shape.prefix, np.int32))
    options: dict[str, Any] = {"scale": SCALE, "library": place.library}
    out = verify_attn(q, cache, tree_kv, mask, lengths, **options)
    inputs = copies(place, cache, l2_bytes)

    def check() -> None:
        place.raw(out.out).fill(0)
        verify_attn(q, cache, tree_kv, mask, lengths, out=out, **options)
        for b in checked_requests(batch):
            kv = place.xp.concatenate([place.wide(cache[b, : shape.prefix]), place.wide(tree_kv[b])])
            _check(
                place, shape.dtype, place.wide(q[b]) * SCALE, kv, kv[:, :LATENT], visible[b],
                (out.out[b], out.lse[b]),
            )  # fmt: skip

    def on_the_host() -> None:
        host = [place.host(a) for a in (q, cache, tree_kv, mask, lengths)]
        reference.verify_attn(*host, scale=SCALE)

    calls = [lambda c=c: verify_attn(q, c, tree_kv, mask, lengths, out=out, **options) for c in inputs]
    flops = attention_flops(shape)
    return Case(
        "verify_attn", "default", shape, calls, check, attention_bytes(shape, q.dtype.itemsize), flops,
        reference=on_the_host if flops <= REFERENCE_FLOPS else None,
        cold=len(inputs) > 1 or cache.nbytes > 2 * l2_bytes > 0,
    )  # fmt: skip


def gqa_case(place: Place, shape: Shape, l2_bytes: int) -> Case:
    """verify_attn_gqa on N(0, 1) numbers and random trees: groups of :data:`GROUP` heads of :data:`SIZE`."""
    nodes, batch = shape.budget + 1, shape.batch
    group = next(g for g in range(GROUP, 0, -1) if shape.heads % g == 0)
    shared = shape.heads // group
    shape = replace(shape, q_len=nodes, width=0, vocab=0, depth=0)
    q = place.normal(3, (batch, nodes, shape.heads, SIZE), shape.dtype)
    keys, values = (
        place.normal(seed, (batch, max(shape.prefix, 1), shared, SIZE), shape.dtype) for seed in (4, 5)
    )
    trees = [place.normal(seed, (batch, nodes, shared, SIZE), shape.dtype) for seed in (6, 7)]
    visible = random_trees(8, batch, nodes)
    rest = (*trees, place.array(pack_mask(visible)), place.array(np.full(batch, shape.prefix, np.int32)))
    options: dict[str, Any] = {"scale": SIZE**-0.5, "library": place.library}
    out = verify_attn_gqa(q, keys, values, *rest, **options)
    inputs = list(zip(copies(place, keys, l2_bytes // 2), copies(place, values, l2_bytes // 2), strict=True))

    def check() -> None:
        place.raw(out.out).fill(0)
        verify_attn_gqa(q, keys, values, *rest, out=out, **options)
        for b, head in product(checked_requests(batch), {0, shared - 1}):
            rows = [
                place.xp.concatenate(
                    [place.wide(cache[b, : shape.prefix, head]), place.wide(tree[b, :, head])]
                )
                for cache, tree in zip((keys, values), trees, strict=True)
            ]
            own = slice(group * head, group * (head + 1))
            _check(
                place, shape.dtype, place.wide(q[b, :, own]) * SIZE**-0.5, *rows, visible[b],
                (out.out[b, :, own], out.lse[b, :, own]), "verify_attn_gqa",
            )  # fmt: skip

    def on_the_host() -> None:
        reference_gqa(*(place.host(a) for a in (q, keys, values, *rest)), scale=SIZE**-0.5)

    pairs = batch * shape.heads * nodes * (shape.prefix + nodes)
    moved = 2 * batch * SIZE * (shared * (shape.prefix + nodes) + shape.heads * nodes) * q.dtype.itemsize
    return Case(
        "verify_attn_gqa", f"groups of {group}", shape,
        [lambda k=k, v=v: verify_attn_gqa(q, k, v, *rest, out=out, **options) for k, v in inputs],
        check, moved, 4.0 * pairs * SIZE, reference=on_the_host if pairs <= REFERENCE_PAIRS else None,
        cold=len(inputs) > 1 or 2 * keys.nbytes > 2 * l2_bytes > 0,
    )  # fmt: skip


def _check(
    place: Place, dtype: str, q: Array, keys: Array, values: Array, visible: np.ndarray,
    got: tuple[Array, Array], stage: str = "verify_attn",
) -> None:  # fmt: skip
    """Compare some nodes of one request, all heads, with float64 where the arrays are; q is scaled."""
    xp, nodes = place.xp, q.shape[0]
    some = np.unique(np.linspace(0, nodes - 1, min(nodes, CHECKED_NODES)).astype(np.int64))
    chosen, prefix = place.array(some), keys.shape[0] - nodes
    rows = q[chosen].reshape(-1, q.shape[-1])
    scores = (rows @ keys.T).reshape(some.size, -1, keys.shape[0])
    hidden = np.concatenate([np.zeros((some.size, prefix), bool), ~visible[some]], axis=1)
    scores = xp.where(place.array(hidden)[:, None], -np.inf, scores)
    peak = scores.max(-1, keepdims=True)
    mass = xp.exp(scores - peak)
    total = mass.sum(-1, keepdims=True)
    wanted = (mass / total) @ values
    lse = (peak + xp.log(total))[..., 0]
    mine = place.wide(got[0])[chosen]
    norm = lambda x: float(xp.sqrt((x * x).sum()))  # noqa: E731
    errors = (
        norm(mine - wanted) / norm(wanted),
        1 - float((mine * wanted).sum()) / (norm(mine) * norm(wanted)),
        float(abs(place.wide(got[1][chosen]) - lse).max()),
    )
    for name, error, most in zip(("Frobenius", "1 - cosine", "lse"), errors, ALLOWED[dtype], strict=True):
        if not error <= most:
            raise ValueError(f"{stage}: {name} error {error:.3g}, allowed {most:.3g}")
