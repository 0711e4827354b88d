"""The round: all stages chained in place, equal on every backend, equal to replay on a real trace."""

from __future__ import annotations

import numpy as np
import pytest
from round_tools import D, V, get, make, put, references, rounds

from kdtree_cupy import policies, replay
from kdtree_cupy.errors import BackendError
from kdtree_cupy.round import decode_round
from kdtree_cupy.round_buffers import round_buffers
from kdtree_cupy.round_graph import capture
from kdtree_cupy.trace import bundled_traces, load_trace

BACKENDS = ("numpy", "host", "cuda")


@pytest.mark.parametrize(("batch", "steps"), [(1, 40), (3, 40), (8, 40), (64, 8)])
def test_many_rounds_equal_the_references(backend, batch, steps):
    wanted = rounds(references(), steps, seed=1, idle=True, batch=batch)
    got = rounds(backend, steps, seed=1, idle=True, batch=batch)
    for step, (have, want) in enumerate(zip(got, wanted, strict=True)):
        for name in want:
            np.testing.assert_array_equal(have[name], want[name], err_msg=f"{name} after round {step}")
    assert wanted[-1]["lengths"].max() > 1.5 * steps  # paths of several nodes were committed


def test_rounds_commit_what_was_accepted(backend):
    states = rounds(backend, 25, seed=2)
    before = np.zeros(3, np.int64)
    for state in states:
        taken = (state["path"] >= 0).sum(1)
        np.testing.assert_array_equal(state["lengths"], before + taken)
        assert (state["status"] == 0).all()
        before = state["lengths"].astype(np.int64)
    filled = (states[-1]["caches"] != 0).all(-1)  # rows are never 0
    for r in range(3):
        assert filled[:, r, : before[r]].all()
        assert not filled[:, r, before[r] :].any()


def test_idle_slots_are_left_alone(backend):
    buffers = make(backend, 3)
    put(buffers.roots, np.int32([5, 6, 7]))
    put(buffers.lengths, np.int32([2, 3, 4]))
    put(buffers.budgets, np.int32([4, -1, 4]))
    put(buffers.draft_logits, np.random.default_rng(0).normal(size=(3, D, V)).astype(np.float32))
    decode_round(buffers, lambda b: None, library=backend.library)
    assert get(buffers.lengths)[1] == 3
    assert get(buffers.accepted.path_length)[1] == 0
    assert get(buffers.roots)[1] == -1
    assert get(buffers.built.tree.counts)[1] == 0
    assert get(buffers.lengths)[[0, 2]].tolist() == [3, 5]


def test_a_request_does_not_see_its_neighbours(backend):
    quiet = rounds(backend, 8, seed=3)
    disturbed = rounds(backend, 8, seed=3, disturb=(0, 2))
    for one, two in zip(quiet, disturbed, strict=True):
        for name in ("roots", "lengths", "path", "tokens", "mask", "status"):
            np.testing.assert_array_equal(one[name][1], two[name][1])
        np.testing.assert_array_equal(one["caches"][:, 1], two["caches"][:, 1])
    assert (quiet[-1]["lengths"][[0, 2]] != disturbed[-1]["lengths"][[0, 2]]).any()


def first_text():
    """Return a bundled trace, and of its first sequence length, ids and tokens in a vocabulary of its own."""
    trace = load_trace(bundled_traces()[0])
    stop = int(trace.sequence_offsets[1])
    used, compact = np.unique(
        np.concatenate([trace.draft_ids[:stop].ravel(), trace.tokens[:stop]]), return_inverse=True
    )
    ids = compact[: stop * trace.depth * trace.width].reshape(stop, trace.depth, trace.width)
    return trace, stop, ids, compact[stop * trace.depth * trace.width :], used.size


