"""Arguments are checked before anything runs: the message names the argument, what it got, what is wanted."""

from __future__ import annotations

import math

import numpy as np
import pytest
from strategies import tree_from

import kdtree_cupy as kd

FORK = tree_from([-1, 0, 0, 1, 1, 4], [9, 5, 6, 5, 7, 0])
READ_ONLY = np.zeros((2, 1, 8, 3), np.float32)
READ_ONLY.setflags(write=False)
CACHES = np.zeros((2, 1, 8, 3), np.float32)

GOOD = {
    kd.topk_logprob: {"logits": np.zeros((1, 2, 5), np.float32), "k": 2},
    kd.tree_build: {
        "ids": np.zeros((2, 3, 4), np.int32),
        "logprobs": np.zeros((2, 3, 4), np.float32),
        "root_tokens": np.zeros(2, np.int32),
        "budget": 5,
    },
    kd.verify_attn: {
        "q": np.zeros((2, 3, 4, 576), np.float32),
        "cache": np.zeros((2, 8, 576), np.float32),
        "tree_kv": np.zeros((2, 3, 576), np.float32),
        "mask": np.ones((2, 3, 1), np.uint32),
        "lengths": np.zeros(2, np.int32),
        "scale": 0.1,
    },
    kd.target_token: {"logits": np.zeros((1, 2, 5), np.float32)},
    kd.tree_accept: {"tree": FORK, "target_tokens": np.zeros((1, 6), np.int32)},
    kd.kv_commit: {
        "caches": CACHES,
        "path": np.zeros((1, 2), np.int32),
        "path_length": np.ones(1, np.int32),
        "lengths": np.ones(1, np.int32),
    },
}

TOPK_LOGPROB = [
    (
        {"logits": np.zeros((1, 2, 5))},
        TypeError,
        "logits: got dtype float64, wanted float32 or float16",
    ),
    ({"logits": [[[1.0]]]}, TypeError, "logits: got list, wanted an array"),
    ({"logits": np.zeros((2, 5), np.float32)}, ValueError, r"logits: got shape \(2, 5\), wanted \[b, D, V\]"),
    ({"logits": np.zeros((1, 2, 10), np.float32)[..., ::2]}, ValueError, "logits: got a strided array"),
    ({"k": 0}, ValueError, r"k: got 0, wanted 1\.\.5"),
    ({"k": 6}, ValueError, r"k: got 6, wanted 1\.\.5"),
    ({"k": 4, "valid_vocab": 3}, ValueError, r"k: got 4, wanted 1\.\.3"),
    ({"k": 2.0}, TypeError, "k: got float, wanted an int"),
    ({"valid_vocab": 6}, ValueError, r"valid_vocab: got 6, wanted 1\.\.5"),
    ({"temperature": 0.0}, ValueError, "temperature: got 0.0, wanted a finite number above 0"),
    ({"temperature": math.nan}, ValueError, "temperature: got nan"),
    ({"temperature": "hot"}, TypeError, "temperature: got str, wanted a number"),
    ({"vocab_map": np.zeros(4, np.int32)}, ValueError, r"vocab_map: got shape \(4,\), wanted \[V=5\]"),
    ({"vocab_map": np.zeros(5, np.int64)}, TypeError, "vocab_map: got dtype int64, wanted int32"),
    ({"out": (1, 2)}, ValueError, r"out: got 2 entries, wanted \(ids, logprobs, status\)"),
]

