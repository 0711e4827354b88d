"""The host backend behind the library: cache, edits, errors, options."""

from __future__ import annotations

import numpy as np
import pytest
from library_tools import HEADER, SCALE, cache_folder, sources  # noqa: F401

from kdtree_cupy.errors import CompileError
from kdtree_cupy.library import KernelLibrary, host, host_build
from kdtree_cupy.library.host_run import KernelFault

pytestmark = pytest.mark.skipif(bool(host.problem()), reason=f"needs a C++ compiler: {host.problem()}")


@pytest.fixture
def library(cache_folder, sources):  # noqa: F811
    made = KernelLibrary(sources, backend="host")
    made.checks_edits = False
    return made


def scale(library, **more):
    x, y = np.ones(300, "f4"), np.zeros(300, "f4")
    library.launch("scale.cu", "scale_v1", 3, 128, (x, y, np.float32(1), 300), **more)
    assert (y == y[0]).all()
    return float(y[0])


def test_runs_and_is_cached(library, cache_folder, monkeypatch):  # noqa: F811
    assert scale(library) == 3
    host._modules.clear()  # as in a new process
    library.clear()
    monkeypatch.setattr(host_build, "build", lambda *_, **__: pytest.fail("built again"))
    assert scale(library) == 3
    assert sorted(path.suffix for path in cache_folder.iterdir()) == [".json", ".so"]


@pytest.mark.parametrize("harm", ["cut", "link"])
def test_harmed_library_is_built_again_and_never_loaded(library, cache_folder, tmp_path, harm):  # noqa: F811
    scale(library)
    (path,) = cache_folder.glob("*.so")
    if harm == "cut":
        start = path.read_bytes()[:1000]
        path.unlink()  # a new file: cutting the loaded one would pull pages from under this process
        path.write_bytes(start)
    else:
        path.rename(tmp_path / "elsewhere.so")
        path.symlink_to(tmp_path / "elsewhere.so")
    host._modules.clear()
    library.clear()
    assert scale(library) == 3
    assert not path.is_symlink() and path.stat().st_size > 1000


def test_edits_are_live(library, sources):  # noqa: F811
    assert scale(library) == 3
    (sources / "scale.cuh").write_text(HEADER.replace("2.0f", "4.0f"))
    assert scale(library) == 5
    library.replace("scale.cuh", HEADER.replace("2.0f", "6.0f"))
    assert scale(library) == 7
    library.replace("scale.cuh", None)
    assert scale(library) == 5


def test_defines(library):
    library.replace("scale.cuh", HEADER.replace("#define KD_FACTOR", "//"))
    assert scale(library, defines={"KD_FACTOR": 9}) == 10
    assert scale(library, defines={"KD_FACTOR": "0.5f"}) == 1.5


def test_errors_name_the_users_file_and_line(library, sources):  # noqa: F811
    line = len(SCALE.splitlines()) + 2
    (sources / "scale.cu").write_text(SCALE + "\n__device__ int f() { return nothing; }\n")
    with pytest.raises(CompileError, match=rf"^{sources}/scale\.cu:{line}: .*nothing"):
        scale(library)
    library.replace("scale.cu", SCALE)
    library.replace("scale.cuh", HEADER + "\n#error here\n")
    line = len(HEADER.splitlines()) + 2
    with pytest.raises(CompileError, match=rf"^scale\.cuh \(replaced\):{line}: .*here"):
        scale(library)


def test_options(library):
    for options in ({"seed": 3}, {"seed": -1, "os_threads": 1}, {"timeout": 20.0}, {"guard": False}):
        library.host_options = options
        assert scale(library) == 3


def test_timeout(library):
    library.host_options["timeout"] = 0.3
    library.replace("scale.cu", 'extern "C" __global__ void scale_v1(volatile int* x) { while (!*x) {} }')
    with pytest.raises(KernelFault, match=r"stopped after 0\.3 s"):
        library.launch("scale.cu", "scale_v1", 1, 1, (np.zeros(1, "i4"),))


def test_sanitize_is_another_build(library):
    text = 'extern "C" __global__ void scale_v1(int* x, int by) { x[0] = 1 << by; }'
    library.replace("scale.cu", text)
    arguments = (np.zeros(1, "i4"), 40)
    library.launch("scale.cu", "scale_v1", 1, 1, arguments)
    library.host_options["sanitize"] = True
    with pytest.raises(KernelFault, match="shift"):
        library.launch("scale.cu", "scale_v1", 1, 1, arguments)


def test_out_of_bounds_leaves_the_arrays_alone(library):
    y = np.zeros(4, "f4")
    with pytest.raises(KernelFault, match=r"scale_v1, block .*thread .*\(y\)"):
        library.launch("scale.cu", "scale_v1", 1, 8, (np.ones(8, "f4"), y, np.float32(1), 8))
    assert not y.any()


def test_unknown_kernel(library):
    with pytest.raises(ValueError, match=r"scale\.cu: no kernel 'x'; there are reverse_v1, scale_v1"):
        library.launch("scale.cu", "x", 1, 1, (np.zeros(1),))


def test_same_key_in_another_process_order(library):
    """Defines are part of the key whatever order they are given in."""
    library.replace("scale.cu", "#if A != 1 || B != 2\n#error no\n#endif\n" + SCALE)
    scale(library, defines={"A": 1, "B": 2})
    entries = len(list(library.cache.folder.iterdir()))
    scale(library, defines={"B": 2, "A": 1})
    assert len(list(library.cache.folder.iterdir())) == entries
