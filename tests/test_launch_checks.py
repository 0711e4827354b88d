"""Arguments of a launch: every wrong one has its own message, whatever table the sizes come from."""

from __future__ import annotations

import numpy as np
import pytest
from library_tools import KERNELS, cache_folder, needs_nvrtc  # noqa: F401

from kdtree_cupy.library import KernelLibrary, host, nvrtc, signature
from kdtree_cupy.library.launch import check, slots

FILE, NAME = "params.cu", "params_v1"
SIZES = (8, 8, 4, 4, 8, 4, 1, 8, 8, 8)
PAIR = np.dtype([("a", "i4"), ("b", "i4")])


def good() -> list:
    pair = np.array((3, 4), PAIR)[()]
    return [np.full(4, 5, "f4"), np.zeros(9, "i4"), np.float32(1.5), 7, 8, 9, True, 2.5, pair, None]


@pytest.fixture(scope="module", params=["cubin", "host"])
def wanted(request):
    """The parameters of params_v1, with sizes from the cubin or from the host library."""
    library = KernelLibrary(KERNELS)
    if request.param == "cubin":
        try:
            sizes = library.compile(FILE, arch="sm_90").kernels[NAME].params
        except nvrtc.BackendError as error:
            pytest.skip(str(error))
    else:
        if host.problem():
            pytest.skip(host.problem())
        unit = library.sources.unit(FILE)
        sizes = tuple(host.load(unit, library.defines, library.cache).kernels()[NAME])
    unit = library.sources.unit(FILE)
    headers = "\n".join(unit.texts[name] for name in unit.texts if name != FILE)
    return slots(NAME, sizes, signature.parameters(unit.texts[FILE], NAME, library.defines, headers))


@pytest.fixture(scope="module")
def sizes_only():
    return slots(NAME, SIZES, None)


def test_table(wanted):
    assert tuple(slot.size for slot in wanted) == SIZES
    names = [slot.parameter.name for slot in wanted]
    assert names == ["values", "out", "scale", "n", "stride", "flags", "on", "big", "pair", "any"]
    dtypes = [slot.parameter.dtype for slot in wanted]
    assert dtypes == [
        "float32",
        "int32",
        "float32",
        "int32",
        "int64",
        "uint32",
        "bool",
        "float64",
        None,
        None,
    ]


def test_good_arguments_become_exact_bytes(wanted):
    made = check(NAME, wanted, good(), None)
    kinds = [type(value).__name__ for value in made]
    assert kinds == [
        "Handle",
        "Handle",
        "float32",
        "int32",
        "int64",
        "uint32",
        "bool",
        "float64",
        "void",
        "NoneType",
    ]
    assert made[0].pointer and made[1].writable


def refused(wanted, index, value, error, text):
    arguments = good()
    arguments[index] = value
    with pytest.raises(error) as caught:
        check(NAME, wanted, arguments, None)
    message = str(caught.value)
    assert text in message
    assert message.startswith(f"{NAME}: argument {index} (")


def read_only():
    array = np.zeros(9, "i4")
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    ("index", "value", "error", "text"),
    [
        (0, np.zeros(4), TypeError, "got an array of float64, wanted float32"),
        (
            0,
            np.zeros((4, 4), "f4").T,
            ValueError,
            "of shape (4, 4), wanted a C-contiguous array",
        ),
        (0, np.zeros(8, "f4")[::2], ValueError, "strided view"),
        (0, np.float32(1), TypeError, "got float32, wanted an array of float32"),
        (0, [1.0], TypeError, "got list, wanted an array of float32"),
        (0, 12345678, TypeError, "got int, wanted an array of float32"),
        (1, read_only(), ValueError, "got a read-only array"),
        (0, np.zeros(4, ">f4"), TypeError, "got an array of byte-swapped float32, wanted float32"),
        (0, np.zeros(17, "u1")[1:].view("f4"), ValueError, "unaligned"),
        (0, np.ma.zeros(4, "f4"), TypeError, "got MaskedArray, wanted an array of float32"),
        (1, np.zeros(9, "u4"), TypeError, "got an array of uint32, wanted int32"),
        (2, 2.0, TypeError, "(float scale): got a Python float (8 bytes, a double), wanted np.float32"),
        (2, 2, TypeError, "got a Python int, wanted np.float32"),
        (2, np.float64(2), TypeError, "got np.float64, wanted np.float32"),
        (2, np.zeros(1, "f4"), TypeError, "got an array, wanted np.float32"),
        (2, None, TypeError, "got None, wanted np.float32"),
        (3, 2**31, ValueError, "got 2147483648, wanted -2147483648..2147483647 (int32)"),
        (3, -(2**31) - 1, ValueError, "wanted -2147483648..2147483647"),
        (3, np.int64(2**31 + 5), ValueError, "got 2147483653, wanted"),
        (3, np.float32(1), TypeError, "got np.float32, wanted np.int32"),
        (3, 1.0, TypeError, "got a Python float (8 bytes, a double), wanted np.int32"),
        (3, np.array(3), TypeError, "got an array, wanted np.int32"),
        (3, "7", TypeError, "got str, wanted np.int32"),
        (4, 2**63, ValueError, "(int64)"),
        (5, -1, ValueError, "got -1, wanted 0..4294967295 (uint32)"),
        (5, 2**32, ValueError, "got 4294967296, wanted 0..4294967295"),
        (6, 1, TypeError, "got a Python int, wanted np.bool"),
        (6, np.int8(1), TypeError, "got np.int8, wanted np.bool"),
        (7, np.float32(1), TypeError, "got np.float32, wanted np.float64"),
        (8, 5, TypeError, "got a Python int, wanted a numpy scalar of 8 bytes"),
        (8, np.array((1,), [("a", "i4")])[()], TypeError, "of 4 bytes, wanted 8 bytes"),
        (9, 0, TypeError, "got int, wanted an array"),
    ],
)
def test_wrong_arguments(wanted, index, value, error, text):
    refused(wanted, index, value, error, text)