TREE_BUILD = [
    ({"ids": [[1]]}, TypeError, "ids: got list, wanted an array of int32"),
    ({"ids": np.zeros((2, 3, 4), np.int64)}, TypeError, "ids: got dtype int64, wanted int32"),
    ({"ids": np.zeros((2, 12), np.int32)}, ValueError, r"ids: got shape \(2, 12\), wanted \[b, D, K\]"),
    ({"logprobs": np.zeros((2, 3, 4))}, TypeError, "logprobs: got dtype float64, wanted float32"),
    (
        {"logprobs": np.zeros((2, 3, 5), np.float32)},
        ValueError,
        r"logprobs: got shape \(2, 3, 5\), wanted \[b=2, D=3, K=4\]",
    ),
    (
        {"logprobs": np.zeros((2, 3, 8), np.float32)[..., ::2]},
        ValueError,
        "logprobs: got a strided array, wanted a C-contiguous one",
    ),
    ({"root_tokens": np.zeros(2, np.int64)}, TypeError, "root_tokens: got dtype int64, wanted int32"),
    ({"root_tokens": [1]}, ValueError, r"root_tokens: got 1 values, wanted \[b=2\]"),
    ({"root_tokens": [1, 2.5]}, TypeError, r"root_tokens\[1\]: got float, wanted an int"),
    ({"root_tokens": [1, 2**31]}, ValueError, r"root_tokens\[1\]: got 2147483648"),
    ({"budget": 2.0}, TypeError, "budget: got float, wanted an int"),
    ({"budget": True}, TypeError, "budget: got bool"),
    ({"budget": -2}, ValueError, r"budget: got -2, wanted -1\.\.1024"),
    ({"budget": [3, 1025]}, ValueError, r"budget\[1\]: got 1025, wanted -1\.\.1024"),
    ({"budget": [3, 4, 5]}, ValueError, r"budget: got shape \(3,\), wanted a scalar or \[b=2\]"),
    ({"num_nodes": 5}, ValueError, r"num_nodes: got 5, wanted 6\.\.1025"),
    ({"num_nodes": 1026}, ValueError, r"num_nodes: got 1026, wanted 6\.\.1025"),
    ({"max_depth": -1}, ValueError, "max_depth: got -1"),
    ({"max_rank": [1, -3]}, ValueError, r"max_rank\[1\]: got -3"),
    ({"lengths": [3, -1]}, ValueError, r"lengths\[1\]: got -1"),
    ({"lengths": np.zeros(3, np.int32)}, ValueError, r"lengths: got shape \(3,\), wanted \[b=2\]"),
    ({"out": 3}, TypeError, r"out: got int, wanted a tuple \(tree, mask, positions\)"),
    ({"out": (1, 2)}, ValueError, "out: got 2 entries"),
    ({"out": (1, 2, 3)}, TypeError, "out.tree: got int, wanted a DraftTree"),
]

TARGET_TOKEN = [
    ({"logits": np.zeros((1, 2, 5))}, TypeError, "logits: got dtype float64"),
    ({"logits": np.zeros((2, 5), np.float32)}, ValueError, r"logits: got shape \(2, 5\), wanted \[b, N, V\]"),
    ({"temperature": -1.0}, ValueError, "temperature: got -1.0, wanted a finite number >= 0"),
    ({"temperature": math.inf}, ValueError, "temperature: got inf"),
    ({"temperature": 1.0}, ValueError, r"uniforms: got None, wanted float32 \[b, N\]"),
    ({"uniforms": np.zeros((1, 2))}, TypeError, "uniforms: got dtype float64, wanted float32"),
    ({"uniforms": np.zeros((1, 3), np.float32)}, ValueError, r"uniforms: got shape \(1, 3\), wanted \[b=1"),
    ({"top_p": 0.0}, ValueError, r"top_p: got 0.0, wanted a number in \(0, 1\]"),
    ({"top_p": 1.5}, ValueError, "top_p: got 1.5"),
    ({"valid_vocab": 0}, ValueError, r"valid_vocab: got 0, wanted 1\.\.5"),
    ({"out": 1}, TypeError, r"out: got int, wanted a tuple \(tokens, status\)"),
]

TREE_ACCEPT = [
    ({"tree": 3}, TypeError, "tree: got int, wanted a DraftTree"),
    ({"target_tokens": np.zeros((1, 6), np.int64)}, TypeError, "target_tokens: got dtype int64"),
    ({"target_tokens": np.zeros((1, 5), np.int32)}, ValueError, r"target_tokens: got shape \(1, 5\), wanted"),
    ({"max_depth": -1}, ValueError, r"max_depth: got -1, wanted 0\.\."),
    ({"max_depth": 2.0}, TypeError, "max_depth: got float, wanted an int"),
    ({"vocab_size": 0}, ValueError, "vocab_size: got 0"),
    ({"out": [1]}, ValueError, r"out: got 1 entries, wanted \(path, path_length, next_token, status\)"),
]

KV_COMMIT = [
    ({"caches": 5}, TypeError, "caches: got int, wanted an array or a list of arrays"),
    ({"caches": []}, ValueError, "caches: got no layers"),
    ({"caches": [CACHES[0], 4]}, TypeError, r"caches\[1\]: got int, wanted an array of float32"),
    (
        {"caches": [CACHES[0], np.zeros((1, 8, 3), np.float16)]},
        TypeError,
        r"caches\[1\]: got dtype float16, wanted float32",
    ),
    (
        {"caches": [CACHES[0], np.zeros((1, 9, 3), np.float32)]},
        ValueError,
        r"caches\[1\]: got shape \(1, 9, 3\), wanted \[b=1, S=8, E=3\]",
    ),
    ({"caches": np.zeros((2, 1, 8, 3), np.float64)}, TypeError, "caches: got dtype float64"),
    (
        {"caches": np.zeros((2, 2, 8, 3), np.float32)},
        ValueError,
        r"caches: got shape .* wanted \[L, b=1, S, E\]",
    ),
    ({"caches": READ_ONLY}, ValueError, r"caches\[0\]: got a read-only array"),
    ({"path": np.zeros((1, 2), np.int64)}, TypeError, "path: got dtype int64, wanted int32"),
    ({"path_length": np.ones(2, np.int32)}, ValueError, r"path_length: got shape \(2,\), wanted \[b=1\]"),
    (
        {"tree_kv": np.zeros((1, 1, 4, 3), np.float32)},
        ValueError,
        r"tree_kv: got shape \(1, 1, 4, 3\), wanted \[L=2, b=1",
    ),
    ({"tree_kv": np.zeros((2, 1, 4, 2), np.float32)}, ValueError, r"tree_kv: got shape .*E=3\]"),
    (
        {"tree_kv": np.zeros((2, 1, 4, 3), np.float16)},
        TypeError,
        "tree_kv: got dtype float16, wanted float32",
    ),
    ({"page_table": np.zeros((1, 2), np.int64)}, TypeError, "page_table: got dtype int64"),
    ({"page_table": np.zeros((3, 2), np.int32)}, ValueError, r"page_table: got shape \(3, 2\), wanted \[b=1"),
    ({"out": (1,)}, ValueError, r"out: got 1 entries, wanted \(lengths, status\)"),
]

