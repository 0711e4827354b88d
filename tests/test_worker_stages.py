"""The worker compares stages with their references; it never outlives its owner."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import subprocess
import sys
import time
import types
from pathlib import Path

import numpy as np
import pytest
from library_tools import HEADER, KERNELS, cache_folder  # noqa: F401

from kdtree_cupy.errors import BackendError
from kdtree_cupy.library import KernelError, KernelLibrary, host, rehearse
from kdtree_cupy.library.worker import Worker

pytestmark = pytest.mark.skipif(bool(host.problem()), reason=f"needs a C++ compiler: {host.problem()}")


@pytest.fixture
def stage(monkeypatch, tmp_path):
    """A stage module with a check of its own, importable here and in the worker."""
    (tmp_path / "kdtree_check_scale.py").write_text(
        "import numpy as np\n"
        "def self_check(library):\n"
        "    x, y = np.ones(8, 'f4'), np.zeros(8, 'f4')\n"
        "    library.launch('scale.cu', 'scale_v1', 1, 8, (x, y, np.float32(1), 8))\n"
        "    np.testing.assert_array_equal(y, 2 * x + 1)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("kdtree_check_scale")
    monkeypatch.setattr(rehearse, "hook", lambda file, name: getattr(module, name, None))
    for worker in rehearse._workers.values():
        worker.stop()  # so that the next one finds the module
    yield
    sys.modules.pop("kdtree_check_scale")


def test_stage_is_compared_with_its_reference(stage, cache_folder):  # noqa: F811
    library = KernelLibrary(KERNELS, backend="host")
    x, y = np.ones(64, "f4"), np.zeros(64, "f4")
    library.launch("scale.cu", "scale_v1", 1, 64, (x, y, np.float32(1), 64))
    assert y[0] == 3
    library.replace("scale.cuh", HEADER.replace("2.0f", "2.5f"))
    with pytest.raises(
        KernelError, match=r"the check of scale\.cu against its reference failed.*AssertionError"
    ):
        library.launch("scale.cu", "scale_v1", 1, 64, (x, y, np.float32(1), 64))
    assert y[0] == 3


def test_hooks_of_stages():
    from kdtree_cupy.library.stage_hooks import hook

    assert hook("absent_stage.cu", "self_check") is None
    assert hook("deep/tree_build.cu", "tree_build") is None
    assert hook("no-identifier.cu", "self_check") is None
    assert isinstance(hook("tree_build.cu", "tree_build"), types.FunctionType)


def test_no_interpreter(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "executable", "")
    with pytest.raises(BackendError, match=r"sys\.executable is not known"):
        Worker(tmp_path).run({"library": {"backend": "host"}}, "x", 1)


def test_worker_ends_with_its_parent(tmp_path):
    code = f"""
import os, sys
sys.path.insert(0, {str(KERNELS.parent)!r})
from kdtree_cupy.library import KernelLibrary, rehearse
import numpy as np
library = KernelLibrary({str(KERNELS)!r}, backend="host")
library.launch("faults.cu", "fine_v1", 1, 32, (np.zeros(32, "i4"),))
print(rehearse.worker(library).pid, flush=True)
os.kill(os.getpid(), 9)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    pid = int(done.stdout)
    for _ in range(100):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        if Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z":
            return  # ended, and waits for an init that collects it
        time.sleep(0.1)
    pytest.fail("the worker outlived its parent")


def test_worker_is_gone_with_its_owner(tmp_path):
    worker = Worker(tmp_path)
    worker._start()
    pid = worker.pid
    del worker
    gc.collect()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="forking with threads is deprecated from 3.12 on")
def test_a_forked_child_gets_a_worker_of_its_own(cache_folder):  # noqa: F811
    library = KernelLibrary(KERNELS, backend="host")

    def run():
        library.passed.clear()
        library._kernels.clear()
        library.launch("faults.cu", "fine_v1", 1, 32, (np.zeros(32, "i4"),))

    run()
    worker = rehearse.worker(library)
    ours = worker.pid
    child = os.fork()
    if child == 0:
        code = 1
        with contextlib.suppress(Exception):
            run()
            code = 0 if worker.pid not in (None, ours) else 2
            worker.stop()
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert worker.pid == ours, "the parent's worker lives on"
    run()
    worker.stop()
