"""Results share no memory with arguments or with each other; rows and pages are not empty."""

from __future__ import annotations

import numpy as np
import pytest
from test_arguments import GOOD

import kdtree_cupy as kd

BACKENDS = ("numpy", "host", "cuda")
LOGITS, NODES, REQUESTS = np.zeros((1, 2, 5), np.float32), np.zeros((1, 2), np.int32), np.zeros(1, np.int32)
RANKS = np.zeros((1, 2, 2), np.int32)
FLOATS = np.zeros((1, 2, 2), np.float32)
IDS = np.arange(5, dtype=np.int32)
SHARED = [
    (kd.topk_logprob, {"out": (RANKS, RANKS.view(np.float32), REQUESTS)}, "shares memory with"),
    (kd.topk_logprob, {"logits": LOGITS, "out": (RANKS, LOGITS.reshape(-1)[:4].reshape(1, 2, 2), REQUESTS)},
     r"out\[1\]: shares memory with logits"),
    (kd.topk_logprob, {"vocab_map": IDS, "out": (IDS[1:].reshape(1, 2, 2), FLOATS, REQUESTS)},
     r"out\[0\]: shares memory with vocab_map"),
    (kd.target_token, {"logits": LOGITS, "out": (NODES, LOGITS.view(np.int32).reshape(-1)[-1:])},
     r"out\[1\]: shares memory with logits"),
    (kd.kv_commit, {"lengths": REQUESTS, "out": (np.zeros(1, np.int32), REQUESTS)},
     r"out\.status: shares memory with lengths"),
    (kd.kv_commit, {"path_length": REQUESTS, "out": (REQUESTS, np.zeros(1, np.int32))},
     r"out\.lengths: shares memory with path_length"),
    (kd.kv_commit, {"out": (REQUESTS, REQUESTS)}, r"out\[1\]: shares memory with out\[0\]"),
]  # fmt: skip


@pytest.mark.parametrize(("stage", "change", "message"), SHARED)
def test_results_that_share_memory_are_named(stage, change, message):
    with pytest.raises(ValueError, match=message):
        stage(**(GOOD[stage] | change))


def test_lengths_advance_in_place(backend):
    lengths = backend.to(np.ones(1, np.int32))
    given = {name: backend.to(value) for name, value in GOOD[kd.kv_commit].items()} | {"lengths": lengths}
    kd.kv_commit(**given, out=(lengths, backend.to(np.zeros(1, np.int32))), library=backend.library)
    assert backend.back(lengths).tolist() == [2]


def test_rows_without_numbers_are_named(backend):
    with pytest.raises(ValueError, match="caches: got rows of 0 numbers, wanted at least 1"):
        backend.run(kd.kv_commit, **(GOOD[kd.kv_commit] | {"caches": np.zeros((2, 1, 8, 0), np.float32)}))
    for stage, more in ((kd.topk_logprob, {"k": 1}), (kd.target_token, {})):
        with pytest.raises(ValueError, match="logits: got rows of 0 numbers, wanted at least 1"):
            backend.run(stage, np.zeros((1, 2, 0), np.float32), **more)


@pytest.mark.parametrize("u", [1.0, -0.5, np.nan])
def test_the_check_looks_at_uniforms(backend, u):
    given = {"temperature": 1.0, "uniforms": np.float32([[0.5, u]])}
    with pytest.raises(ValueError, match=rf"uniforms\[0, 1\]: got {u}, wanted a number in \[0, 1\)"):
        backend.run(kd.target_token, LOGITS, **given, check=True)


def test_pages_without_rows_are_named(backend):
    paged = {"caches": np.zeros((2, 4, 0, 3), np.float32), "page_table": np.zeros((1, 2), np.int32)}
    with pytest.raises(ValueError, match="caches: got pages of 0 rows, wanted at least 1"):
        backend.run(kd.kv_commit, **(GOOD[kd.kv_commit] | paged))
