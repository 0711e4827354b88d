"""How long calls take, and on what: CUDA graphs of many launches, ceilings of the machine, its stamp.

Times are microseconds, as lists of samples; :func:`summary` makes median and percentiles of them.
"""

from __future__ import annotations

import platform
import subprocess
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

Call = Callable[[], object]
GRAPH_US = 3000.0
"""A graph is filled with launches until it takes about this long, so that its own start does not count."""
MOST_LAUNCHES = 100


class Summary(NamedTuple):
    """Median, 20th and 80th percentile in microseconds, and the number of samples."""

    median: float
    p20: float
    p80: float
    n: int


def summary(samples: Sequence[float]) -> Summary:
    """Return the :class:`Summary` of samples in microseconds."""
    median, low, high = (float(np.percentile(samples, p)) for p in (50, 20, 80))
    return Summary(median, low, high, len(samples))


def graph_times(
    calls: Sequence[Call], *, replays: int = 15, launches: int | None = None, before: Call | None = None
) -> list[float]:
    """Time one call inside a replayed CUDA graph that holds many, by CuPy; waits for the device.

    Parameters
    ----------
    calls : sequence of callables
        Launch work on CuPy's current stream and allocate nothing once warm.  Several calls on different
        copies of the inputs, taken in turn, find a cold L2 cache; one finds a warm one.
    replays : int
        Samples; two more replays come before and are dropped.
    launches : int, optional
        Calls in a graph; default: as many as take about :data:`GRAPH_US`, each of ``calls`` equally often.
    before : callable, optional
        Called on the stream before each replay, outside the timed part: puts inputs back.

    Returns
    -------
    list of float
        Microseconds of one call, one number a replay.
    """
    import cupy

    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.get_current_stream().synchronize()
    with stream:
        (before or _nothing)()
        for call in calls:
            call()
        stream.synchronize()
        if launches is None:
            first = float(np.median(_replay(cupy, stream, calls, len(calls), 5, before)))
            launches = int(min(max(GRAPH_US / max(first, 0.1), 4), MOST_LAUNCHES))
        launches = -(-launches // len(calls)) * len(calls)
        return _replay(cupy, stream, calls, launches, replays, before)


def _replay(
    cupy: Any, stream: Any, calls: Sequence[Call], launches: int, replays: int, before: Call | None
) -> list[float]:
    stream.begin_capture()
    try:
        for i in range(launches):
            calls[i % len(calls)]()
    finally:
        graph = stream.end_capture()
    begin, end = cupy.cuda.Event(), cupy.cuda.Event()
    times = []
    for i in range(-2, replays):
        (before or _nothing)()
        begin.record(stream)
        graph.launch(stream)
        end.record(stream)
        end.synchronize()
        if i >= 0:
            times.append(1e3 * cupy.cuda.get_elapsed_time(begin, end) / launches)
    return times


def wall_times(
    call: Call, *, seconds: float = 0.5, least: int = 5, most: int = 50, before: Call | None = None
) -> list[float]:
    """Time ``call`` by the wall clock: for CPU backends, and for Python's own share on a device.

    ``call`` must wait for what it starts.  It runs once before, then for about ``seconds``.
    """
    times, end = [], None
    while end is None or (len(times) < most and (len(times) < least or time.perf_counter() < end)):
        (before or _nothing)()
        begin = time.perf_counter()
        call()
        if end is None:
            end = time.perf_counter() + seconds
        else:
            times.append(1e6 * (time.perf_counter() - begin))
    return times


def _nothing() -> None:
    pass


class Ceilings(NamedTuple):
    """What this machine can do at best: bytes and operations per microsecond, and an empty launch in us.

    ``bytes_per_us`` is the larger of two: a large array copied (read and written), and one only read.
    """

    bytes_per_us: float
    flops_per_us: float
    launch_us: float
    l2_bytes: int

    def floor_us(self, moved: float, flops: float = 0.0) -> float:
        """Return the least time for ``moved`` bytes and ``flops`` operations."""
        return max(moved / self.bytes_per_us, flops / self.flops_per_us, self.launch_us)


@lru_cache(maxsize=2)
def ceilings(backend: str) -> Ceilings:
    """Measure bandwidth, a large matrix product, and an empty launch.

    Parameters
    ----------
    backend : {"cuda", "host", "numpy"}
        On a device the product is 8192^3 in float16 (bfloat16 runs at the same rate); on a CPU float32.
    """
    if backend == "cuda":
        return _device_ceilings()
    a = np.ones(1 << 24, np.float32)
    b, m = np.empty_like(a), np.ones((768, 768), np.float32)
    copy = min(wall_times(lambda: np.copyto(b, a), seconds=0.2))
    product = min(wall_times(lambda: m @ m, seconds=0.2))
    return Ceilings(2 * a.nbytes / copy, 2 * 768**3 / product, 0.0, 0)


_KERNELS = r"""
extern "C" __global__ void empty(int* x) { if (x == nullptr) return; }

extern "C" __global__ void __launch_bounds__(512) read_all(const uint4* x, unsigned* out, long long count)
{
    unsigned seen = 0;
    const long long step = (long long)gridDim.x * blockDim.x;
    long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    for (; i + 3 * step < count; i += 4 * step) {
        const uint4 a = x[i], b = x[i + step], c = x[i + 2 * step], d = x[i + 3 * step];
        seen |= a.x ^ a.y ^ a.z ^ a.w ^ b.x ^ b.y ^ b.z ^ b.w ^ c.x ^ c.y ^ c.z ^ c.w ^ d.x ^ d.y ^ d.z ^ d.w;
    }
    if (seen == 0x12345678u) out[0] = 1;  // never, but the compiler does not know
}
"""


def _device_ceilings() -> Ceilings:
    import cupy

    empty, read = (cupy.RawKernel(_KERNELS, name) for name in ("empty", "read_all"))
    x, a = cupy.zeros(1, np.int32), cupy.ones(1 << 29, np.float32)
    b, m = cupy.empty_like(a), cupy.random.standard_normal((8192, 8192), dtype=np.float32).astype(np.float16)
    out = cupy.empty_like(m)
    copied = graph_times([lambda: cupy.multiply(a, np.float32(1), out=b)])  # copy nodes would be slower
    blocks = 4 * cupy.cuda.Device().attributes["MultiProcessorCount"]
    count = np.int64(a.nbytes // 16)
    seen = graph_times([lambda: read((blocks,), (512,), (a, x, count))])
    launch = np.median(graph_times([lambda: empty((1,), (32,), (x,))], launches=100))
    product = np.median(_event_times(lambda: cupy.matmul(m, m, out=out)))
    l2 = cupy.cuda.Device().attributes["L2CacheSize"]
    most = max(2 * a.nbytes / np.median(copied), a.nbytes / np.median(seen))
    return Ceilings(float(most), 2 * 8192**3 / float(product), float(launch), int(l2))


def _event_times(call: Call, replays: int = 10) -> list[float]:
    """Time long calls one by one with events, without a graph (cuBLAS may allocate)."""
    import cupy

    times, begin, end = [], cupy.cuda.Event(), cupy.cuda.Event()
    for i in range(replays + 2):
        begin.record()
        call()
        end.record()
        end.synchronize()
        if i >= 2:
            times.append(1e3 * cupy.cuda.get_elapsed_time(begin, end))
    return times


def machine(backend: str) -> dict[str, str]:
    """Return the columns ``gpu, driver, cuda, cupy, commit, dirty``; a CPU says so in ``gpu``."""
    folder = Path(__file__).resolve().parent
    commit = _said("git", "-C", str(folder), "rev-parse", "--short=12", "HEAD")
    changed = _said(
        "git", "-C", str(folder.parent), "status", "--porcelain", "--", "kdtree_cupy", "kernels_cu"
    )
    facts = {"gpu": f"none (CPU: {cpu_name()})", "driver": "", "cuda": "", "cupy": ""}
    if backend == "cuda":
        import cupy

        from .library import nvrtc

        runtime = cupy.cuda.runtime
        facts["gpu"] = runtime.getDeviceProperties(0)["name"].decode()
        driver = _said("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader").split("\n")[0]
        facts |= {"driver": driver or str(runtime.driverGetVersion()), "cupy": cupy.__version__}
        facts["cuda"] = ".".join(map(str, nvrtc.choose().version))
    return facts | {"commit": commit or "unknown", "dirty": str(int(bool(changed))) if commit else ""}


def clocks() -> dict[str, str]:
    """Return clocks, temperature and power of the first GPU as ``nvidia-smi`` says; empty without it."""
    fields = ("clocks.sm", "clocks.mem", "temperature.gpu", "power.draw", "clocks_event_reasons.active")
    said = _said("nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader").split("\n")[0]
    values = [value.strip() for value in said.split(",")]
    return dict(zip(fields, values, strict=True)) if len(values) == len(fields) else {}


def cpu_name() -> str:
    """Return the processor's name."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def _said(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
