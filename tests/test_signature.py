"""Parameter names and types read from source text; sizes of grids and blocks."""

from __future__ import annotations

import numpy as np
import pytest

from kdtree_cupy.library import signature
from kdtree_cupy.library.launch import check, dimensions, slots


def test_source_that_disagrees_with_the_binary_is_dropped():
    parameters = signature.parameters('extern "C" __global__ void k(int a, int b)', "k", {})
    assert slots("k", (8,), parameters)[0].parameter is None
    assert slots("k", None, parameters)[1].parameter.name == "b"
    assert slots("k", None, None) is None


@pytest.mark.parametrize(
    ("define", "dtype"),
    [
        ("__half", "float16"),
        ("__nv_bfloat16", "bfloat16"),
        ("__nv_fp8_e4m3", "float8_e4m3fn"),
        ("Odd<3>", None),
    ],
)
def test_type_made_by_a_macro(define, dtype):
    text = "#define KD_VALUE float\n__global__ void k(const KD_VALUE* __restrict__ values)"
    found = signature.parameters(text, "k", {"KD_VALUE": define})
    assert (found[0].dtype, found[0].pointer, found[0].const) == (dtype, True, True)
    if dtype:
        kind = signature.numpy_dtype(dtype)
        check("k", slots("k", (8,), found), [np.zeros(4, kind)], None)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("__global__ void k()", []),
        ("__global__ void k(void)", []),
        ('extern "C" __global__ void __launch_bounds__(128, 2) k(unsigned int a)', ["uint32"]),
        (
            "__global__ void k(unsigned long long a, long long int b, signed char c)",
            ["uint64", "int64", "int8"],
        ),
        ("__global__ void k(/* float */ int a, // , double b\n const int b)", ["int32", "int32"]),
        ("__global__ void k(float a[4])", ["float32"]),
        ("__global__ void k(Box<int, 3> a, int b = 3)", [None, "int32"]),
        ("typedef unsigned short raw;\n__global__ void k(const raw* a)", ["uint16"]),
        ("#define A B\n#define B A\n__global__ void k(A a)", [None]),
        ("__global__ void other(int a); __global__ void k(double d) { k2(1); }", ["float64"]),
        ("__global__ void k(float** a)", ["uint64"]),
    ],
)
def test_signatures(text, wanted):
    assert [p.dtype for p in signature.parameters(text, "k", {})] == wanted


@pytest.mark.parametrize("text", ["", "void k(int a)", "KERNEL(k, int a)", "__global__ void k(int a"])
def test_signatures_that_cannot_be_read(text):
    assert signature.parameters(text, "k", {}) is None


@pytest.mark.parametrize(
    ("what", "value", "error", "text"),
    [
        ("grid", 2**31, ValueError, "grid.x: got 2147483648, wanted 0..2147483647"),
        ("grid", (1, 65536), ValueError, "grid.y: got 65536, wanted 0..65535"),
        ("grid", -1, ValueError, "grid.x: got -1"),
        ("grid", 1.5, TypeError, "wanted one to three ints"),
        ("grid", (), TypeError, "got 0 numbers"),
        ("grid", (1, 1, 1, 1), TypeError, "got 4 numbers"),
        ("block", 0, ValueError, "block.x: got 0, wanted 1..1024"),
        ("block", 1025, ValueError, "block.x: got 1025"),
        ("block", (1, 1, 65), ValueError, "block.z: got 65, wanted 1..64"),
        ("block", (32, 33), ValueError, "= 1056 threads, wanted <= 1024"),
    ],
)
def test_wrong_dimensions(what, value, error, text):
    with pytest.raises(error) as caught:
        dimensions("k", what, value)
    assert text in str(caught.value)


def test_dimensions_are_filled_up():
    assert dimensions("k", "grid", np.int64(5)) == (5, 1, 1)
    assert dimensions("k", "grid", (5, 0)) == (5, 0, 1)
    assert dimensions("k", "block", [2, 3, 4]) == (2, 3, 4)
