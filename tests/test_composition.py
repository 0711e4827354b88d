"""Build, then accept, on the device's own buffers: no value visits the host in between.

Targets are synthesized beforehand: the tree of the reference tells which tokens lead how deep.  On the GPU
the two stages are also captured in one CUDA graph, which would refuse any wait for the device, and replayed
with other inputs.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from conftest import Backend, assert_same

import kdtree_cupy as kd
from kdtree_cupy.library import KernelLibrary

BACKENDS = ("numpy", "host", "cuda")
NUMPY = KernelLibrary(backend="numpy")
VOCAB = 50_000
GRID = {  # name: batch, depth, width, budget
    "q_len-2": (1, 4, 4, 1),
    "q_len-16": (1, 7, 8, 15),
    "q_len-33": (1, 8, 8, 32),
    "q_len-65": (1, 15, 8, 64),
    "q_len-65-batch-8": (8, 15, 8, 64),
    "q_len-65-batch-64": (64, 15, 8, 64),
    "batch-64": (64, 8, 4, 16),
    "depth-15": (8, 15, 15, 31),
    "underfull": (2, 2, 2, 50),
    "chain": (8, 15, 1, 15),
    "q_len-129": (1, 15, 127, 128),
}


@cache
def inputs(batch: int, depth: int, width: int, budget: int, seed: int = 0):
    """Return ids, log-probs, roots and the reference's build; ids of a position differ."""
    rng = np.random.default_rng(seed)
    ids = np.stack(
        [
            [rng.choice(VOCAB, width, replace=False) if width > 1 else [d] for d in range(depth)]
            for _ in range(batch)
        ]
    ).astype(np.int32)
    logits = -np.sort(
        -8.0 * rng.standard_normal((batch, depth, width + 7)), axis=-1
    )  # so that trees get deep
    logprobs = np.minimum(logits - np.log(np.exp(logits).sum(-1, keepdims=True)), 0)
    rows = np.ascontiguousarray(logprobs[..., :width], np.float32)
    roots = rng.integers(0, VOCAB, batch, dtype=np.int32)
    return ids, rows, roots, kd.tree_build(ids, rows, roots, budget, num_nodes=budget + 1, library=NUMPY)


def targets_of_length(tree: kd.DraftTree, lengths: np.ndarray, seed: int = 1) -> np.ndarray:
    """Return targets that lead ``lengths[b]`` nodes deep, root included, as far as the tree reaches."""
    rng = np.random.default_rng(seed)
    targets = np.full(tree.tokens.shape, VOCAB, np.int32)  # no draft token
    for b, length in enumerate(lengths):
        if tree.counts[b] == 0:
            continue
        real = tree.depths[b, : tree.counts[b]]
        node = int(rng.choice(np.flatnonzero(real == min(length - 1, real.max()))))
        while node:
            parent = int(tree.parents[b, node])
            targets[b, parent], node = tree.tokens[b, node], parent
    return targets


def round_of(backend: Backend, ids, rows, roots, targets, budget, depth) -> tuple[kd.TreeBuild, kd.Accepted]:
    """Run both stages on the backend's own arrays; only the results come back."""
    moved = [backend.to(x) for x in (ids, rows, roots, targets)]
    options = {"num_nodes": targets.shape[1], "library": backend.library}
    built = kd.tree_build(*moved[:3], budget, **options)
    accepted = kd.tree_accept(built.tree, moved[3], max_depth=depth, library=backend.library)
    return backend.back(built), backend.back(accepted)


@pytest.mark.parametrize("name", GRID)
def test_grid(backend, name):
    batch, depth, _, budget = GRID[name]
    ids, rows, roots, reference = inputs(*GRID[name])
    lengths = 1 + np.arange(batch) % 8
    targets = targets_of_length(reference.tree, lengths)
    built, accepted = round_of(backend, ids, rows, roots, targets, budget, depth)
    assert_same(built, reference)
    assert_same(accepted, kd.tree_accept(reference.tree, targets, max_depth=depth, library=NUMPY))
    deepest = reference.tree.depths.max(1)
    np.testing.assert_array_equal(accepted.path_length, np.minimum(lengths, deepest + 1))
    assert (accepted.next_token == VOCAB).all() and not accepted.status.any()
    if name == "underfull":
        assert built.tree.counts.tolist() == [7, 7]


@pytest.mark.parametrize("batch", [1, 8, 64])
@pytest.mark.parametrize("length", range(1, 9))
def test_accept_lengths(backend, batch, length):
    ids, rows, roots, reference = inputs(batch, 15, 8, 64)
    targets = targets_of_length(reference.tree, np.full(batch, length), seed=length)
    built, accepted = round_of(backend, ids, rows, roots, targets, 64, 15)
    assert accepted.path_length.tolist() == [length] * batch
    for b in range(batch):
        path = accepted.path[b, :length]
        np.testing.assert_array_equal(built.tree.depths[b, path], np.arange(length))
        np.testing.assert_array_equal(built.tree.tokens[b, path[1:]], targets[b, path[:-1]])


def test_each_request_has_its_own_budget_and_an_idle_slot_stays_idle(backend):
    ids, rows, roots, _ = inputs(8, 15, 8, 64)
    budget = np.int32([64, 0, -1, 7, 33, 64, 1, 20])
    options = {"num_nodes": 65, "library": NUMPY}
    reference = kd.tree_build(ids, rows, roots, budget, **options)
    targets = targets_of_length(reference.tree, np.where(budget < 0, 1, 1 + np.arange(8)))
    built, accepted = round_of(backend, ids, rows, roots, targets, budget, 15)
    assert_same(built, reference)
    assert_same(accepted, kd.tree_accept(reference.tree, targets, max_depth=15, library=NUMPY))
    assert accepted.path_length[2] == 0 and accepted.next_token[2] == -1


@pytest.mark.gpu
@pytest.mark.parametrize("batch", [1, 8, 64])
def test_one_graph_holds_both_stages(batch):
    cupy = pytest.importorskip("cupy", reason="cuda: CuPy is not installed")
    if not cupy.cuda.is_available():
        pytest.skip("cuda: no NVIDIA GPU, or no driver for it")
    library = KernelLibrary(backend="cuda")
    cases = [inputs(batch, 15, 8, 64, seed) for seed in (0, 5)]
    targets = [targets_of_length(case[3].tree, 1 + np.arange(batch) % 8) for case in cases]
    ids, rows, roots, wanted = (*map(cupy.asarray, cases[0][:3]), cupy.asarray(targets[0]))
    built = kd.tree_build(ids, rows, roots, 64, num_nodes=65, library=library)  # compiled and allocated here
    accepted = kd.tree_accept(built.tree, wanted, max_depth=15, library=library)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        kd.tree_build(ids, rows, roots, 64, num_nodes=65, out=built, library=library)
        kd.tree_accept(built.tree, wanted, max_depth=15, out=accepted, library=library)
        graph = stream.end_capture()
        for case, targets_now in zip(cases, targets, strict=True):
            for array, value in zip((ids, rows, roots, wanted), (*case[:3], targets_now), strict=True):
                array.set(value)
            graph.launch()
            stream.synchronize()
            back = Backend("cuda").back
            assert_same(back(built), case[3])
            reference = kd.tree_accept(case[3].tree, targets_now, max_depth=15, library=NUMPY)
            assert_same(back(accepted), reference)
