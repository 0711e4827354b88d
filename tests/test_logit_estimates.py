"""Kernels that guess from part of a row: when the guess suffices, and that nothing changes if it fails."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from conftest import assert_same, library_of
from tolerances import assert_logprobs

import kdtree_cupy as kd
from kdtree_cupy import stage_scratch
from kdtree_cupy import topk_logprob_cut as topk_cut
from kdtree_cupy.library import KernelLibrary
from kdtree_cupy.library.host_run import KernelFault

BACKENDS = ("host", "cuda")
KERNELS = Path(__file__).parents[1] / "kernels_cu"
REFERENCE = library_of("numpy")
BFLOAT16 = ml_dtypes.bfloat16

SHAPES = {"a tile a slice": (2, 20_001), "tiles": (9, 50_001), "slices of tiles": (2, 100_003)}
"""Rows and vocabulary: how the host cuts them."""


def assert_topk(backend, logits, k):
    got = backend.run(kd.topk_logprob, logits, k)
    wanted = kd.topk_logprob(logits, k, library=REFERENCE)
    np.testing.assert_array_equal(got.ids, wanted.ids)
    np.testing.assert_array_equal(got.status, wanted.status)
    assert_logprobs(got.logprobs, wanted.logprobs)


def refuses(file: str, function: str) -> KernelLibrary:
    """Return a host library in which ``function`` of ``file`` stops the kernel."""
    library = KernelLibrary(backend="host")
    library.checks_edits = False
    text = (KERNELS / file).read_text()
    head = text.index("{", text.index(f" {function}(")) + 1
    library.replace(file, f"{text[:head]}\n    __trap();{text[head:]}")
    return library


def test_the_shapes_are_cut_as_their_names_say():
    cuts = {name: topk_cut.cut_rows(rows, -(-vocab // 8), 2, 64) for name, (rows, vocab) in SHAPES.items()}
    assert {name: (cut.slices > 1, cut.tiles > 1) for name, cut in cuts.items()} == {
        "a tile a slice": (True, False), "tiles": (False, True), "slices of tiles": (True, True),
    }  # fmt: skip


@pytest.mark.parametrize("k", [1, 64, 1024])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("scale", [0.2, 2.5])
def test_ordinary_rows_are_not_looked_at_twice(shape, k, scale):
    rows, vocab = shape
    logits = (scale * np.random.default_rng(0).standard_normal((1, rows, vocab))).astype(BFLOAT16)
    got = kd.topk_logprob(logits, k, library=refuses("topk_merge.cuh", "put_from_row"))
    np.testing.assert_array_equal(got.ids, kd.topk_logprob(logits, k, library=REFERENCE).ids)


def adversarial(kind: str, rows: int, vocab: int, k: int) -> np.ndarray:
    """Return [1, rows, vocab] bfloat16 logits on which a bound from a sample is of no use."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal((rows, vocab)).astype(np.float32)
    if kind == "one run of ids":
        x[:, vocab // 3 : vocab // 3 + 2 * k] += 20
    elif kind == "one part":  # the best lie where one slice, or the sample of one, looks
        cut = topk_cut.cut_rows(rows, -(-vocab // 8), 2, k)
        parts, run = cut.slices * cut.tiles, 8 << cut.group
        x[:, np.arange(vocab) // run % parts == 0] += 20
    elif kind == "no part but one":
        cut = topk_cut.cut_rows(rows, -(-vocab // 8), 2, k)
        parts, run = cut.slices * cut.tiles, 8 << cut.group
        x[:, np.arange(vocab) // run % parts != 0] += 20
    elif kind == "few finite":
        x[:, rng.permutation(vocab)[k // 2 :]] = -np.inf
    elif kind == "some finite":
        x[:, rng.permutation(vocab)[3 * k + 7 :]] = -np.inf
    elif kind == "equal":
        x[:] = 0.5
    elif kind == "ten thousand ties":
        x[:, rng.permutation(vocab)[:10_000]] = 7
    elif kind == "rising":
        x.sort(-1)
    elif kind == "falling":
        x = -np.sort(-x)
    return x.astype(BFLOAT16)[None]


KINDS = ("one run of ids", "one part", "no part but one", "few finite", "some finite", "equal",
         "ten thousand ties", "rising", "falling")  # fmt: skip


@pytest.mark.parametrize("k", [5, 64, 1024])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_rows_that_mislead_the_sample(backend, shape, kind, k):
    assert_topk(backend, adversarial(kind, *shape, k), k)


@pytest.mark.parametrize("kind", ["few finite", "equal", "ten thousand ties"])
def test_such_rows_do_need_a_second_look(kind):
    logits = adversarial(kind, *SHAPES["tiles"], 64)
    with pytest.raises(KernelFault):
        kd.topk_logprob(logits, 64, library=refuses("topk_merge.cuh", "put_from_row"))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_one_bad_element_in_any_tile(backend, shape, bad):
    rows, vocab = shape
    places = [0, 7, 8, 255, 256, 2047, 10_240, vocab // 2, vocab - 9, vocab - 1]
    logits = np.random.default_rng(2).standard_normal((1, rows, vocab)).astype(BFLOAT16)
    for place in places:
        own = logits.copy()
        own[0, rows - 1, place] = bad
        got = backend.run(kd.topk_logprob, own, 8)
        assert got.status.tolist() == [1] and np.isnan(got.logprobs[0, -1]).all()
        assert got.ids[0, -1].tolist() == list(range(8)) and not np.isnan(got.logprobs[0, :-1]).any()


@pytest.mark.parametrize(
    ("vocab", "k"), [(1, 1), (7, 7), (257, 257), (1023, 1023), (1024, 1024), (9001, 1024)]
)
@pytest.mark.parametrize("dtype", [np.float32, BFLOAT16])
def test_many_ranks_of_a_small_vocabulary(backend, vocab, k, dtype):
    logits = np.random.default_rng(vocab).standard_normal((2, 2, vocab)).astype(dtype)
    logits[0, 0, : vocab // 2] = -np.inf
    assert_topk(backend, logits, k)


# ---- top-p of bfloat16 rows, from counts of values ----


def assert_tokens(library, backend, logits, **options):
    got = kd.target_token(
        backend.to(logits), library=library, **{k: backend.to(v) for k, v in options.items()}
    )
    assert_same(backend.back(got), kd.target_token(logits, library=REFERENCE, **options))


def rows_of_values(kind: str) -> np.ndarray:
    """Return [1, 3, V] bfloat16 logits."""
    rng = np.random.default_rng(3)
    x = rng.standard_normal((3, 30_011)).astype(np.float32)
    if kind == "beyond the bins":
        x = 300 + 2 * x
    elif kind == "far below":
        x = 2 * x - 300
    elif kind == "around zero":
        x *= 1e-4
    elif kind == "zeros":
        x[:] = 0
    elif kind == "mostly hidden":
        x[:, rng.permutation(30_011)[40:]] = -np.inf
    elif kind == "two values":
        x = np.where(x > 2, 3.0, -1.0)
    elif kind == "steep":
        x *= 30
    elif kind == "wide":
        x = 8 * x + 10
    return x.astype(BFLOAT16)[None]


VALUE_KINDS = ("plain", "beyond the bins", "far below", "around zero", "zeros", "mostly hidden", "two values",
               "steep", "wide")  # fmt: skip


@pytest.mark.parametrize("kind", VALUE_KINDS)
@pytest.mark.parametrize("top_p", [1e-6, 0.3, 0.9, 0.999])
@pytest.mark.parametrize("temperature", [0.3, 1.0, 40.0])
def test_top_p_of_any_values(backend, kind, top_p, temperature):
    uniforms = np.float32([[0.02, 0.47, 0.93]])
    logits = rows_of_values(kind)
    assert_tokens(backend.library, backend, logits, temperature=temperature, top_p=top_p, uniforms=uniforms)


def test_many_rows_have_a_block_each(backend):
    logits = np.random.default_rng(4).standard_normal((2, 30, 9001)).astype(BFLOAT16)
    uniforms = np.random.default_rng(5).random((2, 30), np.float32)
    assert_tokens(backend.library, backend, logits, temperature=1.0, top_p=0.8, uniforms=uniforms)


@pytest.mark.parametrize("multiprocessors", [1, 2, 4, 5])
def test_any_number_of_blocks_shares_a_row(backend, multiprocessors, monkeypatch):
    monkeypatch.setattr(stage_scratch, "multiprocessors", lambda device: multiprocessors)
    logits = np.random.default_rng(6).standard_normal((1, 1, 140_003)).astype(BFLOAT16)
    slices = {1: 1, 2: 2, 4: 4, 5: 4}[multiprocessors]
    assert kd.target_token.__globals__["cut_large"](1, 17_501, multiprocessors) == (slices, 1024)
    assert_tokens(backend.library, backend, logits)
    for u in (0.0, 0.31, 0.77, 0.999):
        options = {"temperature": 1.0, "uniforms": np.float32([[u]])}
        for top_p in (1.0, 0.9):
            assert_tokens(backend.library, backend, logits, top_p=top_p, **options)
    assert_topk(backend, logits, 64)


@pytest.mark.parametrize(
    ("kind", "clear"), [("plain", True), ("wide", True), ("beyond the bins", False), ("zeros", False)]
)
def test_counts_suffice_for_ordinary_rows(kind, clear):
    library = refuses("target_nucleus.cuh", "nucleus_of_row")
    options = {"temperature": 1.0, "top_p": 0.9, "uniforms": np.float32([[0.1, 0.5, 0.8]])}
    if clear:
        got = kd.target_token(rows_of_values(kind), library=library, **options)
        assert_same(got, kd.target_token(rows_of_values(kind), library=REFERENCE, **options))
    else:
        with pytest.raises(KernelFault):
            kd.target_token(rows_of_values(kind), library=library, **options)
