"""Build the test kernels of tests/kernels for the CPU, once per test session."""

from __future__ import annotations

import atexit
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from kdtree_cupy.library import host_build
from kdtree_cupy.library.host_run import HostModule
from kdtree_cupy.library.sources import package_folder

KERNELS = Path(__file__).parent / "kernels"
NO_COMPILER = host_build.problem()
needs_compiler = pytest.mark.skipif(NO_COMPILER is not None, reason=f"needs a C++ compiler: {NO_COMPILER}")
SEEDS = (0, -1, 1, 20260101)
"""Ascending, descending and two shuffled orders of threads and blocks."""

_folder = tempfile.TemporaryDirectory(prefix="kdtree_test_host_")
atexit.register(_folder.cleanup)


def texts(file: str) -> dict[str, str]:
    """Return the sources of a test kernel: its own text and the package's device headers."""
    headers = {path.name: path.read_text() for path in package_folder().glob("*.cuh")}
    return {**headers, file: (KERNELS / file).read_text()}


@cache
def module(file: str, *, sanitize: bool = False) -> HostModule:
    """Return the compiled kernels of ``tests/kernels/<file>``."""
    out = Path(_folder.name) / f"{file}{'.san' if sanitize else ''}.so"
    return HostModule(host_build.build(texts(file), file, {}, out=out, sanitize=sanitize))


def module_of(text: str, **options: object) -> HostModule:
    """Return the compiled kernels of a text; each call builds anew."""
    out = Path(tempfile.mkdtemp(dir=_folder.name)) / "kernels.so"
    sources = {**texts("host_primitives.cu"), "mine.cu": text}
    return HostModule(host_build.build(sources, "mine.cu", {}, out=out, **options))


def partition(rng: np.random.Generator, threads: int) -> np.ndarray:
    """Return a mask per thread: each warp split at random into groups."""
    masks = np.zeros(threads, np.uint32)
    for begin in range(0, threads, 32):
        group = rng.integers(0, rng.integers(1, 6), 32)
        for g in set(group):
            lanes = np.flatnonzero(group == g)
            masks[begin + lanes] = np.bitwise_or.reduce(np.uint32(1) << lanes.astype(np.uint32))
    return masks


def groups(masks: np.ndarray):
    """Yield (mask, thread numbers) of each group of a partition."""
    for begin in range(0, len(masks), 32):
        for mask in np.unique(masks[begin : begin + 32]):
            yield mask, begin + np.flatnonzero(masks[begin : begin + 32] == mask)
