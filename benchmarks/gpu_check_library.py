"""Answer, on a real card, what the kernel library assumes about drivers and CuPy; prints one JSON object.

Run it, and ``pytest -m gpu tests/test_gpu_library.py`` beside it: about two minutes together.  Each answer
stands alone: one that fails is recorded with its error.
"""

from __future__ import annotations

import json
import statistics
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from kdtree_cupy.library import KernelLibrary
from kdtree_cupy.library.doctor import findings

KERNELS = Path(__file__).resolve().parents[1] / "tests" / "kernels"


def library() -> KernelLibrary:
    """Return a library that launches at once, without the worker."""
    made = KernelLibrary(KERNELS)
    made.checks_edits = False
    return made


def microseconds(call: Callable[[], Any], repeats: int = 2000) -> float:
    """Return the median CPU time of a call that does not wait."""
    import cupy

    times = []
    for _ in range(5):
        cupy.cuda.Device().synchronize()
        begin = time.perf_counter()
        for _ in range(repeats // 5):
            call()
        times.append((time.perf_counter() - begin) / (repeats // 5) * 1e6)
    return round(statistics.median(times), 2)


def launch_overhead() -> dict[str, float]:
    """Time a launch with our checks, through CuPy alone, and in a graph."""
    import cupy

    lib, x, y = library(), cupy.ones(64, "f4"), cupy.zeros(64, "f4")
    arguments = (x, y, np.float32(1), np.int32(64))
    raw = lib.raw_module("scale.cu").get_function("scale_v1")
    kernel = lib.kernel("scale.cu", "scale_v1", backend="cuda")
    lib.launch("scale.cu", "scale_v1", 1, 64, arguments)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        for _ in range(100):
            kernel(1, 64, arguments)
        graph = stream.end_capture()
    time.sleep(2.5)  # files younger than two seconds are read at every launch
    return {
        "cupy_raw_us": microseconds(lambda: raw((1,), (64,), arguments)),
        "kernel_us": microseconds(lambda: kernel(1, 64, arguments)),
        "library_launch_us": microseconds(lambda: lib.launch("scale.cu", "scale_v1", 1, 64, arguments)),
        "graph_of_100_us": microseconds(lambda: graph.launch(stream), 200),
    }


def resources() -> list[dict[str, Any]]:
    """Put the compiler's numbers beside the driver's: does shared_size_bytes count the system's 1 KiB?"""
    lib = KernelLibrary()
    out = []
    for row in lib.report().rows:
        attributes = lib.raw_module(row.file).get_function(row.name).attributes
        out.append({**row.__dict__, "driver": attributes})
    return out


def untyped_scalars() -> dict[str, Any]:
    """Show what a kernel sees if scalars are handed to CuPy without our checks."""
    import cupy

    text = (
        'extern "C" __global__ void see(double* out, float f, int i, int j)'
        "{ out[0] = f; out[1] = i; out[2] = j; }"
    )
    lib = library()
    lib.replace("see.cu", text, new=True)
    out = cupy.zeros(3)
    lib.raw_module("see.cu").get_function("see")((1,), (1,), (out, 2.0, 7, 2**31 + 5))
    return dict(zip(("float 2.0", "int 7", "int 2**31+5"), out.get().tolist(), strict=True))


def first_launch() -> dict[str, float]:
    """Time an edit until its result: compile, load, launch; then with the worker's check before it."""
    import cupy

    x, y = cupy.ones(64, "f4"), cupy.zeros(64, "f4")
    seconds = {}
    for name, checked in (("edit_s", False), ("first_worker_s", True), ("warm_worker_s", True)):
        lib = library()
        lib.checks_edits = checked
        text = (KERNELS / "scale.cuh").read_text().replace("2.0f", f"{time.time_ns() % 1000}.5f")
        lib.replace("scale.cuh", text)
        begin = time.perf_counter()
        lib.launch("scale.cu", "scale_v1", 1, 64, (x, y, np.float32(1), 64))
        cupy.cuda.Device().synchronize()
        seconds[name] = round(time.perf_counter() - begin, 3)
    return seconds


def every_architecture() -> dict[str, str]:
    """See whether cubins for other architectures are refused before the driver sees them."""
    import cupy

    x = cupy.ones(64, "f4")
    said = {}
    for arch in ("sm_80", "sm_90", "sm_90a", "sm_120", "sm_120a"):
        lib = KernelLibrary(KERNELS, arch=arch)
        lib.checks_edits = False
        try:
            lib.launch("scale.cu", "scale_v1", 1, 64, (x, x, np.float32(1), 64))
            said[arch] = "ran"
        except RuntimeError as error:
            said[arch] = str(error)
    return said


def deprecations() -> list[str]:
    """Collect warnings of CuPy about what we use."""
    import cupy

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        lib, x = library(), cupy.ones(64, "f4")
        lib.launch("scale.cu", "scale_v1", 1, 64, (x, x, np.float32(1), 64))
    return [str(one.message) for one in seen]


QUESTIONS = (launch_overhead, first_launch, untyped_scalars, every_architecture, deprecations, resources)


def main() -> None:
    """Print the doctor's findings and the answer to every question."""
    answers: dict[str, Any] = {"doctor": [one.to_json() for one in findings()]}
    for question in QUESTIONS:
        try:
            answers[question.__name__] = question()
        except Exception:  # noqa: BLE001  one failure must not lose the other answers
            answers[question.__name__] = {"failed": traceback.format_exc().splitlines()[-3:]}
    print(json.dumps(answers, indent=1, default=str))


if __name__ == "__main__":
    main()
