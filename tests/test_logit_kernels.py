"""Kernels that read whole rows of logits: any length and start, ties by the thousand, large offsets."""

from __future__ import annotations

import re
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from conftest import assert_same, library_of
from tolerances import assert_logprobs

import kdtree_cupy as kd
from kdtree_cupy import kv_commit_launch, stage_scratch
from kdtree_cupy import topk_logprob_cut as topk_cut
from kdtree_cupy.library import KernelLibrary, nvrtc, resolve
from kdtree_cupy.library.report import shared_limit
from kdtree_cupy.limits import MAX_NODES

BACKENDS = ("host", "cuda")
KERNELS = Path(__file__).parents[1] / "kernels_cu"
DTYPES = [np.float32, np.float16, ml_dtypes.bfloat16]
REFERENCE = library_of("numpy")
topk = kd.topk_logprob.__globals__
target = kd.target_token.__globals__


def assert_topk(backend, logits, k, **options):
    got = backend.run(kd.topk_logprob, logits, k, **options)
    wanted = kd.topk_logprob(logits, k, library=REFERENCE, **options)
    np.testing.assert_array_equal(got.ids, wanted.ids)
    np.testing.assert_array_equal(got.status, wanted.status)
    assert_logprobs(got.logprobs, wanted.logprobs)
    return got


def assert_argmax(backend, logits, **options):
    got = backend.run(kd.target_token, logits, **options)
    assert_same(got, kd.TargetTokens(*kd.target_token(logits, library=REFERENCE, **options)))


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("vocab", [1, 3, 7, 8, 9, 1023, 4097, 8193, 20_001])
def test_rows_of_any_length_start_anywhere(backend, dtype, vocab):
    """Odd vocabularies: each row starts at another place within 16 bytes."""
    logits = np.random.default_rng(vocab).standard_normal((3, 3, vocab)).astype(dtype)
    assert_topk(backend, logits, min(vocab, 17))
    assert_argmax(backend, logits)
    uniforms = np.random.default_rng(1).random((3, 3), np.float32)
    for top_p in (1.0, 0.8):
        assert_argmax(backend, logits, temperature=1.0, uniforms=uniforms, top_p=top_p)


@pytest.mark.parametrize("k", [1, 64, 65, 1024])
@pytest.mark.parametrize(
    "kind",
    [
        "equal",
        "ascending",
        "descending",
        "ten_thousand_ties",
        "two_values",
        "almost_all_hidden",
        "late",
        "huge",
    ],
)
def test_rows_that_defeat_an_estimate(backend, kind, k):
    """The list of candidates overflows, or its bound never rises: the result must not change."""
    rng = np.random.default_rng(0)
    row = rng.standard_normal(50_001).astype(np.float32)
    if kind == "equal":
        row[:] = -1.5
    elif kind == "ascending":
        row.sort()
    elif kind == "descending":
        row[::-1].sort()
    elif kind == "ten_thousand_ties":
        row[rng.permutation(len(row))[:10_000]] = 3.0
    elif kind == "two_values":
        row = np.where(row > 1.6, np.float32(0.0), np.float32(-0.0))
    elif kind == "late":
        row[:45_000] = -np.inf
    elif kind == "huge":
        row *= 3e37
    else:
        row[rng.permutation(len(row))[: 50_001 - 40]] = -np.inf
    for dtype in (np.float32, ml_dtypes.bfloat16):
        assert_topk(backend, np.stack([row, row[::-1]])[None].astype(dtype), k)


@pytest.mark.parametrize("where", [0, 1, 7, 8, 255, 8191, 8192, 16_384, 19_999, 20_000])
@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf])
def test_one_bad_element_anywhere(backend, where, bad):
    """First and last of a row, of a chunk, of a tile, of a slice."""
    logits = np.random.default_rng(0).standard_normal((1, 2, 20_001)).astype(ml_dtypes.bfloat16)
    logits[0, 1, where] = bad
    assert_topk(backend, logits, 64)
    uniforms = np.full((1, 2), 0.5, np.float32)
    for options in ({}, {"temperature": 1.0, "uniforms": uniforms, "top_p": 0.5}):
        assert_argmax(backend, logits, **options)


@pytest.mark.parametrize("exponent", [-8, -11, -11.7, -12.5, -14])
def test_many_equal_small_terms(backend, exponent):
    """Half of the sum in 160,000 equal terms: their errors do not cancel, so each must be small."""
    row = np.full((1, 1, 163_840), exponent, np.float32)
    row[0, 0, 77] = 0.0
    assert_topk(backend, row, 3)
    assert_topk(backend, row * np.float32(0.7) + np.float32(40), 3, temperature=0.7)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("temperature", [5e-324, 1e-35, 1e-3, 1e3, 1e35, 1.7e308])
def test_extreme_temperatures(backend, temperature):
    logits = np.random.default_rng(0).standard_normal((1, 2, 300)).astype(np.float32)
    logits[0, 0, 5] = -np.inf
    assert_topk(backend, logits, 9, temperature=temperature)
    uniforms = np.float32([[0.3, 0.9]])
    assert_argmax(backend, logits, temperature=temperature, uniforms=uniforms)


@pytest.mark.parametrize("temperature", [1.0, 3.0, 0.1])
@pytest.mark.parametrize("size", [5e6, -1e10, 1e30, -3e38])
def test_logits_far_from_zero(backend, size, temperature):
    """What a product with the temperature loses there must not count: equal logits have equal shares."""
    logits = np.full((1, 2, 300), size, np.float32)
    logits[0, 1, 7] = np.nextafter(np.float32(size), np.float32(0))
    assert_topk(backend, logits, 9, temperature=temperature)
    uniforms = np.float32([[0.3012, 0.9012]])
    for top_p in (1.0, 0.5017):
        options = {"temperature": temperature, "uniforms": uniforms, "top_p": top_p}
        assert_argmax(backend, logits, **options)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
