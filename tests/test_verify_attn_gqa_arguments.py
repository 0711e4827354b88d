"""Arguments of verify_attn_gqa are checked before anything runs, in the words of test_arguments."""

from __future__ import annotations

import math

import numpy as np
import pytest

import kdtree_cupy as kd

GOOD = {
    "q": np.zeros((2, 3, 4, 64), np.float32),
    "k_cache": np.zeros((2, 8, 2, 64), np.float32),
    "v_cache": np.zeros((2, 8, 2, 64), np.float32),
    "tree_k": np.zeros((2, 3, 2, 64), np.float32),
    "tree_v": np.zeros((2, 3, 2, 64), np.float32),
    "mask": np.ones((2, 3, 1), np.uint32),
    "lengths": np.zeros(2, np.int32),
    "scale": 0.1,
}

BAD = [
    ({"q": np.zeros((2, 3, 4, 96), np.float32)}, ValueError, "q: got head size 96, wanted 64 or 128"),
    ({"q": np.zeros((2, 3, 576), np.float32)}, ValueError, r"q: got shape .*, wanted \[b, N, H, D\]"),
    (
        {"q": np.zeros((2, 3, 4, 64))},
        TypeError,
        "q: got dtype float64, wanted float32 or float16 or bfloat16",
    ),
    ({"q": np.zeros((2, 3, 5, 64), np.float32)}, ValueError, "q: got 5 heads for 2 KV heads, wanted 1 to 16"),
    (
        {"q": np.zeros((2, 3, 34, 64), np.float32)},
        ValueError,
        "q: got 34 heads for 2 KV heads, wanted 1 to 16",
    ),
    ({"q": np.zeros((2, 3, 0, 64), np.float32)}, ValueError, "q: got 0 heads for 2 KV heads"),
    (
        {"k_cache": np.zeros((2, 8, 2, 64), np.float16)},
        TypeError,
        "k_cache: got dtype float16, wanted float32",
    ),
    (
        {"k_cache": np.zeros((2, 8, 2, 128), np.float32)},
        ValueError,
        r"k_cache: got shape .*, wanted \[b=2, S, Hkv, D=64\]",
    ),
    (
        {"v_cache": np.zeros((2, 9, 2, 64), np.float32)},
        ValueError,
        r"v_cache: got shape .*, wanted \[b=2, S=8, Hkv=2, D=64\]",
    ),
    ({"v_cache": None}, ValueError, "tree_v: got an array, wanted None as for v_cache"),
    (
        {"v_cache": None, "tree_v": None, "k_cache": np.zeros((2, 8, 3, 64), np.float32)},
        ValueError,
        "k_cache: got 3 rows of keys and values",
    ),
    (
        {"v_cache": None, "tree_v": None, "k_cache": np.zeros((2, 8, 4, 64), np.float32)},
        ValueError,
        r"tree_k: got .*, wanted \[b=2, N=3, 2\*Hkv=4, D=64\]",
    ),
    ({"tree_v": None}, ValueError, "tree_k, tree_v: got only one of the two"),
    (
        {"tree_k": np.zeros((2, 4, 2, 64), np.float32)},
        ValueError,
        r"tree_k: got .*, wanted \[b=2, N=3, Hkv=2, D=64\]",
    ),
    ({"mask": np.ones((2, 3, 2), np.uint32)}, ValueError, r"mask: got .*, wanted \[b=2, N=3, W=1\]"),
    ({"lengths": [0, 9]}, ValueError, r"lengths\[1\]: got 9, but the cache has 8 rows for a request"),
    ({"counts": [3, 4]}, ValueError, r"counts\[1\]: got 4, wanted 0\.\.3"),
    ({"page_table": np.zeros((2, 2), np.int64)}, TypeError, "page_table: got dtype int64, wanted int32"),
    ({"scale": math.inf}, ValueError, "scale: got inf, wanted a finite number"),
    ({"splits": 1025}, ValueError, r"splits: got 1025, wanted 1\.\.1024"),
    ({"out": (1,)}, ValueError, r"out: got 1 entries, wanted \(out, lse\)"),
]


def test_the_good_arguments_are_good(backend):
    backend.run(kd.verify_attn_gqa, **GOOD)


@pytest.mark.parametrize(("change", "error", "message"), BAD, ids=[f"{'-'.join(b[0])}" for b in BAD])
def test_bad_arguments_are_named(backend, change, error, message):
    with pytest.raises(error, match=message):
        backend.run(kd.verify_attn_gqa, **(GOOD | change))
