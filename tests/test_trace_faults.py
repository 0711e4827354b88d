"""Bad traces: every fault is named with file, array and index."""

from __future__ import annotations

import re

import numpy as np
import pytest
from test_trace import HEADER, full_arrays
from tiny import tiny_arrays

from kdtree_cupy import kdtr
from kdtree_cupy.convert import write_arrays
from kdtree_cupy.errors import KdtrError
from kdtree_cupy.trace import load_trace, make_trace


def put(value, *index):
    """Return a function that copies an array and changes one entry."""

    def change(array):
        out = array.copy()
        out[index] = value
        return out

    return change


def to(dtype):
    return lambda array: array.astype(dtype)


def cut(*index):
    return lambda array: array[index]


def gone(array):
    return None


ALL = slice(None)
FAULTS = (  # array, what happens to it, message
    ("draft_ids", gone, "array 'draft_ids' is missing: not a draft trace"),
    ("tokens", np.ndarray.tolist, "array 'tokens': got list, wanted a numpy array"),
    ("draft_logprobs", put(np.nan, 38, 3, 1), r"draft_logprobs\[38, 3, 1\] = nan is not a number"),
    ("draft_logprobs", put(0.5, 7, 0, 0), r"draft_logprobs\[7, 0, 0\] = 0.5 is above 0"),
    ("draft_logprobs", put(np.inf, 7, 0, 0), r"draft_logprobs\[7, 0, 0\] = inf is above 0"),
    ("draft_logprobs", put(-0.0, 0, 2, 1), r"draft_logprobs\[0, 2, 1\] = -0.0 is above the one before it"),
    ("draft_ids", put(12, 5, 1, 2), r"draft_ids\[5, 1, 2\] = 12, wanted 0..11 \(vocabulary\)"),
    ("draft_ids", lambda ids: put(ids[5, 1, 0], 5, 1, 2)(ids), r"draft_ids\[5, 1\] holds a token twice"),
    ("tokens", put(12, 3), r"tokens\[3\] = 12, wanted 0..11"),
    ("tokens", put(-1, 3), r"tokens\[3\] = -1, wanted 0..11"),
    ("tokens", to(float), r"'tokens': got float64 \(39,\), wanted a vector of integers"),
    ("tokens", cut(slice(38)), r"array 'sequence_offsets' runs from 0 to 39, wanted 0 to 38"),
    ("sequence_offsets", put(1, 0), "runs from 1 to 39, wanted 0 to 39"),
    ("sequence_offsets", put(38, 6), "runs from 0 to 38, wanted 0 to 39"),
    ("sequence_offsets", put(8, 2), r"sequence_offsets\[2\] = 8 is below sequence_offsets\[1\] = 9"),
    ("sequence_offsets", cut(slice(1)), "got 1 entries, wanted at least one sequence"),
    ("sequence_offsets", to(float), "'sequence_offsets': got float64 .*, wanted a vector of integers"),
    ("draft_ids", lambda ids: ids.reshape(39, 12), r"got shape \(39, 12\), wanted \[39, depth, width\]"),
    ("draft_ids", cut(slice(38)), r"got shape \(38, 4, 3\), wanted \[39, depth, width\]"),
    ("draft_logprobs", cut(ALL, ALL, slice(2)), r"got shape \(39, 4, 2\), wanted \(39, 4, 3\) as draft_ids"),
    ("draft_logprobs", to(float), "'draft_logprobs': got float64, wanted float32"),
    ("draft_ids", to(np.float32), "'draft_ids': got float32, wanted integers"),
    ("draft_next_logprob", put(0, 4, 2), r"draft_next_logprob\[4, 2\] = 0.0, wanted at most the last kept"),
    ("draft_next_logprob", put(np.nan, 4, 2), r"draft_next_logprob\[4, 2\] = nan"),
    ("draft_next_logprob", to(np.float16), "got float16 .* wanted float32 .* as draft_logprobs"),
    ("draft_next_logprob", cut(ALL, slice(3)), r"got float32 \(39, 3\), wanted float32 \(39, 4\)"),
    ("prompt_offsets", gone, "prompt_offsets and prompt_tokens: one without the other"),
    ("prompt_offsets", lambda o: o[[0, 6]], "prompt_offsets: got 2 entries, wanted one prompt per sequence"),
    ("prompt_tokens", put(99, 5), r"prompt_tokens\[5\] = 99, wanted 0..11"),
    ("target_logprobs", gone, "target_ids and target_logprobs: one without the other"),
    (
        "target_ids",
        cut(ALL, slice(1)),
        r"target_ids \(39, 1\), target_logprobs \(39, 2\): wanted \[39, ranks\]",
    ),
    ("target_logprobs", put(0, 2, 1), r"target_logprobs\[2, 1\] = 0.0 is above the one before it"),
    ("target_logprobs", to(str), "'target_logprobs': got <U32, wanted float32"),
    ("target_ids", put(12, 38, 0), r"target_ids\[38, 0\] = 12, wanted 0..11"),
    ("vocab_bytes", gone, "vocab_offsets and vocab_bytes: one without the other"),
    ("vocab_bytes", to(np.int64), r"'vocab_bytes': got int64 \(39,\), wanted uint8 \[bytes\]"),
    ("vocab_offsets", lambda o: o[[0, 12]], "got 2 entries, wanted vocab_size . 1 = 13"),
    ("vocab_offsets", put(50, 3), r"vocab_offsets\[4\] = \d+ is below vocab_offsets\[3\] = 50"),
)


