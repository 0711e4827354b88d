"""Compile errors name the user's own file and line, and a cure where there is one."""

from __future__ import annotations

import pytest
from library_tools import HEADER, SCALE, cache_folder, needs_nvrtc, sources  # noqa: F401

from kdtree_cupy.errors import BackendError, CompileError
from kdtree_cupy.library import KernelLibrary, nvrtc

pytestmark = needs_nvrtc


@pytest.fixture
def library(cache_folder, sources):  # noqa: F811
    return KernelLibrary(sources)


def test_errors_name_the_users_file_and_line(library, sources):  # noqa: F811
    line = len(SCALE.splitlines()) + 2
    (sources / "scale.cu").write_text(SCALE + "\n__device__ int f() { return nothing; }\n")
    with pytest.raises(CompileError) as caught:
        library.compile("scale.cu", arch="sm_90")
    assert str(caught.value) == f'{sources}/scale.cu:{line}: identifier "nothing" is undefined'
    assert f"{sources}/scale.cu({line}): error" in caught.value.log
    assert "-arch=sm_90" in caught.value.options


def test_errors_in_headers(library, sources):  # noqa: F811
    (sources / "scale.cuh").write_text(HEADER + '\n\nstatic_assert(sizeof(int) == 5, "five");\n')
    with pytest.raises(CompileError) as caught:
        library.compile("scale.cu", arch="sm_90")
    line = len(HEADER.splitlines()) + 3
    assert str(caught.value).startswith(f"{sources}/scale.cuh:{line}: static assertion failed")


def test_errors_in_replaced_text(library):
    library.replace("scale.cu", "\n\n#error here\n")
    with pytest.raises(CompileError, match=r"^scale\.cu \(replaced\):3: #error directive: here"):
        library.compile("scale.cu", arch="sm_90")


def test_missing_header(library):
    library.replace("scale.cu", '\n#include "absent.cuh"\n')
    with pytest.raises(
        CompileError, match=r'scale\.cu \(replaced\):2: cannot open source file "absent\.cuh"'
    ):
        library.compile("scale.cu", arch="sm_90")


def test_missing_cuda_headers_say_how_to_get_them(library, monkeypatch):
    from dataclasses import replace

    bare = replace(nvrtc.choose(), include=None)
    monkeypatch.setattr(nvrtc, "choose", lambda: bare)
    with pytest.raises(
        CompileError, match=r"cuda_bf16\.h.*no CUDA headers of version.*kdtree-cupy\[compile\]"
    ):
        library.compile("scale.cu", arch="sm_90")


def test_errors_of_ptxas(library):
    library.replace("scale.cu", 'extern "C" __global__ void k() { asm volatile("nonsense.u32;"); }')
    with pytest.raises(CompileError, match=r"^scale\.cu \(replaced\): ptxas.*error"):
        library.compile("scale.cu", arch="sm_90")


def test_too_much_static_shared_memory(library):
    text = 'extern "C" __global__ void k(int* x) { __shared__ int s[20000]; s[x[0]] = 1; x[1] = s[x[2]]; }'
    library.replace("scale.cu", text)
    with pytest.raises(CompileError, match="too much shared data"):
        library.compile("scale.cu", arch="sm_90")


def test_unknown_option_value(library):
    with pytest.raises(BackendError, match="cannot compile for sm_999"):
        library.compile("scale.cu", arch="sm_999")
