"""Grouped-query verify attention: exactly the rows that prefix, mask and counts show, in every layout."""

from __future__ import annotations

from typing import NamedTuple

import ml_dtypes
import numpy as np
import pytest
from conftest import Backend, run_into_poison
from oracles import dense_attention, naive_attention
from strategies import random_parents, tree_from
from test_verify_attn import DTYPES, assert_bfloat16
from tolerances import AVERAGE_ROUNDINGS, FLOAT64_SUM, LSE_RELATIVE, assert_no_worse

import kdtree_cupy as kd
from kdtree_cupy import masks
from kdtree_cupy.refs.verify_attn_gqa import verify_attn_gqa as reference

BF16 = ml_dtypes.bfloat16
SCALE = 0.11


class Case(NamedTuple):
    """One call, contiguous, nodes beside the cache."""

    q: np.ndarray
    k_cache: np.ndarray
    v_cache: np.ndarray
    tree_k: np.ndarray
    tree_v: np.ndarray
    mask: np.ndarray
    lengths: np.ndarray
    counts: np.ndarray


def make(
    seed: int, lengths, nodes: int, group: int, shared: int = 2, size: int = 64, *,
    dtype=np.float32, mask="random", counts=None,
) -> Case:  # fmt: skip
    """Return a ragged batch of ``shared`` KV heads; rows that must not be read are NaN."""
    rng = np.random.default_rng(seed)
    batch, rows = len(lengths), max(*lengths, 0, 0) + nodes
    counts = np.full(batch, nodes) if counts is None else np.array(counts)
    normal = lambda *shape: rng.standard_normal(shape, np.float32).astype(dtype)  # noqa: E731
    caches = [normal(batch, rows, shared, size) for _ in range(2)]
    trees = [normal(batch, nodes, shared, size) for _ in range(2)]
    for b in range(batch):
        for cache, tree in zip(caches, trees, strict=True):
            cache[b, lengths[b] :] = np.nan
            tree[b, counts[b] :] = np.nan
    if mask == "any":  # no triangle, no own bit
        visible = rng.random((batch, nodes, nodes)) < 0.5
    else:
        parents = random_parents(rng, nodes, mask)
        visible = np.repeat(masks.bool_mask(tree_from(parents, [0] * nodes)), batch, axis=0)
    q, words = normal(batch, nodes, group * shared, size), masks.pack_mask(visible)
    return Case(q, *caches, *trees, words, np.array(lengths, np.int32), counts.astype(np.int32))


