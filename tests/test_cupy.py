"""With CuPy installed but no device: what we hand to CuPy is what it takes."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
from library_tools import KERNELS, needs_nvrtc

from kdtree_cupy.errors import BackendError
from kdtree_cupy.library import KernelLibrary, arrays, cuda, resolve
from kdtree_cupy.library.driver import driver
from kdtree_cupy.library.launch import check, slots
from kdtree_cupy.library.signature import Parameter

cupy = pytest.importorskip("cupy", reason="needs CuPy")


def on_device(shape=(4, 4), dtype="f4", device=0, pointer=4096):
    """Return a CuPy array that claims memory of a device; nothing may read it."""
    memory = cupy.cuda.UnownedMemory(pointer, 1 << 20, None, device_id=device)
    return cupy.ndarray(shape, dtype, memptr=cupy.cuda.MemoryPointer(memory, 0))


def parameter(dtype="float32"):
    return slots("k", (8,), [Parameter("x", f"const {dtype}* x", dtype, True, True)])


@pytest.mark.parametrize("dtype", ["float32", "int32", "uint32", "float16", "float64", "bfloat16"])
def test_handles(dtype):
    found = arrays.handle(on_device(dtype=arrays.numpy_dtype(dtype), device=1))
    assert (found.kind, found.device, found.pointer, found.dtype) == ("cupy", 1, 4096, dtype)
    assert (found.shape, found.contiguous) == ((4, 4), True)


def test_transposed_view():
    with pytest.raises(ValueError, match="strided view"):
        check("k", parameter(), [on_device((4, 3)).T], 0)


def test_other_dtype():
    with pytest.raises(TypeError, match="got an array of float64, wanted float32"):
        check("k", parameter(), [on_device(dtype="f8")], 0)


def test_other_device():
    with pytest.raises(ValueError, match="got a CuPy array on device 1, wanted it on device 0"):
        check("k", parameter(), [on_device(device=1)], 0)


def test_in_host_memory():
    with pytest.raises(ValueError, match="got a CuPy array on device 0, wanted it in host memory"):
        check("k", parameter(), [on_device()], None)


def test_backend_follows():
    run = resolve(KernelLibrary(), {"x": on_device(device=1)})
    assert (run.backend, run.kind, run.device) == ("cuda", "cupy", 1)
    with pytest.raises(BackendError, match=r"x is a CuPy array on device 0; pass cupy\.asnumpy\(x\)"):
        resolve(KernelLibrary(backend="numpy"), {"x": on_device()})


@pytest.mark.parametrize(
    "value",
    [np.int32(-5), np.uint32(2**32 - 1), np.int64(2**40), np.float32(1.5), np.float64(2.5), np.bool_(True),
     np.float16(3), ml_dtypes.bfloat16(2), ml_dtypes.float8_e4m3fn(1.5), None],
    ids=str,
)  # fmt: skip
def test_parameter_bytes(value):
    """The bytes CuPy would hand to a kernel are those of the scalar, no wider and no narrower."""
    from cupy._core._scalar import CScalar

    packed = cuda.pack(value)
    wanted = bytes(8) if value is None else value.tobytes()
    held = CScalar(packed)
    assert ctypes.string_at(held.ptr, len(wanted)) == wanted
    assert packed.dtype.itemsize == len(wanted)


def test_streams_of_torch_are_taken():
    stream = cupy.cuda.Stream.from_external(cuda._Stream(77))
    assert stream.ptr == 77


@needs_nvrtc
@pytest.mark.skipif(bool(driver().devices), reason="needs a machine without a device")
def test_no_device_is_said_plainly():
    x = on_device((64,))
    with pytest.raises(BackendError, match=r"backend 'cuda' cannot run: .*kdtree doctor"):
        KernelLibrary(KERNELS).launch("scale.cu", "scale_v1", 1, 64, (x, x, np.float32(1), 64))
    assert KernelLibrary(KERNELS).report(["scale.cu"], arch="sm_90").rows


@pytest.mark.parametrize("home", ["/proc", "/dev/null/home"])
def test_import_with_a_home_that_cannot_be_written(home, tmp_path):
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("CUPY", "KDTREE", "XDG"))}
    code = (
        "from kdtree_cupy.library.cuda import import_cupy; from kdtree_cupy.library.cache import Cache; "
        "import os; "
        "print(import_cupy(Cache()).__version__, os.environ['CUPY_CACHE_DIR'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False,
        env={**environment, "HOME": home, "TMPDIR": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert str(tmp_path) in done.stdout


def test_our_nvrtc_beside_cupys():
    from cupy.cuda import nvrtc as theirs

    from kdtree_cupy.library import nvrtc

    assert nvrtc.choose().version >= (12, 0)
    assert theirs.getVersion() >= (12, 0)
