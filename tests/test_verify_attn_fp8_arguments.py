"""verify_attn with 8-bit rows and output types: bad arguments and bad edits are named."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from conftest import library_of

import kdtree_cupy as kd
from kdtree_cupy import verify_attn_fp8
from kdtree_cupy.library import KernelLibrary
from kdtree_cupy.verify_attn_variants import Card, block_for

BF16 = ml_dtypes.bfloat16
Q = np.zeros((1, 2, 3, 576), BF16)
SCALED, PLAIN = np.zeros((1, 4, 656), np.uint8), np.zeros((1, 4, 576), np.uint8)
NUMBERS = np.zeros((1, 4, 576), BF16)
MASK, LENGTHS = np.zeros((1, 2, 1), np.uint32), np.zeros(1, np.int32)


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"cache": SCALED[..., :600].copy()}, ValueError, "cache: got shape (1, 4, 600), wanted rows"),
        ({"cache": SCALED, "kv_scale": 1.0}, ValueError, "kv_scale: got 1.0, wanted None: these rows have"),
        ({"cache": PLAIN}, ValueError, "kv_scale: got None, wanted a number: rows of 576"),
        ({"cache": PLAIN, "kv_scale": float("nan")}, ValueError, "kv_scale: got nan, wanted a positive"),
        ({"cache": PLAIN, "kv_scale": 0.0}, ValueError, "kv_scale: got 0.0, wanted a positive finite"),
        ({"cache": PLAIN, "kv_scale": -1.0}, ValueError, "kv_scale: got -1.0"),
        ({"cache": PLAIN, "kv_scale": 1e-300}, ValueError, "kv_scale: got 1e-300"),
        ({"cache": PLAIN, "kv_scale": "1"}, TypeError, "kv_scale: got str, wanted a number"),
        ({"cache": NUMBERS, "kv_scale": 1.0}, ValueError, "rows are no 8-bit floats"),
        ({"cache": SCALED, "tree_kv": NUMBERS[:, :2]}, TypeError, "tree_kv: got dtype bfloat16"),
        ({"cache": SCALED, "tree_kv": PLAIN[:, :2].copy()}, ValueError, "tree_kv: got shape (1, 2, 576)"),
        ({"cache": NUMBERS.astype(np.float16)}, TypeError, "cache: got dtype float16, wanted"),
        ({"cache": NUMBERS.astype(ml_dtypes.float8_e5m2)}, TypeError, "wanted bfloat16 or uint8"),
        ({"cache": SCALED, "out_dtype": "float64"}, ValueError, "out_dtype: got float64, wanted"),
        ({"cache": SCALED, "out_dtype": np.float32}, TypeError, "out_dtype: got type, wanted a str"),
        (
            {"cache": SCALED, "out": (np.zeros((1, 2, 3, 512)), np.zeros((1, 2, 3), np.float32))},
            TypeError, "out.out: dtype: got float64",
        ),
        (
            {"cache": SCALED, "out_dtype": "float16",
             "out": (np.zeros((1, 2, 3, 512), np.float32), np.zeros((1, 2, 3), np.float32))},
            TypeError, "out.out: got dtype float32, wanted float16",
        ),
    ],
)  # fmt: skip
def test_bad_arguments_are_named(changes, error, words):
    arguments = {"q": Q, "tree_kv": None, "mask": MASK, "lengths": LENGTHS, "scale": 1.0, **changes}
    with pytest.raises(error) as caught:
        kd.verify_attn(**arguments, library=KernelLibrary(backend="numpy"))
    assert words in str(caught.value)


EDITS = (
    ("verify_attn_fp8.cu", "verify_attn_fp8.cuh", "two.y * odd", "two.y * even"),
    ("verify_attn_few_fp8.cu", "verify_attn_few_fp8.cuh", "x[i][1] * scale", "x[i][1]"),
    ("verify_attn_widen.cu", "verify_attn_widen.cu", "4 * (piece / 16)", "0"),
)


def test_a_wrong_edit_fails_the_check_of_the_kernels():
    library = library_of("host")
    verify_attn_fp8.self_check(library)
    for unit, file, right, wrong in EDITS:
        edited = KernelLibrary(backend="host")
        edited.checks_edits = False
        text = edited.sources.unit(unit).texts[file]
        assert right in text
        edited.replace(file, text.replace(right, wrong))
        with pytest.raises(ValueError, match=r"verify_attn: rows of 656 bytes, .*: out is off by"):
            verify_attn_fp8.self_check(edited)


def test_shared_memory_fits_the_cards():
    small, large = Card((12, 0), 188, 101_376), Card((9, 0), 132, 232_448)
    for form in verify_attn_fp8.FORMS:
        for variant in (verify_attn_fp8.MANY[form.name], *verify_attn_fp8.FEW[form.name]):
            block = block_for(variant, small)
            assert block.shared_bytes <= 101_376 and block.threads == 128 * (1 + (variant.rows == 64))
            assert block_for(variant, large).shared_bytes > 101_376
    with pytest.raises(ValueError, match=r"needs .* bytes of shared memory, the card has 101376"):
        block_for(verify_attn_fp8.MANY["scaled"], small, {"KD_STAGES": "8"})


@pytest.mark.parametrize("dtype", [np.float32, BF16], ids=lambda d: np.dtype(d).name)
def test_bytes_that_start_anywhere_are_refused(dtype):
    """Scales are floats in the middle of bytes: a row may not begin at any byte, whatever kernel reads it."""
    room = np.zeros(2 * 656 + 32, np.uint8)
    first = 1 + -room.ctypes.data % 16
    cache = room[first : first + 2 * 656].reshape(1, 2, 656)
    q, mask = np.zeros((1, 1, 1, 576), dtype), np.ones((1, 1, 1), np.uint32)
    with pytest.raises(ValueError, match="cache: got an array that starts off a multiple of 16 bytes"):
        kd.verify_attn(q, cache, None, mask, LENGTHS, scale=1.0, library=library_of("host"))