def with_nodes(cache: np.ndarray, tree: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return the cache with the nodes' rows behind the prefix."""
    cache = cache.copy()
    for b, length in enumerate(lengths):
        cache[b, length : length + len(tree[b])] = tree[b]
    return cache


def paged(case: Case, page_size: int, *, in_cache: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return caches in shuffled pages and the page table; what no position needs is NaN or -1."""
    dense = [case.k_cache, case.v_cache]
    if in_cache:
        trees = (case.tree_k, case.tree_v)
        dense = [with_nodes(x, tree, case.lengths) for x, tree in zip(dense, trees, strict=True)]
    needed = case.lengths + (case.counts if in_cache else 0)
    batch, rows, shared, size = case.k_cache.shape
    columns = -(-rows // page_size)
    order = np.random.default_rng(0).permutation(batch * columns + 3)
    table = order[: batch * columns].reshape(batch, columns).astype(np.int32)
    pages = [np.full((batch * columns + 3, page_size, shared, size), np.nan, case.q.dtype) for _ in dense]
    for b in range(batch):
        for position in range(rows):
            for to, cache in zip(pages, dense, strict=True):
                to[table[b, position // page_size], position % page_size] = cache[b, position]
        table[b, -(-int(needed[b]) // page_size) :] = -1
    return *pages, table


def attend(backend: Backend, case: Case, layout="contiguous", **options) -> kd.Attention:
    """Run the stage with prefix and tree rows laid out as ``layout`` says."""
    caches, trees = (case.k_cache, case.v_cache), (case.tree_k, case.tree_v)
    if layout.startswith("contiguous, in cache"):
        caches = [with_nodes(x, tree, case.lengths) for x, tree in zip(caches, trees, strict=True)]
    elif layout[0].isdigit():
        *caches, options["page_table"] = paged(case, int(layout.split()[0]), in_cache="in cache" in layout)
    if "in cache" in layout:
        trees = (None, None)
    if "one row" in layout:
        caches, trees = (
            (None if two[0] is None else np.concatenate(two, axis=2), None) for two in (caches, trees)
        )
    arguments = (case.q, *caches, *trees, case.mask, case.lengths)
    return run_into_poison(
        backend, kd.verify_attn_gqa, *arguments, scale=SCALE, counts=case.counts, **options
    )


def assert_right(case: Case, got: kd.Attention) -> None:
    """Compare with the float64 oracle, KV head by KV head; rows past the count must be 0 and -inf."""
    assert got.out.dtype == case.q.dtype and got.out.shape == case.q.shape and got.lse.dtype == np.float32
    group = case.q.shape[2] // case.k_cache.shape[2]
    for b, (length, count) in enumerate(zip(case.lengths, case.counts, strict=True)):
        assert (got.out[b, count:].astype(np.float32) == 0).all() and (got.lse[b, count:] == -np.inf).all()
        visible = np.concatenate(
            [np.ones((count, length), bool), masks.unpack_mask(case.mask)[b, :count, :count]], axis=1
        )
        sees = visible.any(axis=1)
        assert (got.out[b, :count][~sees].astype(np.float32) == 0).all()
        assert (got.lse[b, :count][~sees] == -np.inf).all()
        if not sees.any():
            continue
        for head in range(case.k_cache.shape[2]):
            own = slice(head * group, (head + 1) * group)
            q, mine = case.q[b, :count, own][sees], got.out[b, :count, own][sees]
            keys, values = (
                np.concatenate([cache[b, :length, head], tree[b, :count, head]])
                for cache, tree in ((case.k_cache, case.tree_k), (case.v_cache, case.tree_v))
            )
            exact, exact_lse = dense_attention(q, keys, visible[sees], SCALE, values)
            naive, naive_lse = naive_attention(q, keys, visible[sees], SCALE, values)
            lse = got.lse[b, :count, own][sees]
            assert_no_worse(mine, exact, naive)
            assert_no_worse(lse, exact_lse, naive_lse)
            if case.q.dtype == BF16:
                assert_bfloat16(mine.astype(np.float64), exact, lse, exact_lse, np.ones(len(q), bool))


LENGTHS = {1: [0, 5], 2: [64, 0, 1], 33: [31, 0], 65: [130]}
GRID = [(group, size, nodes) for group in (1, 2, 4, 7, 8, 16) for size in (64, 128) for nodes in LENGTHS]


def check_grid(backend: Backend, group: int, size: int, nodes: int, dtype) -> None:
    """Run one point of the grid: random bits for a mask, every other one with padding nodes."""
    lengths = LENGTHS[nodes]
    counts = [max(1, nodes - 3 * b - group % 2) for b in range(len(lengths))]
    case = make(group, lengths, nodes, group, 2, size, dtype=dtype, mask="any", counts=counts)
    assert_right(case, attend(backend, case))


@pytest.mark.parametrize(("group", "size", "nodes"), GRID)
def test_groups_and_sizes(backend, group, size, nodes):
    check_grid(backend, group, size, nodes, BF16)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("mask", ["chain", "star", "binary", "random"])
def test_masks_and_types(backend, mask, dtype):
    case = make(1, [511, 16, 0], 15, 3, dtype=dtype, mask=mask, counts=[15, 7, 0])
    assert_right(case, attend(backend, case))


LAYOUTS = [
    "contiguous, in cache", "1", "3", "16", "64", "1 in cache", "16 in cache",
    "contiguous, one row", "contiguous, in cache, one row", "16 one row", "3 in cache, one row",
]  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(backend, layout):
    case = make(3, [33, 0, 70], 9, 2, 3, dtype=BF16, counts=[9, 4, 8])
    assert_right(case, attend(backend, case, layout))


@pytest.mark.parametrize("splits", ["auto", "fixed", 1, 2, 7, 64])
def test_splits(backend, splits):
    case = make(4, [530, 3], 17, 2, dtype=BF16, counts=[17, 16])
    assert_right(case, attend(backend, case, splits=splits))


@pytest.mark.parametrize("size", [64, 128])
@pytest.mark.parametrize("mask", ["chain", "any"])
def test_every_output_is_the_average_of_the_visible_rows(backend, mask, size):
    """Queries of 0 and one-hot values: each output number is 1/n or 0, whatever random data would hide."""
    length, nodes, group = size - 40, 40, 3
    case = make(5, [length], nodes, group, 2, size, dtype=BF16, mask=mask)
    case.q[:] = 0
    one_hot = np.eye(size, dtype=np.float32).astype(BF16)
    case.v_cache[0, :length, 0], case.tree_v[0, :, 0] = one_hot[:length], one_hot[length:]
    case.v_cache[0, :length, 1], case.tree_v[0, :, 1] = one_hot[:length, ::-1], one_hot[length:, ::-1]
    got = attend(backend, case)
    visible = np.concatenate([np.ones((nodes, length), bool), masks.unpack_mask(case.mask)[0]], axis=1)
    share = visible / visible.sum(axis=1, keepdims=True)
    for head in range(2 * group):
        numbers = got.out[0, :, head].astype(np.float64)[:, :: -1 if head >= group else 1]
        assert ((numbers > 0) == visible).all()
        np.testing.assert_allclose(numbers, share, rtol=AVERAGE_ROUNDINGS * float(ml_dtypes.finfo(BF16).eps))
        np.testing.assert_allclose(got.lse[0, :, head], np.log(visible.sum(axis=1)), rtol=LSE_RELATIVE)


def test_a_row_that_sees_nothing_is_zero(backend):
    case = make(6, [0, 4, 0], 40, 2, dtype=BF16, counts=[40, 40, 0])
    case.mask[:] = 0
    assert_right(case, attend(backend, case))
    assert_right(case, attend(backend, case, splits=3))


def test_bits_from_the_count_on_are_ignored(backend):
    case = make(7, [5], 40, 4, dtype=BF16, counts=[33])
    full = case._replace(mask=np.full_like(case.mask, 0xFFFFFFFF))
    assert_right(full, attend(backend, full))


def test_large_and_late_maxima(backend):
    case = make(8, [300], 4, 4, dtype=BF16)
    case.q[:] *= BF16(20)
    assert_right(case, attend(backend, case))
    growth = np.linspace(0, 12, 300, dtype=np.float32)[:, None, None]
    case.k_cache[0, :300] = (case.k_cache[0, :300].astype(np.float32) * growth).astype(BF16)
    assert_right(case, attend(backend, case))


def test_counts_default_to_all_nodes(backend):
    case = make(10, [8], 5, 2, dtype=BF16)
    assert_right(case, backend.run(kd.verify_attn_gqa, *case[:7], scale=SCALE))


def test_one_kv_head_of_equal_keys_and_values_is_the_other_stage_in_small():
    """Multi-query attention with V = K: the reference of verify_attn on rows padded to 576 numbers."""
    case = make(12, [9, 0], 4, 3, 1, counts=[4, 3])
    pad = lambda x: np.concatenate([x, np.zeros((*x.shape[:-1], 576 - 64), x.dtype)], axis=-1)  # noqa: E731
    rows = [pad(x[:, :, 0]) for x in (case.k_cache, case.tree_k)]
    keys = (case.k_cache, case.k_cache, case.tree_k, case.tree_k, case.mask, case.lengths)
    one = reference(case.q, *keys, scale=SCALE, counts=case.counts)
    from kdtree_cupy.refs.verify_attn import verify_attn

    other = verify_attn(pad(case.q), *rows, case.mask, case.lengths, scale=SCALE, counts=case.counts)
    np.testing.assert_allclose(one.out, other.out[..., :64], atol=FLOAT64_SUM)
    np.testing.assert_allclose(one.lse, other.lse, atol=FLOAT64_SUM)