@pytest.mark.parametrize(
    ("index", "value"),
    [
        (0, None),
        (0, np.zeros(0, "f4")),
        (3, np.int64(7)),
        (3, -(2**31)),
        (3, True),
        (4, 2**62),
        (4, np.int32(-1)),
        (5, 2**32 - 1),
        (6, np.bool_(False)),
        (9, np.zeros(3)),
        (9, np.zeros(3, "u1")),
    ],
)
def test_right_arguments(wanted, index, value):
    arguments = good()
    arguments[index] = value
    check(NAME, wanted, arguments, None)


@pytest.mark.parametrize("count", [0, 9, 11])
def test_wrong_count(wanted, count):
    arguments = [*good(), 1][:count]
    with pytest.raises(
        TypeError, match=rf"{NAME}: got {count} arguments, wanted 10 \(const KD_VALUE\*.*const void"
    ):
        check(NAME, wanted, arguments, None)


def test_array_elsewhere(wanted):
    with pytest.raises(ValueError, match="got a numpy array in host memory, wanted it on device 0"):
        check(NAME, wanted, good(), 0)


class TestSizesOnly:
    """Where the source could not be read: sizes alone still catch the expensive mistakes."""

    def check(self, sizes_only, index, value):
        arguments = [*good()]
        arguments[6:9] = [np.bool_(1), np.float64(2), arguments[8]]
        arguments[index] = value
        return check(NAME, sizes_only, arguments, None)

    @pytest.mark.parametrize(
        ("index", "value", "error", "text"),
        [
            (
                2,
                2.0,
                TypeError,
                "argument 2: got a Python float (8 bytes, a double), wanted a value of 4 bytes",
            ),
            (7, 2.0, TypeError, "got a Python float"),
            (2, np.float64(2), TypeError, "got float64 of 8 bytes, wanted 4 bytes"),
            (3, 2**31, ValueError, "(int32)"),
            (4, np.int32(-1), TypeError, "got int32 of 4 bytes, wanted 8 bytes"),
            (3, np.zeros(1, "i4"), TypeError, "got an array, wanted a value of 4 bytes"),
            (3, None, TypeError, "got None, wanted a value of 4 bytes"),
        ],
    )
    def test_wrong(self, sizes_only, index, value, error, text):
        with pytest.raises(error) as caught:
            self.check(sizes_only, index, value)
        assert text in str(caught.value)

    def test_right(self, sizes_only):
        made = self.check(sizes_only, 3, 7)
        assert made[3].dtype == np.int32 and made[4].dtype == np.int64


def test_nothing_known_takes_typed_arguments():
    made = check(NAME, None, [np.zeros(3), np.int32(1), None], None)
    assert made[1] == 1
    with pytest.raises(TypeError, match="got a Python float"):
        check(NAME, None, [1.0], None)


class Device:
    """An array on a device, by the protocol alone."""

    def __init__(self, strides=None, read_only=False, shape=(4, 4)):
        self.__cuda_array_interface__ = {
            "data": (0, read_only), "typestr": "<f4", "shape": shape, "strides": strides, "version": 3
        }  # fmt: skip


def test_cuda_array_interface(wanted):
    made = check(NAME, wanted[:1], [Device()], 0)
    assert (made[0].dtype, made[0].device, made[0].kind) == ("float32", 0, "other")
    check(NAME, wanted[:1], [Device(strides=(16, 4))], 0)
    with pytest.raises(ValueError, match="strided view"):
        check(NAME, wanted[:1], [Device(strides=(4, 16))], 0)
    with pytest.raises(ValueError, match=r"device 0, wanted it in host memory"):
        check(NAME, wanted[:1], [Device()], None)
    with pytest.raises(ValueError, match="on device 0, wanted it on device 1"):
        check(NAME, wanted[:1], [Device()], 1)
