"""The kernel library on a real device: what stubs cannot show."""

from __future__ import annotations

import numpy as np
import pytest
from library_tools import HEADER, KERNELS, sources  # noqa: F401

from kdtree_cupy.errors import BackendError
from kdtree_cupy.kernel_trial import try_kernel
from kdtree_cupy.library import KernelError, KernelLibrary, printed, rehearse, resolve
from kdtree_cupy.library.driver import driver

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not driver().devices, reason=f"needs an NVIDIA GPU: {driver().problem}"),
]


@pytest.fixture
def cupy():
    return pytest.importorskip("cupy", reason="needs CuPy")


@pytest.fixture
def library(cupy):
    return KernelLibrary(KERNELS)


def scale(library, x, y, n):
    library.launch("scale.cu", "scale_v1", -(-n // 128), 128, (x, y, np.float32(1), n))


def test_launch(library, cupy):
    x = cupy.arange(300, dtype="f4")
    y = library.empty(300, "float32", like=x)
    scale(library, x, y, 300)
    np.testing.assert_array_equal(y.get(), 2 * np.arange(300, dtype="f4") + 1)


def test_same_result_on_the_host(library, cupy):
    host = np.linspace(-1, 1, 777, dtype="f4")
    y, z = cupy.empty(777, "f4"), np.empty(777, "f4")
    scale(library, cupy.asarray(host), y, 777)
    scale(library, host, z, 777)
    np.testing.assert_array_equal(y.get(), z)


def test_every_kind_of_parameter(library, cupy):
    pair = np.array((3, 4), [("a", "i4"), ("b", "i4")])[()]
    out = cupy.zeros(9, "i4")
    arguments = (cupy.full(4, 5, "f4"), out, np.float32(1.5), -7, 2**40 + 8, 2**32 - 1, True, 2.5, pair, None)
    library.launch("params.cu", "params_v1", 1, 32, arguments)
    assert out.get().tolist() == [-7, 8, -1, 1, 3, 5, 7, 1, 5]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_types(library, cupy, dtype):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    kind = {"float16": ("__half", np.float16), "bfloat16": ("__nv_bfloat16", ml_dtypes.bfloat16)}[dtype]
    pair = np.array((3, 4), [("a", "i4"), ("b", "i4")])[()]
    out = cupy.zeros(9, "i4")
    values = cupy.asarray(np.full(4, 6, kind[1]))
    arguments = (values, out, np.float32(1), 1, 1, 1, True, 1.0, pair, None)
    library.launch("params.cu", "params_v1", 1, 32, arguments, defines={"KD_VALUE": kind[0]})
    assert int(out[8]) == 6


def test_live_edit(cupy, sources):  # noqa: F811
    library = KernelLibrary(sources)
    x, y = cupy.ones(64, "f4"), cupy.zeros(64, "f4")
    for factor in (2, 3, 5):
        (sources / "scale.cuh").write_text(HEADER.replace("2.0f", f"{factor}.0f"))
        scale(library, x, y, 64)
        assert float(y[0]) == factor + 1


def test_raw_module(library, cupy):
    module = library.raw_module("scale.cu")
    assert isinstance(module, cupy.RawModule)
    x, y = cupy.ones(4, "f4"), cupy.zeros(4, "f4")
    module.get_function("scale_v1")((1,), (32,), (x, y, np.float32(1), np.int32(4)))
    assert y.get().tolist() == [3] * 4


def test_compiler_and_driver_agree(library):
    row = {r.name: r for r in library.report(["scale.cu"]).rows}["reverse_v1"]
    function = library.raw_module("scale.cu").get_function("reverse_v1")
    assert function.num_regs == row.registers
    assert function.local_size_bytes == row.stack_bytes
    assert function.max_threads_per_block == row.block


def test_more_than_48_kib_of_dynamic_shared_memory(library, cupy):
    x, y = cupy.arange(256, dtype="i4"), cupy.zeros(256, "i4")
    for size in (1024, 60_000, 90_000, 50_000):
        y[:] = 0
        library.launch("scale.cu", "reverse_v1", 1, 256, (x, y, 256), shared_bytes=size)
        assert y.get().tolist() == list(range(255, -1, -1))


def test_graph_capture_and_replay(library, cupy):
    x, y = cupy.ones(64, "f4"), cupy.zeros(64, "f4")
    scale(library, x, y, 64)  # compiled, loaded and checked before the capture
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        scale(library, x, y, 64)
        graph = stream.end_capture()
    x[:] = 10
    cupy.cuda.Device().synchronize()
    graph.launch(stream)
    stream.synchronize()
    assert y.get().tolist() == [21] * 64


def test_what_a_kernel_prints_is_handed_over(cupy, monkeypatch):
    library = KernelLibrary(backend="cuda")
    text = '#include "common.cuh"\nextern "C" __global__ void hello(int* x) { printf("x is %d\\n", *x); }\n'
    library.replace("hello.cu", text, new=True)
    x, got = cupy.full(1, 7, "i4"), []
    library.launch("hello.cu", "hello", 1, 1, (x,))  # not waited for: its text must not appear below
    monkeypatch.setattr(printed, "sink", got.append)
    library.launch("hello.cu", "hello", 1, 2, (x,))
    assert got == ["x is 7\nx is 7\n"]
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:  # a graph that captures must not be waited for
        stream.begin_capture()
        library.launch("hello.cu", "hello", 1, 1, (x,))
        stream.end_capture().launch()
    stream.synchronize()
    assert len(got) == 1


def test_a_trial_is_timed_on_the_device(cupy):
    trial = try_kernel("tree_accept.cu", time=True, library=KernelLibrary(backend="cuda"))
    assert trial.checked == {"tree_accept.cu": True}
    assert 0 < trial.us("tree_accept") < 1e5
    assert "device time" in str(trial)


def test_current_stream_of_cupy(library, cupy):
    x, y = cupy.ones(1 << 22, "f4"), cupy.zeros(1 << 22, "f4")
    scale(library, x, y, 1)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        for _ in range(50):
            scale(library, x, y, x.size)
        done = stream.record()
        assert not done.done, "launches do not wait"
    stream.synchronize()
    assert float(y[-1]) == 3


def test_second_device(library, cupy):
    if cupy.cuda.runtime.getDeviceCount() < 2:
        pytest.skip("needs two GPUs")
    with cupy.cuda.Device(1):
        x, y = cupy.ones(64, "f4"), cupy.zeros(64, "f4")
    scale(library, x, y, 64)
    assert y.get().tolist() == [3] * 64
    with pytest.raises(BackendError, match="device 1"):
        scale(library, cupy.ones(64, "f4"), y, 64)


def test_wrong_places(library, cupy):
    with pytest.raises(BackendError, match="numpy array in host memory"):
        scale(library, cupy.ones(4, "f4"), np.zeros(4, "f4"), 4)
    with pytest.raises(BackendError, match=r"backend 'cuda' takes arrays on a device"):
        scale(KernelLibrary(KERNELS, backend="cuda"), np.ones(4, "f4"), np.zeros(4, "f4"), 4)
    with pytest.raises(ValueError, match="strided view"):
        scale(library, cupy.ones((8, 8), "f4").T, cupy.zeros(64, "f4"), 64)


class TestWorker:
    def ints(self, cupy, n=32):
        return cupy.zeros(n, "i4")

    def launch(self, library, name, *args):
        library.launch("faults.cu", name, 1, 32, args)

    def test_illegal_address(self, library, cupy):
        with pytest.raises(
            KernelError, match=r"crash_v1 with grid \(1, 1, 1\), block \(32, 1, 1\).*[Ii]llegal"
        ):
            self.launch(library, "crash_v1", self.ints(cupy))
        x = self.ints(cupy)
        self.launch(library, "fine_v1", x)
        assert x.get().tolist() == list(range(32)), "our own context is as good as new"

    def test_endless_loop(self, library, cupy, monkeypatch):
        monkeypatch.setattr(rehearse, "SECONDS", 3.0)
        with pytest.raises(KernelError, match=r"endless_v1 .* did not end within 3 s"):
            self.launch(library, "endless_v1", self.ints(cupy))
        x = self.ints(cupy)
        self.launch(library, "fine_v1", x)
        assert int(x[31]) == 31


class TestTorch:
    @pytest.fixture
    def torch(self):
        torch = pytest.importorskip("torch", reason="needs torch")
        if not torch.cuda.is_available():
            pytest.skip("needs torch with CUDA")
        return torch

    def test_tensors_in_and_out(self, library, torch):
        x = torch.arange(300, dtype=torch.float32, device="cuda")
        run = resolve(library, {"x": x})
        y = run.empty(300, "float32")
        assert (run.backend, run.kind, type(y)) == ("cuda", "torch", torch.Tensor)
        scale(library, x, y, 300)
        assert torch.equal(y, 2 * x + 1)

    def test_stream_of_torch(self, library, torch):
        x = torch.ones(1 << 24, device="cuda")
        y = torch.empty_like(x)
        scale(library, x, y, 1)
        torch.cuda.synchronize()
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            for _ in range(20):
                x.mul_(1.0)
            x.add_(1.0)
            scale(library, x, y, x.numel())  # must come after the additions of the same stream
            z = y + 0
        side.synchronize()
        assert bool((z == 5).all())

    def test_cpu_tensors_run_on_the_host(self, library, torch):
        x, y = torch.ones(8), torch.zeros(8)
        scale(library, x, y, 8)
        assert y.tolist() == [3.0] * 8
        run = resolve(library, {"x": x})
        assert run.empty(3, "bfloat16").dtype is torch.bfloat16
        assert run.numpy(torch.ones(3, dtype=torch.bfloat16)).dtype.name == "bfloat16"
        assert run.give_back(np.zeros(3, "u4")).dtype is torch.uint32
