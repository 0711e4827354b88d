"""Building kernels for the CPU: compilers, kernels found, errors at the user's line, wrong arguments."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from host_tools import module, module_of, needs_compiler, texts
from library_tools import KERNELS, needs_nvrtc

from kdtree_cupy.errors import BackendError, CompileError
from kdtree_cupy.library import KernelLibrary, host_build, host_compiler
from kdtree_cupy.library.host_run import HostModule

SIMPLE = """extern "C" __global__ void twice(const int* x, int* y, int n)
{
    y[threadIdx.x] = 2 * x[threadIdx.x] + n;
}
"""
BAD_SHUFFLE = """struct S { int x[9]; };
extern "C" __global__ void k(S* s)
{
    s[0] = __shfl_sync(1u, s[0], 0);
}
"""
BARE_SHARED = """
extern "C" __global__ void k()
{
    extern __shared__ float s[];
}
"""
FORMS = """
#include "common.cuh"
// extern "C" __global__ void in_a_comment(int a) {}
#define MAKE(name, T) extern "C" __global__ void name(const T* __restrict__ in, T* out) { out[0] = in[0]; }
MAKE(made_by_a_macro, float)
extern "C" {
__global__ __launch_bounds__(128, 2) void in_a_block(int (*rows)[4], double x, long long n)
{ rows[0][1] = int(n); }
__global__ void declared_only(int*);
}
#if KD_EXTRA
extern "C" __global__ void conditional() {}
#else
extern "C" __global__ void the_other(void) {}
#endif
template <class T> __global__ void a_template(T* x) { x[0] = 1; }
__global__ void not_c(int* x) { a_template(x); }
struct Pair { float a; double b; };
extern "C" __global__ void __launch_bounds__(32) by_value(
    const Pair p, char c, const unsigned long long* const* tables, float out[], void (*f)(int, int) = nullptr)
{ const char* s = "extern \\"C\\" __global__ void in_a_string(int a) {"; out[0] = s[c]; }
"""


def build(text: str, tmp_path: Path, defines=None, **options) -> Path:
    return host_build.build(
        {**texts("host_primitives.cu"), "mine.cu": text},
        "mine.cu",
        defines or {},
        out=tmp_path / "k.so",
        **options,
    )


@needs_compiler
@pytest.mark.parametrize("extra", [0, 1])
def test_kernels_and_parameter_sizes(tmp_path, extra):
    found = HostModule(build(FORMS, tmp_path, {"KD_EXTRA": extra}))
    assert found.kernels() == {
        "made_by_a_macro": [8, 8],
        "in_a_block": [8, 8, 8],
        "conditional" if extra else "the_other": [],
        "by_value": [16, 1, 8, 8, 8],
    }
    assert found.parameters("by_value")[:4] == ["p", "c", "tables", "out"]
    assert found.parameters("made_by_a_macro") == ["in", "out"]
    with pytest.raises(ValueError, match="there are by_value, "):
        found.parameters("absent")


@needs_compiler
def test_the_same_input_gives_the_same_bytes(tmp_path):
    first = build(SIMPLE, tmp_path).read_bytes()
    assert build(SIMPLE, tmp_path).read_bytes() == first
    assert str(Path(tmp_path).parent).encode() not in first


@needs_compiler
def test_a_library_built_again_at_the_same_path_is_the_new_one(tmp_path):
    for factor in (2, 3, 4):
        out = np.zeros(1, np.int32)
        built = build(SIMPLE.replace("2 *", f"{factor} *"), tmp_path)
        HostModule(built).launch("twice", 1, 1, [np.ones(1, np.int32), out, np.int32(0)])
        assert out[0] == factor


@needs_compiler
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (SIMPLE.replace("2 *", "two *"), "mine.cu:3: .*two"),
        ('#include "absent.cuh"\n', "mine.cu:1: .*absent.cuh"),
        ('#include "common.cuh"\n#if 1\n#error "no good"\n#endif\n', 'mine.cu:3: .*"no good"'),
        (BAD_SHUFFLE, "mine.cu:4: .*8 bytes"),
        (BARE_SHARED, "mine.cu:4: .*DYN_SHARED"),
    ],
)
def test_errors_name_the_users_file_and_line(tmp_path, text, message):
    with pytest.raises(CompileError, match=message) as caught:
        build(text, tmp_path)
    assert caught.value.options
    with pytest.raises(CompileError, match=message.replace("mine.cu", "elsewhere/mine.cu")):
        build(text, tmp_path, origins={"mine.cu": "elsewhere/mine.cu"})
    assert not list(tmp_path.iterdir()), "nothing half-made is left"


@needs_compiler
def test_an_error_in_a_header_is_the_headers(tmp_path):
    sources = {"sub/k.cu": '#include "h.cuh"\n' + SIMPLE, "sub/h.cuh": "\nint f() { return x; }\n"}
    with pytest.raises(CompileError, match=r"^sub/h\.cuh:2: "):
        host_build.build(sources, "sub/k.cu", {}, out=tmp_path / "k.so")
    with pytest.raises(ValueError, match="inside the folder"):
        host_build.build({"../k.cu": SIMPLE}, "../k.cu", {}, out=tmp_path / "k.so")


def test_without_a_compiler_the_message_says_how_to_get_one(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(host_compiler, "find_spec", lambda name: None)
    with pytest.raises(BackendError, match=r"no C\+\+ compiler .*apt install g\+\+.*kdtree-cupy\[host\]"):
        host_build.find_compiler()
    assert "no C++ compiler" in host_build.problem()
    monkeypatch.setenv("CXX", "no-such-compiler -O3")
    with pytest.raises(BackendError, match="CXX='no-such-compiler -O3' does not run"):
        build(SIMPLE, tmp_path)


@needs_compiler
def test_cxx_wins_and_may_have_options(monkeypatch):
    compiler = host_build.find_compiler()
    monkeypatch.setenv("CXX", f"{' '.join(compiler.command)} -DMARK=1")
    assert host_build.find_compiler().command == (*compiler.command, "-DMARK=1")


@needs_compiler
def test_the_stamp_follows_compiler_and_options(monkeypatch):
    plain = host_build.stamp()
    assert plain == host_build.stamp() != host_build.stamp(sanitize=True)
    monkeypatch.setenv("CXX", f"{' '.join(host_build.find_compiler().command)} -O2")
    assert host_build.stamp() != plain


@pytest.mark.slow
@pytest.mark.skipif(find_spec("ziglang") is None, reason="needs ziglang: pip install 'kdtree-cupy[host]'")
def test_ziglang_is_enough(monkeypatch, tmp_path):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert host_build.find_compiler().family == "zig"
    out = np.zeros(32, np.int32)
    HostModule(build(SIMPLE, tmp_path)).launch(
        "twice", 1, 32, [np.arange(32, dtype=np.int32), out, np.int32(1)]
    )
    np.testing.assert_array_equal(out, 2 * np.arange(32) + 1)


@needs_compiler
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other systems' ucontext is not supported")
def test_fibers_through_ucontext(tmp_path):
    sources = texts("host_primitives.cu")
    out = tmp_path / "k.so"
    slow = HostModule(host_build.build(sources, "host_primitives.cu", {"KD_HOST_UCONTEXT": 1}, out=out))
    x, y = np.arange(512, dtype=np.int32), np.zeros(512, np.int32)
    slow.launch("reverse_shared", 2, 256, [x, y], shared_bytes=1024, seed=3)
    np.testing.assert_array_equal(y.reshape(2, 256), x.reshape(2, 256)[:, ::-1][:, np.arange(256) ^ 1] + 1)


@needs_compiler
@pytest.mark.parametrize(
    ("args", "error", "words"),
    [
        ([0], TypeError, "got 1 arguments, wanted 3"),
        (["x", None, np.int64(1)], TypeError, "got a value of 8 bytes, wanted 4"),
        (["x", None, 1], TypeError, "argument 2 .n.: got int, wanted a numpy scalar"),
        (["x", None, "x"], TypeError, "argument 2 .n.: got an array"),
        ([[1], None, np.int32(1)], TypeError, "argument 0 .x.: got list, wanted an array"),
        (["strided", None, np.int32(1)], ValueError, "argument 0 .x.: got a strided"),
        (["swapped", None, np.int32(1)], ValueError, "byte-swapped"),
    ],
)
def test_wrong_arguments(tmp_path, args, error, words):
    kinds = {"x": np.zeros(8, np.int32), "strided": np.zeros(8, np.int32)[::2], "swapped": np.zeros(8, ">i4")}
    given = [kinds[a] if isinstance(a, str) else a for a in args]
    with pytest.raises(error, match=words):
        HostModule(build(SIMPLE, tmp_path)).launch("twice", 1, 8, given)


@needs_compiler
@pytest.mark.parametrize(
    ("grid", "block", "options", "words"),
    [
        (1, 1025, {}, "1024"),
        (1, (32, 33), {}, "1024 threads"),
        (1, 0, {}, "block: got 0"),
        ((1, 70000), 1, {}, "65535"),
        (1, 1, {"shared_bytes": 300_000}, "shared_bytes: got 300000"),
        (-1, 1, {}, "grid: got -1"),
    ],
)
def test_wrong_launches(grid, block, options, words):
    with pytest.raises(ValueError, match=words):
        module("host_primitives.cu").launch("active_masks", grid, block, [np.zeros(9, np.uint32)], **options)


@needs_compiler
def test_an_empty_grid_does_nothing():
    module("host_primitives.cu").launch("active_masks", (2, 0), 32, [None])


def test_only_own_libraries_are_loaded(tmp_path, monkeypatch):
    path = tmp_path / "k.so"
    path.write_bytes(b"not a library")
    with pytest.raises(BackendError, match=r"k\.so is no library of kernels"):
        HostModule(path)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(BackendError, match="belongs to user"):
        HostModule(path)


@needs_compiler
def test_printf_and_headers_of_cuda(capfd):
    text = "#include <cuda_bf16.h>\n#include <cuda_fp16.h>\n#include <cuda_fp8.h>\n" + SIMPLE.replace(
        "y[", 'printf("thread %d\\n", threadIdx.x);\n    y[', 1
    )
    module_of(text).launch("twice", 1, 2, [np.zeros(2, np.int32), np.zeros(2, np.int32), np.int32(0)])
    assert capfd.readouterr().out == "thread 0\nthread 1\n"


@needs_nvrtc
@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_120"])
@pytest.mark.parametrize("file", sorted(path.name for path in KERNELS.glob("host_*.cu")))
def test_the_same_files_are_plain_cuda(file, arch):
    compiled = KernelLibrary(KERNELS).compile(file, arch=arch)
    assert len(compiled.kernels) >= 5