def recorded_logits(trace, ids, root, vocab):
    """Return logits [D, V] whose log-softmax is what was recorded, the rest of the mass spread evenly."""
    rows = trace.draft_logprobs[root].astype(np.float64)
    rest = np.log(np.maximum(1 - np.exp(rows).sum(-1, keepdims=True), 1e-30) / (vocab - trace.width))
    logits = np.repeat(np.minimum(rest, rows[:, -1:] - 1), vocab, axis=1)
    np.put_along_axis(logits, ids[root], rows, axis=1)
    return logits.astype(np.float32)


def recorded_target(b, tokens, roots, stop, vocab):
    """Write target logits: at every node the token that the recorded text has there."""
    depths = get(b.built.tree.depths)
    truth = np.zeros((*depths.shape, vocab), np.float32)
    there = tokens[np.minimum(np.asarray(roots)[:, None] + 1 + depths, stop - 1)]
    np.put_along_axis(truth, there[..., None], 1, axis=2)
    put(b.target_logits, truth)


@pytest.mark.parametrize("budget", [8, 64, 256])
def test_real_trace_gives_the_acceptance_of_replay(backend, budget):
    """Drive rounds with the recorded drafter and target; each must accept what replay says."""
    trace, stop, ids, tokens, vocab = first_text()
    table = replay.acceptance(trace, policies.ddtree, [budget])
    wanted = [
        (r, a)
        for r, a in zip(*(x.tolist() for x in replay.jump(trace, table.accepted[:, 0])[1:3]), strict=True)
        if r < stop
    ]
    wanted = wanted[: 24 if backend.name != "cuda" else None]
    buffers = make(backend, 1, D=trace.depth, N=budget + 1, K=trace.width, V=vocab)
    put(buffers.budgets, np.int32([budget]))
    root = 0
    for at, accepted in wanted:
        assert at == root
        put(buffers.draft_logits, recorded_logits(trace, ids, root, vocab)[None])
        put(buffers.roots, np.int32([tokens[root]]))
        decode_round(
            buffers, lambda b, root=root: recorded_target(b, tokens, [root], stop, vocab),
            library=backend.library,
        )  # fmt: skip
        limit = stop - 1 - root
        assert min(int(get(buffers.accepted.path_length)[0]) - 1, limit) == accepted
        root += accepted + 1


@pytest.mark.parametrize("batch", [8, 64])
def test_a_batch_of_positions_of_a_real_trace(backend, batch):
    """Each request stands at another position of the text; a round accepts what replay says of each."""
    trace, stop, ids, tokens, vocab = first_text()
    accepted = replay.acceptance(trace, policies.ddtree, [16]).accepted[:, 0]
    roots = np.linspace(0, stop - 2, batch).astype(int)
    buffers = make(backend, batch, D=trace.depth, N=17, K=trace.width, V=vocab)
    put(buffers.budgets, np.full(batch, 16, np.int32))
    put(buffers.draft_logits, np.stack([recorded_logits(trace, ids, r, vocab) for r in roots]))
    put(buffers.roots, tokens[roots].astype(np.int32))
    decode_round(buffers, lambda b: recorded_target(b, tokens, roots, stop, vocab), library=backend.library)
    got = np.minimum(get(buffers.accepted.path_length) - 1, stop - 1 - roots)
    np.testing.assert_array_equal(got, np.minimum(accepted[roots], stop - 1 - roots))
    assert got.max() >= 3
    np.testing.assert_array_equal(get(buffers.lengths), get(buffers.accepted.path_length))


def test_sizes_are_checked():
    for name, value in {"batch": 0, "depth": 33, "num_nodes": 1026, "width": 41, "vocab": 0}.items():
        sizes = {"batch": 1, "depth": 4, "num_nodes": 5, "width": 4, "vocab": 40} | {name: value}
        with pytest.raises(ValueError, match=f"{name}: got {value}" if name != "vocab" else "vocab|width"):
            round_buffers(**sizes, caches=np.zeros((1, 1, 4, 4), np.uint8))


def test_only_device_arrays_can_be_captured():
    from conftest import Backend

    with pytest.raises(BackendError, match="wanted CuPy arrays"):
        capture(make(Backend("numpy"), 1), lambda b: None)
