"""Verify attention: exactly the rows that prefix, mask and counts show, in every layout."""

from __future__ import annotations

from typing import NamedTuple

import ml_dtypes
import numpy as np
import pytest
from conftest import Backend, run_into_poison
from oracles import dense_attention, naive_attention
from strategies import random_parents, tree_from
from tolerances import (
    ATTENTION_FLOAT32,
    AVERAGE_ROUNDINGS,
    BFLOAT16_COSINE,
    BFLOAT16_FROBENIUS,
    BFLOAT16_LSE,
    FLOAT64_SUM,
    LSE_RELATIVE,
    assert_no_worse,
)

import kdtree_cupy as kd
from kdtree_cupy import masks
from kdtree_cupy.refs import verify_attn as reference

DTYPES = [np.float32, np.float16, ml_dtypes.bfloat16]
SCALE = 192**-0.5


class Case(NamedTuple):
    """One call: dense prefix rows [b, S, 576] besides the arguments, for the oracles."""

    q: np.ndarray
    cache: np.ndarray
    tree_kv: np.ndarray
    mask: np.ndarray
    lengths: np.ndarray
    counts: np.ndarray


def make(
    seed: int, lengths, num_nodes: int, heads: int, *, dtype=np.float32, mask="random", counts=None
) -> Case:
    """Return a ragged batch; rows that must not be read are NaN."""
    rng = np.random.default_rng(seed)
    batch, rows = len(lengths), max(*lengths, 0, 0) + num_nodes
    counts = np.full(batch, num_nodes) if counts is None else np.array(counts)
    normal = lambda *shape: rng.standard_normal(shape, np.float32).astype(dtype)  # noqa: E731
    q, cache, tree_kv = (
        normal(batch, num_nodes, heads, 576),
        normal(batch, rows, 576),
        normal(batch, num_nodes, 576),
    )
    for b in range(batch):
        cache[b, lengths[b] :] = np.nan
        tree_kv[b, counts[b] :] = np.nan
    if mask == "any":  # no triangle, no own bit
        visible = rng.random((batch, num_nodes, num_nodes)) < 0.5
    else:
        parents = random_parents(rng, num_nodes, mask)
        visible = np.repeat(masks.bool_mask(tree_from(parents, [0] * num_nodes)), batch, axis=0)
    words = masks.pack_mask(visible)
    return Case(q, cache, tree_kv, words, np.array(lengths, np.int32), counts.astype(np.int32))