@pytest.mark.parametrize(
    ("name", "change", "message"), FAULTS, ids=[f"{f[0]}-{i}" for i, f in enumerate(FAULTS)]
)
def test_faults_of_arrays_are_named(name, change, message):
    arrays = full_arrays()
    arrays[name] = change(arrays[name])
    if arrays[name] is None:
        del arrays[name]
    with pytest.raises(KdtrError, match=message) as caught:
        make_trace("dir/bad.kdtr", HEADER, arrays)
    assert str(caught.value).startswith("dir/bad.kdtr: ")


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((39, 0, 3), "depth D = 0, width K = 3; wanted 1..32 and 1..1024"),
        ((39, 4, 0), "depth D = 4, width K = 0; wanted 1..32 and 1..1024"),
        ((39, 33, 1), "depth D = 33, width K = 1"),
        ((39, 1, 1025), "depth D = 1, width K = 1025"),
    ],
)
def test_sizes_out_of_range(shape, message):
    arrays = tiny_arrays() | {
        "draft_ids": np.zeros(shape, int),
        "draft_logprobs": np.zeros(shape, np.float32),
    }
    with pytest.raises(KdtrError, match=message):
        make_trace("bad", {}, arrays)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({"vocab_size": 0}, "'vocab_size': got 0, wanted 1..2147483648"),
        ({"vocab_size": 2**40}, "'vocab_size': got 1099511627776"),
        ({"vocab_size": 12.0}, "'vocab_size': got 12.0, wanted int"),
        ({"vocab_size": True}, "'vocab_size': got True, wanted int"),
        ({"temperature": -1}, "'temperature': got -1, wanted >= 0"),
        ({"temperature": float("nan")}, "'temperature': got nan"),
        ({"temperature": 10**400, "name": 3}, "'name': got 3, wanted str"),
        ({"stop_tokens": 2}, "'stop_tokens': got 2, wanted list"),
        ({"stop_tokens": [2, "x"]}, "'stop_tokens': got 'x', wanted token ids"),
        ({"vocab_size": 12, "stop_tokens": [12]}, "'stop_tokens': got 12, wanted token ids in 0..11"),
        ({"depth": 5}, "'depth' = 5, but draft_ids has 4"),
        ({"K": 32}, "'K' = 32, but draft_ids has 3"),
        ({"schema": "kdtrace/2"}, "'schema': got 'kdtrace/2', this reads 'kdtrace/1'"),
    ],
)
def test_faults_of_headers_are_named(header, message):
    with pytest.raises(KdtrError, match=re.escape(message)):
        make_trace("bad", header, full_arrays())


def test_faults_far_into_a_large_trace_have_their_true_index():
    arrays = tiny_arrays(lengths=(5000,), hit=0.0)
    arrays["draft_ids"][4999, 3, 0] = 13
    with pytest.raises(KdtrError, match=r"draft_ids\[4999, 3, 0\] = 13"):
        make_trace("big", HEADER, arrays)
    arrays["draft_ids"][4999, 3, 0] = arrays["draft_ids"][4999, 3, 1]
    with pytest.raises(KdtrError, match=r"draft_ids\[4999, 3\] holds a token twice"):
        make_trace("big", HEADER, arrays)
    arrays["draft_logprobs"][4500, 1, 2] = np.nan
    with pytest.raises(KdtrError, match=r"draft_logprobs\[4500, 1, 2\] = nan"):
        make_trace("big", HEADER, arrays)


def test_without_a_vocabulary_size_tokens_only_need_to_be_int32():
    arrays = tiny_arrays()
    arrays["tokens"] = put(2**31 - 1, 0)(arrays["tokens"].astype(np.uint64))
    trace = make_trace("x", {}, arrays)
    assert trace.vocab_size is None and trace.tokens[0] == 2**31 - 1 and trace.tokens.dtype == np.int32
    arrays["tokens"][0] = 2**31
    with pytest.raises(KdtrError, match=r"tokens\[0\] = 2147483648, wanted 0..2147483647"):
        make_trace("x", {}, arrays)


def test_archives_of_more_than_the_limit(tmp_path):
    write_arrays(tmp_path / "a.npz", tiny_arrays(), HEADER)
    with pytest.raises(KdtrError, match=r"a\.npz: decompresses to \d+ bytes, the limit is 1000"):
        load_trace(tmp_path / "a.npz", max_bytes=1000)
    assert load_trace(tmp_path / "a.npz", max_bytes=100_000).sequences == 6


def test_files_that_are_no_traces(tmp_path):
    with pytest.raises(KdtrError, match=r"none\.npz: no such file"):
        load_trace(tmp_path / "none.npz")
    kdtr.write(tmp_path / "other.kdtr", {"a": np.arange(3)})
    with pytest.raises(KdtrError, match=r"other\.kdtr: array 'sequence_offsets' is missing"):
        load_trace(tmp_path / "other.kdtr")
    with pytest.raises(ValueError, match=r"suffix '\.txt'"):
        load_trace(tmp_path / "other.txt")
