"""Edited kernels run first in a worker process: what goes wrong there becomes an exception here."""

from __future__ import annotations

import gc
import os
import signal
import time
import warnings

import numpy as np
import pytest
from library_tools import HEADER, KERNELS, SCALE, cache_folder, sources  # noqa: F401

from kdtree_cupy.errors import CompileError
from kdtree_cupy.library import KernelError, KernelLibrary, host, rehearse
from kdtree_cupy.library.worker import Worker

pytestmark = pytest.mark.skipif(bool(host.problem()), reason=f"needs a C++ compiler: {host.problem()}")


@pytest.fixture(scope="module", autouse=True)
def one_cache(tmp_path_factory):
    """One cache, and so one worker, for all tests of this file."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KDTREE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield
    for worker in rehearse._workers.values():
        worker.stop()


@pytest.fixture
def library():
    return KernelLibrary(KERNELS, backend="host")


@pytest.fixture
def worker(library):
    return rehearse.worker(library)


def ints(n=32):
    return np.zeros(n, np.int32)


def launch(library, name, *args):
    library.launch("faults.cu", name, 1, 32, args)


def test_good_kernel_runs_in_the_worker_then_here(library, worker):
    x = ints()
    launch(library, "fine_v1", x)
    assert x.tolist() == list(range(32))
    assert worker.pid not in (None, os.getpid())


def test_worker_stays_warm_and_checks_once(library, worker, monkeypatch):
    launch(library, "fine_v1", ints())
    pid = worker.pid
    monkeypatch.setattr(Worker, "run", lambda *_: pytest.fail("checked again"))
    launch(library, "fine_v1", ints())
    assert worker.pid == pid


def test_rehearsal_works_on_copies(library, monkeypatch):
    x = ints()
    monkeypatch.setattr("kdtree_cupy.library.kernel.Kernel.start", lambda *_: None)
    launch(library, "fine_v1", x)
    assert not x.any(), "only the worker's copy was written"


def test_illegal_address_is_an_exception_and_the_worker_is_replaced(library, worker):
    launch(library, "fine_v1", ints())
    pid = worker.pid
    with pytest.raises(
        KernelError, match=r"faults\.cu: crash_v1 with grid \(1, 1, 1\), block \(32, 1, 1\) failed"
    ):
        launch(library, "crash_v1", ints())
    x = ints()
    library.passed.clear()
    library._kernels.clear()
    launch(library, "fine_v1", x)
    assert x[31] == 31 and worker.pid != pid


def test_access_out_of_bounds_names_the_argument(library):
    with pytest.raises(KernelError, match=r"beyond_v1.*KernelFault.*argument 0 \(x\)"):
        launch(library, "beyond_v1", ints(), 32)


def test_endless_loop_is_stopped(library, worker, monkeypatch):
    launch(library, "fine_v1", ints())
    pid = worker.pid
    monkeypatch.setattr(rehearse, "SECONDS", 0.5)
    begin = time.monotonic()
    with pytest.raises(
        KernelError, match=r"endless_v1 with grid .* did not end within 0\.5 s; the worker was replaced"
    ):
        launch(library, "endless_v1", ints())
    assert time.monotonic() - begin < 20
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_killed_worker_is_an_exception(library, worker):
    launch(library, "fine_v1", ints())
    seen = worker._process
    os.kill(worker.pid, signal.SIGKILL)
    seen.poll = lambda: None  # it dies just after we saw it alive
    library.passed.clear()
    library._kernels.clear()
    with pytest.raises(KernelError, match=r"fine_v1 .* ended the worker process \(SIGKILL\)"):
        launch(library, "fine_v1", ints())
    library.launch("faults.cu", "fine_v1", 1, 32, (ints(),))


def test_failed_kernel_never_runs_here(library, monkeypatch):
    monkeypatch.setattr("kdtree_cupy.library.kernel.Kernel.start", lambda *_: pytest.fail("ran here"))
    for _ in range(2):
        with pytest.raises(KernelError):
            launch(library, "beyond_v1", ints(), 32)


def test_wrong_arguments_are_found_before_the_worker(library, monkeypatch):
    monkeypatch.setattr(Worker, "run", lambda *_: pytest.fail("asked the worker"))
    with pytest.raises(TypeError, match="got an array of float32, wanted int32"):
        launch(library, "fine_v1", np.zeros(32, "f4"))
    library.replace("faults.cu", "nonsense")
    with pytest.raises(CompileError, match=r"^faults\.cu \(replaced\):1:"):
        launch(library, "fine_v1", ints())


def test_empty_grid_asks_nobody(library, monkeypatch):
    monkeypatch.setattr(Worker, "run", lambda *_: pytest.fail("asked the worker"))
    library.launch("faults.cu", "crash_v1", 0, 32, (ints(0),))


def test_replaced_text_is_what_the_worker_runs(library):
    library.replace("faults.cu", 'extern "C" __global__ void fine_v1(int* x) { x[threadIdx.x] = 7; }')
    x = ints()
    launch(library, "fine_v1", x)
    assert set(x.tolist()) == {7}


def test_an_edit_is_checked_again(sources):  # noqa: F811
    library = KernelLibrary(sources, backend="host")
    x, y = np.ones(64, "f4"), np.zeros(64, "f4")

    def scale():
        library.launch("scale.cu", "scale_v1", 1, 64, (x, y, np.float32(1), 64))

    scale()
    assert y[0] == 3
    (sources / "scale.cuh").write_text(HEADER.replace("2.0f", "5.0f"))
    scale()
    assert y[0] == 6
    (sources / "scale.cu").write_text(SCALE.replace("if (i < n) y[i]", "if (i < n) y[i + 1]"))
    with pytest.raises(KernelError, match="scale_v1"):
        scale()
    assert y[0] == 6
    (sources / "scale.cu").write_text(SCALE)
    scale()


def test_large_arguments_run_unchecked_with_a_warning(library, monkeypatch):
    monkeypatch.setattr(rehearse, "LARGEST_BYTES", 64)
    monkeypatch.setattr(Worker, "run", lambda *_: pytest.fail("asked the worker"))
    with pytest.warns(UserWarning, match="fine_v1 was edited and runs unchecked"):
        launch(library, "fine_v1", ints())


def test_one_array_given_twice_stays_one(library):
    library.replace("faults.cu", """
extern "C" __global__ void twice_v1(int* x, int* y) {
    y[threadIdx.x] = 1;
    if (x[threadIdx.x] != 1) ((volatile int*)8)[0] = 1;
}
""")  # fmt: skip
    x = ints()
    launch(library, "twice_v1", x, x)


def test_what_a_kernel_prints_is_in_the_message(library):
    library.replace("faults.cu", """
#ifdef KD_HOST
#include <stdio.h>
#endif
extern "C" __global__ void loud_v1(int* x) {
    if (threadIdx.x == 0) { printf("seen %d\\n", x[0]); fflush(stdout); }
    x[32] = 1;
}""")  # fmt: skip
    with pytest.raises(KernelError, match=r"(?s)loud_v1.*last output of the worker:.*seen 0"):
        launch(library, "loud_v1", ints())


def test_no_warnings_about_lost_files(library):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(KernelError):
            launch(library, "beyond_v1", ints(), 32)
        gc.collect()