def paged(case: Case, page_size: int, *, in_cache: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return the case's cache in shuffled pages and the page table; what no position needs is NaN or -1."""
    dense = case.cache.copy()
    needed = case.lengths + (case.counts if in_cache else 0)
    if in_cache:
        for b, length in enumerate(case.lengths):
            dense[b, length : length + len(case.tree_kv[b])] = case.tree_kv[b]
    batch, columns = len(dense), -(-dense.shape[1] // page_size)
    order = np.random.default_rng(0).permutation(batch * columns + 3)
    table = order[: batch * columns].reshape(batch, columns).astype(np.int32)
    poison = 0xFF if dense.dtype == np.uint8 else np.nan
    pages = np.full((batch * columns + 3, page_size, dense.shape[-1]), poison, dense.dtype)
    for b in range(batch):
        for position in range(dense.shape[1]):
            pages[table[b, position // page_size], position % page_size] = dense[b, position]
        table[b, -(-int(needed[b]) // page_size) :] = -1
    return pages, table


def attend(backend: Backend, case: Case, layout="contiguous", **options) -> kd.Attention:
    """Run the stage with prefix and tree rows laid out as ``layout`` says."""
    cache, tree_kv = case.cache, case.tree_kv
    if layout == "contiguous, in cache":
        cache, tree_kv = cache.copy(), None
        for b, length in enumerate(case.lengths):
            cache[b, length : length + len(case.tree_kv[b])] = case.tree_kv[b]
    elif layout != "contiguous":
        page_size, _, where = layout.partition(" ")
        cache, options["page_table"] = paged(case, int(page_size), in_cache=bool(where))
        tree_kv = None if where else tree_kv
    arguments = (case.q, cache, tree_kv, case.mask, case.lengths)
    return run_into_poison(backend, kd.verify_attn, *arguments, scale=SCALE, counts=case.counts, **options)


def assert_right(case: Case, got: kd.Attention) -> None:
    """Compare with the float64 oracle, request by request; rows past the count must be 0 and -inf."""
    assert got.out.dtype == case.q.dtype and got.lse.dtype == np.float32
    for b, (length, count) in enumerate(zip(case.lengths, case.counts, strict=True)):
        assert (got.out[b, count:].astype(np.float32) == 0).all() and (got.lse[b, count:] == -np.inf).all()
        rows = np.concatenate([case.cache[b, :length], case.tree_kv[b, :count]])
        tree_part = masks.unpack_mask(case.mask)[b, :count, :count]
        visible = np.concatenate([np.ones((count, length), bool), tree_part], axis=1)
        out, lse = dense_attention(case.q[b, :count], rows, visible, SCALE)
        sees = visible.any(axis=1)
        assert (got.out[b, :count][~sees].astype(np.float32) == 0).all()
        assert (got.lse[b, :count][~sees] == -np.inf).all()
        if not sees.any():
            continue
        naive_out, naive_lse = naive_attention(case.q[b, :count][sees], rows, visible[sees], SCALE)
        assert_no_worse(got.out[b, :count][sees], out[sees], naive_out)
        assert_no_worse(got.lse[b, :count][sees], lse[sees], naive_lse)
        if case.q.dtype == ml_dtypes.bfloat16:
            assert_bfloat16(
                got.out[b, :count][sees].astype(np.float64), out[sees], got.lse[b, :count], lse, sees
            )


def assert_bfloat16(out, exact, lse, exact_lse, sees) -> None:
    assert np.linalg.norm(out - exact) <= BFLOAT16_FROBENIUS * np.linalg.norm(exact)
    cosine = (out * exact).sum() / (np.linalg.norm(out) * np.linalg.norm(exact))
    assert 1 - cosine <= BFLOAT16_COSINE
    assert np.abs(lse[sees] - exact_lse[sees]).max() <= BFLOAT16_LSE


SHAPES = [  # lengths, nodes, heads, mask, counts
    ([0], 1, 1, "chain", None),
    ([0, 1], 2, 8, "star", None),
    ([15, 0, 17], 15, 3, "random", [15, 0, 7]),
    ([16, 63], 16, 8, "any", [16, 15]),
    ([64, 65], 17, 1, "binary", [1, 17]),
    ([511], 31, 2, "any", [30]),
    ([129, 0], 33, 8, "random", [33, 32]),
    ([5], 65, 12, "any", None),
    ([200], 129, 1, "binary", [128]),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: f"P{s[0]}-N{s[1]}-H{s[2]}-{s[3]}".replace(" ", ""))
def test_shapes_that_hurt(backend, shape, dtype):
    lengths, nodes, heads, mask, counts = shape
    case = make(nodes, lengths, nodes, heads, dtype=dtype, mask=mask, counts=counts)
    assert_right(case, attend(backend, case))


@pytest.mark.parametrize(
    "layout", ["contiguous, in cache", "1", "3", "16", "64", "1 in cache", "16 in cache"]
)
def test_layouts(backend, layout):
    case = make(3, [33, 0, 70], 9, 2, counts=[9, 4, 8])
    assert_right(case, attend(backend, case, layout))


@pytest.mark.parametrize("splits", ["auto", "fixed", 1, 2, 7, 64])
def test_splits(backend, splits):
    case = make(4, [40, 3], 5, 8, dtype=ml_dtypes.bfloat16)
    assert_right(case, attend(backend, case, splits=splits))


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("mask", ["chain", "star", "random", "any"])
def test_every_output_is_the_average_of_the_visible_rows(backend, mask, dtype):
    """Queries of 0 and one-hot values: each output number is 1/n or 0, whatever random data would hide."""
    length, nodes, heads = 70, 40, 2
    case = make(5, [length], nodes, heads, dtype=dtype, mask=mask)
    case.q[:] = 0
    one_hot = np.eye(576, dtype=np.float32).astype(dtype)
    case.cache[0, :length], case.tree_kv[0] = one_hot[:length], one_hot[length : length + nodes]
    got = attend(backend, case)
    tree_part = masks.unpack_mask(case.mask)[0]
    visible = np.concatenate([np.ones((nodes, length), bool), tree_part], axis=1)
    share = visible / visible.sum(axis=1, keepdims=True)
    for head in range(heads):
        numbers = got.out[0, :, head].astype(np.float64)
        assert ((numbers[:, : length + nodes] > 0) == visible).all()
        ulp = float(ml_dtypes.finfo(dtype).eps)
        np.testing.assert_allclose(numbers[:, : length + nodes], share, rtol=AVERAGE_ROUNDINGS * ulp)
        assert (numbers[:, length + nodes :] == 0).all()
        np.testing.assert_allclose(got.lse[0, :, head], np.log(visible.sum(axis=1)), rtol=LSE_RELATIVE)


def test_a_row_that_sees_nothing_is_zero(backend):
    case = make(6, [0, 4], 3, 2)
    case.mask[:] = 0
    got = attend(backend, case)
    assert (got.out[0] == 0).all() and (got.lse[0] == -np.inf).all()
    assert np.isfinite(got.lse[1]).all()
    assert_right(case, got)


def test_bits_from_the_count_on_are_ignored(backend):
    case = make(7, [5], 40, 1, counts=[33])
    case.mask[:] |= np.uint32(0x80000000)
    full = case._replace(mask=np.full_like(case.mask, 0xFFFFFFFF))
    assert_right(full, attend(backend, full))
    assert_right(case, attend(backend, case))


def test_large_scores_do_not_overflow(backend):
    case = make(8, [50], 4, 2)
    case.q[:] *= 200
    assert_right(case, attend(backend, case))


def test_requests_do_not_influence_each_other(backend):
    case = make(9, [20, 0, 33], 6, 2, counts=[6, 0, 5])
    together = attend(backend, case, splits="fixed")
    for b in range(3):
        alone = attend(backend, Case(*(x[b : b + 1].copy() for x in case)), splits="fixed")
        np.testing.assert_array_equal(together.out[b], alone.out[0])
        np.testing.assert_array_equal(together.lse[b], alone.lse[0])


def test_counts_default_to_all_nodes(backend):
    case = make(10, [8], 5, 2)
    assert_right(case, backend.run(kd.verify_attn, *case[:5], scale=SCALE))


@pytest.mark.slow
def test_float32_accuracy(backend):
    case = make(11, [2048], 33, 64, mask="random")
    for x in (case.q, case.cache, case.tree_kv):
        x *= np.float32(0.5)
    got = backend.run(kd.verify_attn, *case[:5], scale=SCALE)
    exact = reference.verify_attn(*case[:5], scale=SCALE)
    assert np.abs(got.out - exact.out).max() <= ATTENTION_FLOAT32


@pytest.mark.parametrize("counts", [[4, 4], [3, 0]])
def test_absorbed_form_is_the_per_head_form(counts):
    """Textbook MLA, where every head expands its own keys and values, gives the same as the absorbed form."""
    rng = np.random.default_rng(12)
    case = make(12, [9, 0], 4, 3, counts=counts)
    q_nope, q_rope = rng.standard_normal((2, 4, 3, 128)), rng.standard_normal((2, 4, 3, 64))
    w_uk, w_uv = rng.standard_normal((3, 128, 512)) / 20, rng.standard_normal((3, 128, 512)) / 20
    shared = (case.cache, case.tree_kv, case.mask, case.lengths)
    per_head = reference.verify_attn_per_head(
        q_nope, q_rope, w_uk, w_uv, *shared, scale=SCALE, counts=case.counts
    )
    q = reference.absorb_queries(q_nope, q_rope, w_uk)
    absorbed = reference.verify_attn(q, *shared, scale=SCALE, counts=case.counts)
    np.testing.assert_allclose(reference.expand_values(absorbed.out, w_uv), per_head.out, atol=FLOAT64_SUM)
    np.testing.assert_allclose(absorbed.lse, per_head.lse, atol=FLOAT64_SUM)
