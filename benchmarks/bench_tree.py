"""Tree build and accept on a GPU: checked against numpy, then timed by CUDA graph replay; floors beside.

Rows are those of a peaked drafter: 40 boosted tokens a position, sharper at shallow depth, D = 15 and
K = min(B, 1024).  A graph holds many launches of one kernel on the same buffers, so L2 is warm, as it is in a
round (the top-k kernel has just written the rows).  Time is that of a replay over its launches, median of
the replays.  Floors: bytes over the measured copy bandwidth, and an empty kernel timed in the same way.

    python benchmarks/bench_tree.py --out benchmarks/results/tree_h200.csv
"""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import numpy as np

from kdtree_cupy import DraftTree, tree_accept, tree_build
from kdtree_cupy.library import KernelLibrary
from kdtree_cupy.library.resolve import resolve
from kdtree_cupy.stage_run import leaves
from kdtree_cupy.timing import graph_times, summary
from kdtree_cupy.tree_accept import Accepted
from kdtree_cupy.tree_accept import launch as launch_accept
from kdtree_cupy.tree_accept import new_results as new_accepted
from kdtree_cupy.tree_arguments import check_arguments
from kdtree_cupy.tree_build import TreeBuild, new_results
from kdtree_cupy.tree_build import launch as launch_build

DEPTH, VOCAB, BOOSTED = 15, 16384, 40
BUILDS = (
    (1, 16),
    (1, 64),
    (1, 128),
    (1, 256),
    (1, 512),
    (1, 1024),
    (8, 64),
    (64, 16),
    (64, 64),
    (64, 256),
    (64, 1024),
)
ACCEPTS = ((1, 64), (8, 64), (64, 16), (64, 64), (64, 256), (64, 1024))
TARGETS = {("tree_build", 1, 64): 8, ("tree_build", 1, 256): 20, ("tree_build", 1, 1024): 80} | {
    ("tree_build", 64, 64): 12,
    ("tree_accept", 64, 64): 4,
}
LAUNCHES, REPLAYS = 100, 15


