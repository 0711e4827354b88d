"""The kernels of tree_build and tree_accept themselves: v1 against v2, block sizes, repeats, hard tables."""

from __future__ import annotations

from importlib import import_module

import numpy as np
import pytest
from conftest import Backend, assert_same
from strategies import ids_for, random_parents, random_table, tree_from

import kdtree_cupy as kd
from kdtree_cupy import masks
from kdtree_cupy.library import KernelLibrary
from kdtree_cupy.library.resolve import resolve
from kdtree_cupy.limits import STATUS_CAPACITY, STATUS_UNSORTED
from kdtree_cupy.tree_arguments import Arguments, check_arguments

BACKENDS = ("host", "cuda")
NUMPY = KernelLibrary(backend="numpy")
BUILD = import_module("kdtree_cupy.tree_build")  # the package's attributes of these names are the functions
ACCEPT = import_module("kdtree_cupy.tree_accept")


def spread(rows: list[list[float]]) -> np.ndarray:
    return np.array(rows, np.float32)[None]


def scaled(power: int) -> np.ndarray:
    return random_table(1, 2, 6, 12) * np.float32(10.0**power)


def close_costs() -> np.ndarray:
    """Scores that differ by far less than 2^-32 of the largest: the rounded key cannot tell them apart."""
    tiny = -np.arange(12, dtype=np.float32) * np.float32(1e-12)
    return np.stack([np.float32([-4, -5] + [-6] * 10), tiny, tiny, tiny])[None]


def half_logits() -> np.ndarray:
    """Logits as an lm_head in bfloat16 gives them: ties in nearly every row, and sums that nearly tie."""
    rng = np.random.default_rng(3)
    logits = -np.sort(-np.round(16 + 3 * rng.standard_normal((2, 15, 300)) * 8) / 8, axis=-1)
    logits = logits[..., :128].astype(np.float32)
    return np.minimum(logits - np.float32(23.456), 0)


TABLES = {
    "one-row": random_table(0, 2, 1, 40),
    "one-rank": random_table(0, 2, 15, 1),
    "equal": np.full((1, 5, 30), -3, np.float32),
    "zero": np.zeros((1, 15, 9), np.float32),
    "zero-then-equal": np.concatenate([np.zeros((1, 4, 3)), np.full((1, 4, 3), -1.0)], 1).astype(np.float32),
    "tiny": scaled(-40),
    "denormal": scaled(-44),
    "huge": scaled(36),
    "one-huge-row": np.concatenate([random_table(2, 1, 3, 9), random_table(3, 1, 2, 9) * 1e37], 1),
    "tails": np.where(
        np.arange(20) < [[[3], [20], [1], [7]]], random_table(4, 1, 4, 20), np.float32(-np.inf)
    ),
    "no-second-row": spread([[-1, -2], [-np.inf, -np.inf], [-1, -2]]),
    "certain": spread([[0, -60, -61]] * 12),
    "binary": random_table(5, 2, 14, 2),
    "bf16": half_logits(),
    "close": close_costs(),
    "wide": random_table(6, 1, 3, 1024),
    "ascending": np.ascontiguousarray(random_table(7, 2, 4, 9)[..., ::-1]),
    "positive": random_table(8, 2, 4, 9) + np.float32(2),
    "shuffled": np.random.default_rng(9).permuted(random_table(9, 2, 6, 33), axis=-1),
    "unsorted-with-holes": spread([[-1, -np.inf, -0.5], [-np.inf, -1, -2], [-1, -2, -3]]),
}
BUDGETS = (1, 2, 3, 16, 33, 64, 128, 200, 700)


def build(backend: Backend, table: np.ndarray, budget: int, *, version: int = 2, threads: int | None = None):
    """Return the result of one kernel version, written over poison."""
    moved = [backend.to(x) for x in (ids_for(table), table, np.arange(len(table), dtype=np.int32))]
    arguments = check_arguments(*moved, budget, None, budget + 1, None, None)
    run = resolve(backend.library, {"ids": moved[0]})
    results = BUILD.new_results(run, len(table), budget + 1)
    for array in results:
        array.fill(85)
    BUILD.launch(run, arguments, results, version=version, threads=threads)
    return backend.back(kd.TreeBuild(kd.DraftTree(*results[:7]), *results[7:]))


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("name", TABLES)
def test_both_versions_build_the_reference(backend, name, budget):
    table = np.ascontiguousarray(TABLES[name], np.float32)
    roots = np.arange(len(table), dtype=np.int32)
    reference = kd.tree_build(ids_for(table), table, roots, budget, library=NUMPY)
    assert_same(build(backend, table, budget, version=1), reference)
    assert_same(build(backend, table, budget), reference)
    faulty = name in ("ascending", "positive", "shuffled", "unsorted-with-holes")
    assert (reference.tree.status == (STATUS_UNSORTED if faulty else 0)).all()


