"""Random tree builds and accepts on the CPU backend: every result against v1 and, sampled, the reference.

Each call draws a batch of requests from one family of tables (peaked, tied, equal, -inf tails, tiny and huge
values, NaN, unsorted, positive) with random budgets and limits, builds with ``tree_build_v2`` into poisoned
arrays between the guard pages of the host backend, with threads in an order shuffled by the call's seed, and
compares every output bit with ``tree_build_v1``; every 20th call also with the numpy reference.  Then the
trees, some of them broken on purpose, are walked by ``tree_accept_v2``, ``_v1`` and the reference.

    python benchmarks/fuzz_tree.py --seconds 600 --seed 1
"""

from __future__ import annotations

import time

import click
import numpy as np

from kdtree_cupy import DraftTree, tree_accept, tree_build
from kdtree_cupy.library import KernelLibrary
from kdtree_cupy.library.resolve import resolve
from kdtree_cupy.stage_run import leaves
from kdtree_cupy.tree_accept import Accepted
from kdtree_cupy.tree_accept import launch as launch_accept
from kdtree_cupy.tree_accept import new_results as new_accepted
from kdtree_cupy.tree_arguments import check_arguments
from kdtree_cupy.tree_build import TreeBuild, new_results
from kdtree_cupy.tree_build import launch as launch_build

HOST = KernelLibrary(backend="host")
NUMPY = KernelLibrary(backend="numpy")
SIZES = (1, 2, 3, 16, 17, 31, 32, 33, 63, 64, 65, 100, 128, 200, 256)


def peaked(rng: np.random.Generator, shape: tuple[int, ...], scale: float, step: float) -> np.ndarray:
    """Return descending rows of log-probs; ``step`` > 0 rounds logits, which makes ties."""
    logits = scale * rng.standard_normal(shape)
    logits = np.round(logits / step) * step if step else logits
    logits = -np.sort(-logits, axis=-1)
    return np.minimum(logits - np.log(np.exp(logits).sum(-1, keepdims=True)) - rng.exponential(0.1), 0)


def table(rng: np.random.Generator, batch: int, depth: int, width: int) -> np.ndarray:
    """Return float32 log-probs [b, D, K] of a random family."""
    shape, family = (batch, depth, width), int(rng.integers(0, 12))
    rows = peaked(
        rng, shape, float(rng.choice([0.1, 0.3, 1, 3, 8])), float(rng.choice([0, 0, 0.03, 0.25, 1]))
    )
    if family == 0:
        rows = np.full(shape, -rng.integers(0, 3), np.float64)
    elif family == 1:
        rows = np.broadcast_to(rows[:, :1], shape).copy()
    elif family == 2:
        rows[np.arange(width) >= rng.integers(0, width + 1, (batch, depth, 1))] = -np.inf
    elif family == 3:
        rows *= 10.0 ** rng.integers(-44, 38, (batch, depth, 1))
    elif family == 4:
        rows = np.round(rows * rng.choice([1, 2, 8])) / 4
    elif family == 5:
        rng.permuted(rows, axis=-1, out=rows)
    elif family == 6:
        rows += rng.choice([0, 0.5, 3], (batch, depth, 1))
    elif family == 7:
        rows[rng.random(shape) < 0.1 / width] = rng.choice([np.nan, np.inf, -np.inf])
    elif family == 8:
        rows[:, :, 1:] -= rng.choice([5, 60, 1e6])
    with np.errstate(over="ignore"):
        return rows.astype(np.float32)


def compare(where: str, got: object, wanted: object) -> None:
    """Raise ``SystemExit`` naming the case and the array that differs in any bit."""
    for name, array in leaves(got).items():
        other = leaves(wanted)[name]
        if not np.array_equal(array, other, equal_nan=array.dtype.kind == "f"):
            raise SystemExit(f"{where}: {name} differs")


def build(run: object, arguments: object, version: int, threads: int | None = None) -> TreeBuild:
    """Return the result of one kernel version, written over poison."""
    results = new_results(run, arguments.ids.shape[0], arguments.num_nodes)
    for array in results:
        array.view(np.uint8)[...] = 0xA5
    launch_build(run, arguments, results, version=version, threads=threads)
    return TreeBuild(DraftTree(*results[:7]), results[7], results[8])


