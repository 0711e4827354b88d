"""Reading cubins: what they are for and what their kernels take, under every NVRTC at hand."""

from __future__ import annotations

import struct

import pytest
from library_tools import nvrtc_files

from kdtree_cupy.errors import BackendError
from kdtree_cupy.library import cubin, nvrtc

TEXT = """
struct S { int a[4]; };
__device__ __noinline__ float helper(float x) { return x + 1.f; }
extern "C" __global__ void __launch_bounds__(256)
many(const float* x, int n, long long m, char c, S s, float f, bool b, double d, short h)
{ ((float*)x)[n] = m + c + s.a[1] + helper(f) + b + d + h; }
extern "C" __global__ void none() {}
"""
SIZES = (8, 4, 8, 1, 16, 4, 1, 8, 2)


@pytest.fixture(params=nvrtc_files(), ids=lambda path: path.parts[-4] + "-" + path.name)
def library(request):
    return nvrtc.load(request.param)


def make(library, arch: str, text: str = TEXT) -> bytes:
    try:
        library.check_arch(arch)
    except BackendError as error:
        pytest.skip(str(error))
    binary, log = library.compile(text, "t.cu", {}, [f"-arch={arch}", "--ptxas-options=-v"])
    assert binary, log
    return binary


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100", "sm_120"])
def test_parameter_sizes(library, arch):
    kernels = cubin.parse(make(library, arch)).kernels
    assert kernels["many"] == cubin.CubinKernel(SIZES, 256)
    assert kernels["none"] == cubin.CubinKernel((), None)


@pytest.mark.parametrize(
    "arch", ["sm_80", "sm_90", "sm_90a", "sm_100a", "sm_120", "sm_120a", "sm_120f", "sm_121"]
)
def test_architecture_is_exactly_the_one_asked_for(library, arch):
    assert cubin.parse(make(library, arch)).arch == arch


def test_flags_of_sm_120a(library):
    # bits 8-15: 120; bit 3: "a", which NVRTC 13 records in a note only
    flags = cubin.parse(make(library, "sm_120a")).flags
    assert flags == (0x600780A if library.version < (13, 0) else 0x6007802)


def test_unknown_attribute_form_is_unchecked(library):
    info = struct.pack("<BBH", 9, 0x17, 0)
    assert cubin._kernel(info) == cubin.CubinKernel(None, None)


def sized(attribute: int, data: bytes) -> bytes:
    return struct.pack("<BBH", 4, attribute, len(data)) + data


def param(ordinal: int, offset: int, size: int) -> bytes:
    return sized(0x17, struct.pack("<IHHI", 0, ordinal, offset, size << 18))


@pytest.mark.parametrize(
    "info",
    [
        param(0, 0, 8) + param(1, 8, 4),  # no total
        param(0, 0, 8) + struct.pack("<BBH", 3, 0x19, 12),  # total of another layout
        param(0, 0, 8) + param(2, 8, 4) + struct.pack("<BBH", 3, 0x19, 12),  # a gap
        sized(0x17, b"short") + struct.pack("<BBH", 3, 0x19, 12),
        param(0, 0, 8)[:-3],
    ],
    ids=["no-total", "other-total", "gap", "short", "cut"],
)
def test_a_layout_that_does_not_add_up_is_unchecked(info):
    assert cubin._kernel(info).params is None


def test_missing_section_is_unchecked():
    assert cubin._kernel(None) == cubin.CubinKernel(None, None)


def test_good_synthetic_section():
    info = param(1, 8, 4) + param(0, 0, 8) + struct.pack("<BBH", 3, 0x19, 12)
    assert cubin._kernel(info).params == (8, 4)


@pytest.mark.parametrize("data", [b"", b"\x7fELF\x02", b"MZ" * 100, b"\x7fELF\x01" + bytes(100)])
def test_what_is_no_cubin(data):
    with pytest.raises(ValueError, match="not a cubin"):
        cubin.parse(data)


def test_elf_for_another_machine():
    header = bytearray(64)
    header[:5] = b"\x7fELF\x02"
    struct.pack_into("<H", header, 18, 62)  # x86-64
    with pytest.raises(ValueError, match="another machine"):
        cubin.parse(bytes(header))


def test_truncated_files_do_not_raise(library):
    whole = make(library, "sm_90")
    for length in range(64, len(whole), 97):
        cut = cubin.parse(whole[:length])
        assert all(kernel.params in (None, SIZES, ()) for kernel in cut.kernels.values())


def test_random_damage_does_not_raise(library):
    whole = make(library, "sm_90")
    for at in range(64, len(whole), 61):
        damaged = bytearray(whole)
        damaged[at] ^= 0xFF
        cubin.parse(bytes(damaged))