VERIFY_ATTN = [
    ({"q": np.zeros((2, 3, 4, 512), np.float32)}, ValueError, r"q: got shape .*, wanted \[b, N, H, 576\]"),
    (
        {"q": np.zeros((2, 3, 4, 576))},
        TypeError,
        "q: got dtype float64, wanted float32 or float16 or bfloat16",
    ),
    ({"cache": np.zeros((2, 8, 576), np.float16)}, TypeError, "cache: got dtype float16, wanted float32"),
    (
        {"cache": np.zeros((3, 8, 576), np.float32)},
        ValueError,
        r"cache: got shape .*, wanted \[b=2, S, 576\]",
    ),
    (
        {"tree_kv": np.zeros((2, 4, 576), np.float32)},
        ValueError,
        r"tree_kv: got .*, wanted \[b=2, N=3, 576\]",
    ),
    ({"mask": np.ones((2, 3, 2), np.uint32)}, ValueError, r"mask: got .*, wanted \[b=2, N=3, W=1\]"),
    ({"mask": np.ones((2, 3, 3), bool)}, TypeError, "mask: got dtype bool, wanted uint32"),
    ({"lengths": np.zeros(2, np.int64)}, TypeError, "lengths: got dtype int64, wanted int32"),
    ({"lengths": [0, -1]}, ValueError, r"lengths\[1\]: got -1"),
    ({"lengths": np.int32([0, -1])}, ValueError, r"lengths\[1\]: got -1"),
    ({"lengths": [0, 9]}, ValueError, r"lengths\[1\]: got 9, but the cache has 8 rows for a request"),
    (
        {"lengths": [6, 0], "tree_kv": None},
        ValueError,
        r"lengths\[0\]: got 6 and 3 nodes behind it, but the cache has 8",
    ),
    ({"counts": [3, 4]}, ValueError, r"counts\[1\]: got 4, wanted 0\.\.3"),
    ({"counts": np.int32([-1, 3])}, ValueError, r"counts\[0\]: got -1, wanted 0\.\.3"),
    (
        {"page_table": np.zeros((1, 2), np.int32)},
        ValueError,
        r"cache: got shape|q: got|page_table: got shape",
    ),
    ({"scale": math.nan}, ValueError, "scale: got nan, wanted a finite number"),
    ({"scale": None}, TypeError, "scale: got NoneType, wanted a number"),
    ({"splits": "many"}, ValueError, "splits: got 'many', wanted"),
    ({"splits": 0}, ValueError, r"splits: got 0, wanted 1\.\.1024"),
    ({"out": (1,)}, ValueError, r"out: got 1 entries, wanted \(out, lse\)"),
]

ALL = {
    kd.topk_logprob: TOPK_LOGPROB,
    kd.tree_build: TREE_BUILD,
    kd.verify_attn: VERIFY_ATTN,
    kd.target_token: TARGET_TOKEN,
    kd.tree_accept: TREE_ACCEPT,
    kd.kv_commit: KV_COMMIT,
}
CASES = [
    pytest.param(stage, *case, id=f"{stage.__name__}-{'-'.join(case[0])}-{i}")
    for stage, cases in ALL.items()
    for i, case in enumerate(cases)
]


@pytest.mark.parametrize("stage", ALL, ids=lambda stage: stage.__name__)
def test_the_good_arguments_are_good(backend, stage):
    backend.run(stage, **GOOD[stage])


@pytest.mark.parametrize(("stage", "change", "error", "message"), CASES)
def test_bad_arguments_are_named(backend, stage, change, error, message):
    if change.get("caches") is READ_ONLY and backend.name != "numpy":
        pytest.skip("device arrays are always writeable")
    with pytest.raises(error, match=message):
        backend.run(stage, **(GOOD[stage] | change))