@pytest.mark.parametrize("threads", [32, 64, 96, 128, 256, 512])
@pytest.mark.parametrize("budget", [5, 65, 300])
def test_the_block_size_does_not_show(backend, threads, budget):
    table = random_table(11, 2, 15, 70, step=0.25)
    assert_same(build(backend, table, budget, threads=threads), build(backend, table, budget, version=1))


@pytest.mark.parametrize("budget", [64, 600])
def test_a_hundred_repeats_are_bit_identical(backend, budget):
    table = TABLES["bf16"]
    first = build(backend, table, budget)
    for _ in range(100 if budget == 64 else 10):
        assert_same(build(backend, table, budget), first)


def test_order_of_threads_does_not_show():
    library = KernelLibrary(backend="host")
    backend, table = Backend("host", library), random_table(12, 1, 9, 40, step=0.5)
    wanted = build(Backend("host", library), table, 120, version=1)
    for seed in (-1, *range(12)):
        library.host_options["seed"] = seed
        assert_same(build(backend, table, 120), wanted)


@pytest.mark.parametrize("version", [1, 2])
def test_a_budget_that_does_not_fit_is_cut(backend, version):
    """The values of a device array are not looked at beforehand."""
    table = random_table(0, 3, 3, 3)
    ids, roots, budget = ids_for(table), np.int32([1, 2, 3]), np.int32([9, 4, 2**31 - 1])
    big = np.full(3, 2**31 - 1, np.int32)
    arrays = [backend.to(x) for x in (ids, table, roots, budget, np.zeros(3, np.int32), big, big)]
    run = resolve(backend.library, {"ids": arrays[0]})
    results = BUILD.new_results(run, 3, 5)
    BUILD.launch(run, Arguments(*arrays[:5], 5, *arrays[5:]), results, version=version)
    tree = backend.back(kd.DraftTree(*results[:7]))
    assert tree.status.tolist() == [STATUS_CAPACITY, 0, STATUS_CAPACITY]
    wanted = kd.tree_build(ids, table, roots, 4, library=NUMPY).tree
    np.testing.assert_array_equal(tree.tokens, wanted.tokens)


@pytest.mark.parametrize("slots", [1, 33, 65, 1025])
@pytest.mark.parametrize("vocab_size", [None, 3])
def test_both_versions_of_accept_walk_like_the_reference(backend, slots, vocab_size):
    rng = np.random.default_rng(slots)
    shapes = ("chain", "star", "binary", "random")
    trees = [tree_from(random_parents(rng, slots, s), rng.integers(0, 4, slots).tolist()) for s in shapes]
    names = kd.DraftTree.__dataclass_fields__
    tree = kd.DraftTree(**{n: np.concatenate([getattr(t, n) for t in trees]) for n in names})
    tree.parents[3, slots // 2 :] -= slots  # bad parents
    tree.counts[2] += 3
    targets = rng.integers(-1, 4, (4, slots), dtype=np.int32)
    wanted = kd.tree_accept(tree, targets, max_depth=32, vocab_size=vocab_size, library=NUMPY)
    device, moved = backend.to(tree), backend.to(targets)
    for version in (1, 2):
        run = resolve(backend.library, {"tokens": moved})
        out = kd.Accepted(*ACCEPT.new_results(run, 4, 32))
        for array in out:
            array.fill(77)
        ACCEPT.launch(run, device, moved, out, vocab_size or 0, version=version)
        assert_same(backend.back(out), wanted)


def test_stages_check_themselves(backend):
    for module in (BUILD, ACCEPT, masks):
        module.self_check(backend.library)


def test_a_wrong_kernel_fails_the_check_of_its_stage():
    library = KernelLibrary(backend="host")
    library.checks_edits = False
    text = library.sources.unit("tree_build.cu").texts["tree_nodes.cuh"]
    library.replace("tree_nodes.cuh", text.replace("out.depths[i] = depth;", "out.depths[i] = depth + 1;"))
    with pytest.raises(ValueError, match="tree_build: depths is not what the reference gives"):
        BUILD.self_check(library)


def test_more_slots_than_a_kernel_takes_are_refused(backend):
    tree = tree_from([-1] + [0] * 1200, [0] * 1201)
    with pytest.raises(ValueError, match=r"tree: N: got 1201, wanted 1\.\.1025"):
        backend.run(kd.tree_accept, tree, np.zeros((1, 1201), np.int32))
    with pytest.raises(ValueError, match=r"tree: N: got 1201, wanted 1\.\.1025"):
        backend.run(masks.bool_mask, tree)