def peaked_rows(seed: int, batch: int, width: int, *, bf16: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Return ids and log-probs [b, 15, K] of a synthetic peaked drafter."""
    rng = np.random.default_rng(seed)
    logits = rng.standard_normal((batch, DEPTH, VOCAB), dtype=np.float32)
    sharp = np.linspace(10, 5, DEPTH, dtype=np.float32)[:, None]
    logits[..., :BOOSTED] += 6 + sharp * rng.random((batch, DEPTH, BOOSTED), dtype=np.float32)
    if bf16:
        logits = (logits.view(np.uint32) + 0x8000 & 0xFFFF0000).view(np.float32)
    order = np.argsort(-logits, axis=-1, kind="stable")[..., :width]
    peak = logits.max(-1, keepdims=True)
    total = peak + np.log(np.exp((logits - peak).astype(np.float64)).sum(-1, keepdims=True))
    logprobs = np.minimum(np.take_along_axis(logits, order, -1) - total, 0)
    return order.astype(np.int32), np.ascontiguousarray(logprobs, np.float32)


def time_graph(launch: Any) -> tuple[float, float, float]:
    """Return median, 20th and 80th percentile in microseconds of one launch inside a replayed graph."""
    return summary(graph_times([launch], replays=REPLAYS, launches=LAUNCHES))[:3]


def assert_equal(what: str, got: Any, wanted: Any) -> None:
    """Stop unless every array of ``got`` (on the device) is ``wanted``."""
    for name, array in leaves(got).items():
        host, other = array.get(), leaves(wanted)[name]
        if not np.array_equal(host, other, equal_nan=other.dtype.kind == "f"):
            sys.exit(f"{what}: {name} is not the reference's; not timed")


class Build:
    """One configuration of tree_build on the device."""

    stage = "tree_build"

    def __init__(
        self, library: KernelLibrary, batch: int, budget: int, *, version: int = 2, threads: int | None = None
    ) -> None:
        import cupy

        self.batch, self.budget, self.version, self.threads = batch, budget, version, threads
        self.host = (*peaked_rows(0, batch, budget, bf16=True), np.arange(batch, dtype=np.int32))
        device = tuple(map(cupy.asarray, self.host))
        self.arguments = check_arguments(*device, budget, None, budget + 1, None, None)
        self.run = resolve(library, {"ids": device[0]})
        self.results = new_results(self.run, batch, budget + 1)
        self.bytes = sum(a.nbytes for a in (device[1], *self.results))

    def __call__(self) -> None:
        """Launch once."""
        launch_build(self.run, self.arguments, self.results, version=self.version, threads=self.threads)

    def check(self) -> None:
        """Compare with the reference."""
        for array in self.results:
            array.fill(77)
        self()
        built = TreeBuild(DraftTree(*self.results[:7]), *self.results[7:])
        wanted = tree_build(*self.host, self.budget, library=KernelLibrary(backend="numpy"))
        assert_equal(f"tree_build v{self.version} {self.batch} x {self.budget}", built, wanted)


class Accept:
    """One configuration of tree_accept on the device, on trees of :class:`Build` and a target that agrees."""

    stage = "tree_accept"

    def __init__(self, library: KernelLibrary, batch: int, budget: int, *, version: int = 2) -> None:
        import cupy

        self.batch, self.budget, self.version = batch, budget, version
        ids, rows = peaked_rows(0, batch, budget)
        numpy = KernelLibrary(backend="numpy")
        self.tree = tree_build(ids, rows, np.arange(batch, dtype=np.int32), budget, library=numpy).tree
        rng = np.random.default_rng(1)
        self.targets = np.zeros((batch, budget + 1), np.int32)
        for b in range(batch):  # the target walks to a random deep node, then leaves the tree
            node = int(rng.choice(np.flatnonzero(self.tree.depths[b] >= self.tree.depths[b].max() - 2)))
            self.targets[b, node] = VOCAB
            while node:
                self.targets[b, self.tree.parents[b, node]] = self.tree.tokens[b, node]
                node = int(self.tree.parents[b, node])
        names = DraftTree.__dataclass_fields__
        self.device = DraftTree(**{name: cupy.asarray(getattr(self.tree, name)) for name in names})
        self.device_targets = cupy.asarray(self.targets)
        self.run = resolve(library, {"tokens": self.device_targets})
        self.results = Accepted(*new_accepted(self.run, batch, DEPTH))
        self.bytes = 3 * self.device_targets.nbytes + sum(a.nbytes for a in self.results)

    def __call__(self) -> None:
        """Launch once."""
        launch_accept(self.run, self.device, self.device_targets, self.results, 0, version=self.version)

    def check(self) -> None:
        """Compare with the reference."""
        self()
        wanted = tree_accept(self.tree, self.targets, max_depth=DEPTH, library=KernelLibrary(backend="numpy"))
        assert_equal(f"tree_accept v{self.version} {self.batch} x {self.budget}", self.results, wanted)


def floors() -> tuple[float, float]:
    """Return microseconds of an empty kernel in a graph, and copy bandwidth in bytes per microsecond."""
    import cupy

    source = 'extern "C" __global__ void empty(int* x) { if (x == nullptr) return; }'
    empty, x = cupy.RawKernel(source, "empty"), cupy.zeros(1, np.int32)
    a, b = (cupy.ones(1 << 28, np.float32) for _ in range(2))
    copy = time_graph(lambda: cupy.copyto(a, b))[0]
    return time_graph(lambda: empty((1,), (32,), (x,)))[0], 2 * a.nbytes / copy


def stamp(commit: str | None) -> dict[str, str]:
    """Return the GPU, the versions, the commit (that of the checkout if not given) and the command."""
    import cupy

    from kdtree_cupy.library import nvrtc

    if commit is None:
        git = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
        commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    runtime = cupy.cuda.runtime
    return {
        "gpu": runtime.getDeviceProperties(0)["name"].decode(),
        "driver": str(runtime.driverGetVersion()),
        "nvrtc": "NVRTC {}.{}".format(*nvrtc.choose().version),
        "cupy": cupy.__version__,
        "commit": commit or "unknown",
        "command": "python benchmarks/bench_tree.py",
    }


@click.command()
@click.option("--out", type=click.Path(path_type=Path), help="CSV to write.")
@click.option("--check-only", is_flag=True, help="Small sizes, no timing: for compute-sanitizer.")
@click.option("--commit", help="Commit of the sources, where they are no git checkout.")
def main(out: Path | None, check_only: bool, commit: str | None) -> None:
    """Check, time, print a table and write it with its provenance."""
    library = KernelLibrary(backend="cuda")
    if check_only:
        for batch, budget in ((2, 16), (2, 64), (1, 256)):
            for version in (1, 2):
                Build(library, batch, budget, version=version).check()
                Accept(library, batch, budget, version=version).check()
        click.echo("checked")
        return
    cases = [Build(library, *case) for case in BUILDS] + [Accept(library, *case) for case in ACCEPTS]
    cases += [Build(library, 1, 64, version=1), Accept(library, 64, 64, version=1)]
    empty, bandwidth = floors()
    rows = []
    for case in cases:
        case.check()
        median, low, high = time_graph(case)
        target = TARGETS.get((case.stage, case.batch, case.budget), "") if case.version == 2 else ""
        floor = case.bytes / bandwidth
        facts = (case.stage, case.version, case.batch, case.budget, DEPTH, min(case.budget, 1024))
        times = (round(median, 2), round(low, 2), round(high, 2), REPLAYS * LAUNCHES)
        rows.append((*facts, *times, round(floor, 3), round(empty, 2), target))
        click.echo(f"{case.stage} v{case.version} batch {case.batch:3} B {case.budget:5}: {median:8.2f} us"
                   f"  floors {floor:.2f} bytes, {empty:.2f} launch  target {target}")  # fmt: skip
    if out:
        provenance = stamp(commit)
        head = "stage version batch budget depth width us_median us_p20 us_p80 launches"
        head += " us_floor_bytes us_floor_launch us_target"
        with out.open("w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow([*head.split(), *provenance])
            writer.writerows([*row, *provenance.values()] for row in rows)


if __name__ == "__main__":
    main()
