"""Which backend a call runs on, and what happens to arrays of the wrong place."""

from __future__ import annotations

import sys
import types

import numpy as np
import pytest
from library_tools import KERNELS

from kdtree_cupy.errors import BackendError
from kdtree_cupy.library import KernelLibrary, arrays, cuda, host, resolve
from kdtree_cupy.library.driver import Device, Driver
from kdtree_cupy.library.resolve import default_library

HOST = np.zeros(3, "f4")


class OnDevice:
    """An array on a device, by the protocol alone."""

    def __init__(self, device=0):
        self.__cuda_array_interface__ = {
            "data": (4096 + device, False), "typestr": "<f4", "shape": (3,), "strides": None, "version": 3
        }  # fmt: skip


@pytest.fixture(autouse=True)
def device_by_pointer(monkeypatch):
    monkeypatch.setattr(arrays, "_device_of", lambda pointer: pointer - 4096)


@pytest.fixture(params=[None, "no compiler"], ids=["compiler", "no compiler"])
def compiler(request, monkeypatch):
    monkeypatch.setattr(host, "problem", lambda: request.param)
    return request.param is None


def library(backend):
    return KernelLibrary(backend=backend)


def test_auto_follows_the_arrays(compiler):
    assert resolve(library("auto"), {"x": HOST}).backend == ("host" if compiler else "numpy")
    run = resolve(library("auto"), {"x": OnDevice(), "y": None})
    assert (run.backend, run.kind, run.device) == ("cuda", "cupy", 0)
    assert resolve(library("auto"), {}).device is None


@pytest.mark.parametrize("named", ["host", "numpy"])
def test_host_backends_refuse_device_arrays(named):
    with pytest.raises(
        BackendError, match=f"backend '{named}' takes arrays in host memory, but x is a .* on device 0"
    ):
        resolve(library(named), {"x": OnDevice()})


def test_cuda_refuses_host_arrays():
    with pytest.raises(BackendError, match=r"but x is a numpy array in host memory; pass cupy\.asarray\(x\)"):
        resolve(library("cuda"), {"x": HOST})


def test_host_without_compiler_says_so(monkeypatch):
    monkeypatch.setattr(host, "problem", lambda: "no C++ compiler: apt install g++")
    with pytest.raises(
        BackendError, match=r"backend 'host' cannot run: no C\+\+ compiler: apt install g\+\+; use"
    ):
        resolve(library("host"), {"x": HOST})


def test_arrays_of_two_places():
    with pytest.raises(
        BackendError, match=r"y is a numpy array in host memory, but x is a .* on device 0.*cupy\.asarray"
    ):
        resolve(library("auto"), {"x": OnDevice(), "y": HOST})
    with pytest.raises(BackendError, match=r"y is .* on device 1, but x is .* on device 0"):
        resolve(library("auto"), {"x": OnDevice(0), "y": OnDevice(1)})


def test_what_is_no_array():
    with pytest.raises(TypeError, match="x: got list, wanted an array"):
        resolve(None, {"x": [1, 2]})


def test_default_library_is_one():
    assert resolve(None, {}).library is default_library()


def test_run_makes_arrays_of_the_same_kind():
    run = resolve(library("numpy"), {"x": HOST})
    made = run.empty((2, 3), "bfloat16")
    assert (made.shape, made.dtype.name) == ((2, 3), "bfloat16")
    assert run.array([1, 2], "int32").dtype == np.int32
    assert run.give_back(HOST) is HOST and run.numpy(HOST) is HOST
    like = library("numpy").empty(4, "uint32", like=HOST)
    assert (like.shape, like.dtype) == ((4,), np.uint32)
    with pytest.raises(TypeError, match="like: got int"):
        library("numpy").empty(4, "uint32", like=3)


def test_numpy_backend_has_no_kernels():
    run = resolve(KernelLibrary(KERNELS, backend="numpy"), {"x": HOST})
    with pytest.raises(BackendError, match="backend 'numpy' runs references, not kernels"):
        run.launch("scale.cu", "scale_v1", 1, 1, (HOST,))


def test_cuda_without_device_says_why(monkeypatch):
    monkeypatch.setattr(cuda, "driver", lambda: Driver(problem="no NVIDIA driver: libcuda.so.1 is not found"))
    run = resolve(KernelLibrary(KERNELS), {"x": OnDevice()})
    with pytest.raises(
        BackendError, match=r"cannot run: no NVIDIA driver: .*use backend='auto' with numpy arrays"
    ):
        run.launch("scale.cu", "scale_v1", 1, 1, (OnDevice(), OnDevice(), np.float32(1), 3))
    with pytest.raises(BackendError, match="no NVIDIA driver"):
        KernelLibrary(KERNELS).raw_module("scale.cu")


def test_cuda_without_cupy_says_what_to_install(monkeypatch):
    monkeypatch.setattr(
        cuda, "driver", lambda: Driver("libcuda.so.1", (12, 9), (Device(0, "GPU", (9, 0), 1),))
    )
    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.delitem(sys.modules, "cupy")
    monkeypatch.setattr(sys, "meta_path", [Refuse("cupy"), *sys.meta_path])
    with pytest.raises(
        BackendError, match=r"needs CuPy, which cannot be imported: pip install 'kdtree-cupy\[cuda12\]'"
    ):
        KernelLibrary(KERNELS).raw_module("scale.cu")


class Refuse:
    """An importer that has no such package."""

    def __init__(self, name):
        self.name = name

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == self.name:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None


class Tensor:
    """As much of a torch tensor as the library looks at."""

    def __init__(self, array, device="cpu", index=None, dtype=None):
        self.array, self.dtype = array, f"torch.{dtype or array.dtype.name}"
        self.device = types.SimpleNamespace(type=device, index=index)
        self.shape = array.shape

    __module__ = "torch"

    def data_ptr(self):
        return self.array.ctypes.data

    def is_contiguous(self):
        return self.array.flags.c_contiguous

    def detach(self):
        return self

    def numpy(self):
        return self.array


def test_cpu_torch_goes_to_the_host_without_a_copy(compiler):
    tensor = Tensor(HOST)
    run = resolve(library("auto"), {"x": tensor})
    assert (run.backend, run.kind, run.device) == ("host" if compiler else "numpy", "torch", None)
    assert run.numpy(tensor) is HOST


def test_cuda_torch_goes_to_cuda():
    run = resolve(library("auto"), {"x": Tensor(HOST, "cuda", 1)})
    assert (run.backend, run.kind, run.device) == ("cuda", "torch", 1)


def test_torch_elsewhere():
    with pytest.raises(TypeError, match="got a torch array on"):
        resolve(library("auto"), {"x": Tensor(HOST, "mps")})