def test_first_versions_agree(backend, dtype):
    """The obvious kernels, which are the check of the fast ones."""
    rng = np.random.default_rng(3)
    logits = np.round(2 * rng.standard_normal((2, 3, 700)), 1).astype(dtype)
    logits[1, 1, 3], logits[0, 2] = np.nan, -np.inf
    uniforms = rng.random((2, 3), np.float32)
    moved, u = backend.to(logits), backend.to(uniforms)
    run = resolve(backend.library, {"logits": moved})
    top = kd.TopK(*topk["new_results"](run, 2, 3, 40))
    topk["launch"](run, moved, None, top, 650, 0.9, version=1)
    wanted = kd.topk_logprob(logits, 40, valid_vocab=650, temperature=0.9, library=REFERENCE)
    np.testing.assert_array_equal(backend.back(top.ids), wanted.ids)
    np.testing.assert_array_equal(backend.back(top.status), wanted.status)
    assert_logprobs(backend.back(top.logprobs), wanted.logprobs)
    for temperature, top_p in ((0.0, 1.0), (0.9, 1.0), (0.9, 0.6)):
        chosen = kd.TargetTokens(*target["new_results"](run, 2, 3))
        target["launch"](run, moved, u, chosen, 650, temperature, top_p, version=1)
        options = {"temperature": temperature, "top_p": top_p, "uniforms": uniforms, "valid_vocab": 650}
        assert_same(backend.back(chosen), kd.target_token(logits, library=REFERENCE, **options))


def test_repeats_are_equal_bit_for_bit(backend):
    logits = np.random.default_rng(0).standard_normal((2, 2, 30_000)).astype(ml_dtypes.bfloat16)
    uniforms = np.random.default_rng(1).random((2, 2), np.float32)

    def once():
        top = backend.run(kd.topk_logprob, logits, 64)
        drawn = backend.run(kd.target_token, logits, temperature=1.0, top_p=0.9, uniforms=uniforms)
        return [a.tobytes() for a in (*top, *drawn)]

    first = once()
    for seed in range(100 if backend.name == "cuda" else 6):
        backend.library.host_options["seed"] = seed - 1
        assert once() == first
    backend.library.host_options.pop("seed")


def test_offsets_past_two_to_the_31(backend):
    """2,051 rows of 2^20 logits, of which only the first 40 are touched."""
    if backend.name == "cuda":
        import cupy

        logits = cupy.zeros((1, 2051, 1 << 20), cupy.float16)
    else:
        logits = np.zeros((1, 2051, 1 << 20), np.float16)
    logits[0, 2050, 7], logits[0, 2049, 39], logits[0, 2050, 40] = 1, 2, 9
    chosen = kd.target_token(logits, valid_vocab=40, library=backend.library)
    assert backend.back(chosen.tokens)[0, 2047:].tolist() == [0, 0, 39, 7]
    top = kd.topk_logprob(logits, 2, valid_vocab=40, library=backend.library)
    assert backend.back(top.ids)[0, 2049:].tolist() == [[39, 0], [7, 0]]


def test_largest_sizes_fit_a_block():
    """V = 262,144 with K = 1024 within the 99 KB of sm_120; no kernel spills registers."""
    if not nvrtc_works():
        pytest.skip("needs NVRTC")
    for arch in ("sm_80", "sm_90", "sm_120"):
        for dtype in topk["CXX"].values():
            files = ["topk_logprob.cu", "target_token.cu", "kv_commit.cu"]
            report = KernelLibrary(arch=arch).report(files, defines={"KD_LOGIT": dtype})
            for row in report.rows:
                assert row.spill_bytes == 0, f"{row.name} {arch} {dtype}"
                most = row.static_shared + row.dynamic_shared
                assert most <= shared_limit("sm_120"), f"{row.name}: {most} bytes"


def nvrtc_works() -> bool:
    try:
        nvrtc.choose()
    except kd.BackendError:
        return False
    return True


def test_numbers_shared_with_the_sources():
    text = "\n".join(path.read_text() for path in KERNELS.glob("*.cu*"))
    macros = {name: int(value) for name, value in re.findall(r"#define (KD_\w+) (\d+)\s", text)}
    cut = {f"_{name}": value for name, value in vars(topk_cut).items()}
    shared = {
        "KD_SELECT": (cut, ("THREADS",)),
        "KD_ROW": (cut, ("SLICES",)),
        "KD_TOPK": (cut, ("UNROLL",)),
        "KD": (target, ("UNROLL",)),
        "KD_TARGET": (target, ("THREADS", "SLICES")),
        "KD_COUNT": (target, ("WORDS",)),
        "KD_MASS": (target, ("BINS",)),
        "KD_COMMIT": (vars(kv_commit_launch), ("THREADS", "HELD", "ROWS")),
    }
    for prefix, (module, names) in shared.items():
        for name in names:
            assert macros[f"{prefix}_{name}"] == module[f"_{name}"], f"{prefix}_{name}"
    assert macros["KD_ARGMAX_THREADS"] == target["_MOST_THREADS"]
    assert macros["KD_NUCLEUS_WORDS"] == target["_NUCLEUS"] and topk["MAX_VOCAB"] == 1 << macros["KD_ID_BITS"]
    assert kv_commit_launch._THREADS * kv_commit_launch._HELD >= MAX_NODES
    assert stage_scratch.multiprocessors(None) == stage_scratch.HOST_MULTIPROCESSORS


def test_stages_check_themselves(backend):
    for stage in (kd.topk_logprob, kd.target_token, kd.kv_commit):
        stage.__globals__["self_check"](backend.library)