def fuzz_build(seed: int) -> DraftTree:
    """Build one random batch three ways and return its trees."""
    rng = np.random.default_rng(seed)
    batch, depth = int(rng.integers(1, 9)), int(rng.choice([1, 2, 3, 5, 8, 15, 32]))
    width = int(rng.choice([1, 2, 3, 7, 16, 31, 32, 33, 64, 65, 150, 300]))
    largest = int(rng.choice(SIZES))
    if rng.random() < 0.002:
        batch, width, largest = 1, 1024, 1024
    rows = table(rng, batch, depth, width)
    options = {
        "lengths": rng.integers(0, 2**31 - 40, batch).astype(np.int32) if rng.random() < 0.5 else None,
        "num_nodes": largest + 1 + int(rng.integers(0, 3)) * (largest < 1000),
        "max_depth": rng.integers(0, depth + 2, batch) if rng.random() < 0.2 else None,
        "max_rank": rng.integers(0, width + 2, batch) if rng.random() < 0.2 else None,
    }
    budget = rng.integers(-1, largest + 1, batch) if rng.random() < 0.5 else largest
    ids = rng.integers(0, 2**31 - 1, rows.shape, dtype=np.int32)
    roots = rng.integers(0, 2**31 - 1, batch, dtype=np.int32)
    arguments = check_arguments(ids, rows, roots, budget, **options)
    run = resolve(HOST, {"ids": ids})
    HOST.host_options["seed"] = int(rng.integers(-1, 1000))
    threads = (None, 32, 64, 96, 512)[int(rng.integers(0, 5))]
    got = build(run, arguments, 2, threads)
    compare(f"build seed {seed}", got, build(run, arguments, 1))
    if seed % 20 == 0 and largest < 1000:
        wanted = tree_build(ids, rows, roots, budget, **options, library=NUMPY)
        compare(f"build seed {seed}, reference", got, wanted)
    return got.tree


def fuzz_accept(seed: int, tree: DraftTree) -> None:
    """Walk the trees three ways with targets that often agree; break some parents and counts first."""
    rng = np.random.default_rng(seed + 2**40)
    batch, slots = tree.tokens.shape
    tree.tokens[...] = rng.integers(0, 3, tree.tokens.shape)
    if rng.random() < 0.4:
        broken = rng.random(tree.parents.shape) < 0.1
        tree.parents[broken] = rng.integers(-(2**31), 2**31, int(broken.sum()))
        broken = rng.random(tree.parents.shape) < 0.1
        tree.parents[broken] = rng.integers(-2, slots + 2, int(broken.sum()))
        tree.counts[...] += rng.integers(-2, 3, batch, dtype=np.int32) * (rng.random(batch) < 0.1)
    targets = rng.integers(-(rng.random() < 0.3), 3, (batch, slots), dtype=np.int32)
    max_depth, vocab = int(rng.integers(0, max(slots, 33))), int(rng.choice([0, 2, 1000]))
    run = resolve(HOST, {"tokens": tree.tokens})
    results = []
    for version in (1, 2):
        out = Accepted(*new_accepted(run, batch, max_depth))
        for array in out:
            array[...] = -7
        launch_accept(run, tree, targets, out, vocab, version=version)
        results.append(out)
    compare(f"accept seed {seed}", results[1], results[0])
    if seed % 20 == 0:
        wanted = tree_accept(tree, targets, max_depth=max_depth, vocab_size=vocab or None, library=NUMPY)
        compare(f"accept seed {seed}, reference", results[1], wanted)


@click.command()
@click.option("--seconds", default=60.0, help="Stop after this time.")
@click.option("--seed", default=0, help="First seed; each call takes the next one.")
@click.option("--calls", default=10**9, help="Stop after this many calls.")
def main(seconds: float, seed: int, calls: int) -> None:
    """Fuzz until the time is up; exit 1 at the first difference, naming the seed."""
    until, done, requests = time.monotonic() + seconds, 0, 0
    while done < calls and time.monotonic() < until:
        tree = fuzz_build(seed + done)
        requests += tree.batch
        fuzz_accept(seed + done, tree)
        done += 1
    click.echo(f"{done} calls of each stage, {requests} requests, seeds {seed}..{seed + done - 1}: all equal")


if __name__ == "__main__":
    main()
