"""Loading and launching on a device, against a CuPy that only writes down what it is asked."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
from library_tools import HEADER, KERNELS, cache_folder, needs_nvrtc, sources  # noqa: F401

from kdtree_cupy.errors import BackendError
from kdtree_cupy.library import KernelLibrary, arrays, cuda, make, rehearse
from kdtree_cupy.library.driver import Device, Driver

DEVICES = (Device(0, "First", (9, 0), 1 << 30), Device(1, "Second", (12, 0), 1 << 30))


@dataclass
class Function:
    log: list
    name: str
    max_dynamic_shared_size_bytes: int = 0

    def __call__(self, grid, block, args, shared_mem=0):
        self.log.append((self.name, grid, block, args, shared_mem, self.max_dynamic_shared_size_bytes))


@dataclass
class FakeCupy:
    """Counts loads, remembers the device and stream of each launch."""

    launches: list = field(default_factory=list)
    loads: list = field(default_factory=list)
    memo_cleared: int = 0
    device: int = 0
    stream: int = 0

    def __post_init__(self):
        self.cuda = SimpleNamespace(
            Device=self._device,
            Stream=SimpleNamespace(from_external=self._stream),
            get_current_stream=lambda: SimpleNamespace(ptr=self.stream),
            runtime=SimpleNamespace(getDevice=lambda: self.device),
        )

    @contextmanager
    def _device(self, ordinal):
        before, self.device = self.device, ordinal
        yield
        self.device = before

    @contextmanager
    def _stream(self, stream):
        before, self.stream = self.stream, stream.__cuda_stream__()[1]
        yield
        self.stream = before

    def RawModule(self, *, path):
        self.loads.append((self.device, path))
        return SimpleNamespace(get_function=lambda name: Function(self.launches, name))

    def clear_memo(self):
        self.memo_cleared += 1


@pytest.fixture
def cupy(monkeypatch, cache_folder):  # noqa: F811
    fake = FakeCupy()
    for module in (cuda, make):
        monkeypatch.setattr(module, "driver", lambda: Driver("libcuda.so.1", (13, 0), DEVICES))
    monkeypatch.setattr(cuda, "import_cupy", lambda cache: fake)
    monkeypatch.setattr(cuda, "MODULES", cuda.Modules())
    monkeypatch.setattr(arrays, "_device_of", lambda pointer: pointer % 16)
    monkeypatch.setattr(rehearse, "first_run", lambda *_: None)
    return fake


class OnDevice:
    def __init__(self, device=0, typestr="<f4"):
        self.__cuda_array_interface__ = {
            "data": (4096 + device, False), "typestr": typestr, "shape": (64,), "strides": None, "version": 3
        }  # fmt: skip


def scale(library, device=0, **more):
    arguments = (OnDevice(device), OnDevice(device), np.float32(2), 64)
    library.launch("scale.cu", "scale_v1", 1, 64, arguments, **more)


@needs_nvrtc
class TestLaunch:
    def test_pointers_and_scalars(self, cupy):
        scale(KernelLibrary(KERNELS))
        ((name, grid, block, args, shared, _),) = cupy.launches
        assert (name, grid, block, shared) == ("scale_v1", (1, 1, 1), (64, 1, 1), 0)
        assert [(type(a).__name__, int(a)) for a in args] == [
            ("uint64", 4096), ("uint64", 4096), ("float32", 2), ("int32", 64)
        ]  # fmt: skip

    def test_each_device_has_its_own_cubin_and_module(self, cupy):
        library = KernelLibrary(KERNELS)
        for device in (0, 1, 0, 1):
            scale(library, device)
        assert [device for device, _ in cupy.loads] == [0, 1]
        assert cupy.loads[0][1] != cupy.loads[1][1], "sm_90 for one, sm_120 for the other"
        assert cupy.device == 0, "the caller's device is back"

    def test_arch_that_the_device_cannot_run(self, cupy):
        with pytest.raises(BackendError, match="arch 'sm_120' was asked for, but device 0 is sm_90"):
            scale(KernelLibrary(KERNELS, arch="sm_120"))

    def test_array_on_another_device(self, cupy):
        library = KernelLibrary(KERNELS)
        mixed = (OnDevice(0), OnDevice(1), np.float32(2), 64)
        with pytest.raises(BackendError, match="on device 1, but argument 0 is"):
            library.launch("scale.cu", "scale_v1", 1, 64, mixed)
        with pytest.raises(ValueError, match=r"argument 1 \(float\* .*on device 1, wanted it on device 0"):
            library.launch("scale.cu", "scale_v1", 1, 64, mixed, backend="cuda", device=0)

    def test_nothing_to_do_launches_nothing(self, cupy):
        library = KernelLibrary(KERNELS)
        library.launch("scale.cu", "scale_v1", 0, 64, (OnDevice(), OnDevice(), np.float32(2), 0))
        library.launch("scale.cu", "scale_v1", (3, 0), 64, (OnDevice(), OnDevice(), np.float32(2), 0))
        assert cupy.launches == []

    def test_more_than_48_kib_is_asked_for_once(self, cupy):
        library = KernelLibrary(KERNELS, defines={"KD_BLOCK": 128})
        arguments = (OnDevice(0, "<i4"), OnDevice(0, "<i4"), 64)
        for shared in (4096, 60_000, 50_000, 70_000):
            library.launch("scale.cu", "reverse_v1", 1, 64, arguments, shared_bytes=shared)
        assert [launch[4:] for launch in cupy.launches] == [
            (4096, 0),
            (60_000, 60_000),
            (50_000, 60_000),
            (70_000, 70_000),
        ]
        assert library.requested["scale.cu", "reverse_v1"] == 70_000

    def test_more_shared_memory_than_a_block_can_have(self, cupy):
        with pytest.raises(
            ValueError, match=r"shared_bytes: got 120000 beside 0 static, wanted a sum of <= 101376"
        ):
            KernelLibrary(KERNELS).launch(
                "scale.cu",
                "reverse_v1",
                1,
                64,
                (OnDevice(1, "<i4"), OnDevice(1, "<i4"), 64),
                shared_bytes=120_000,
            )

    def test_block_beyond_launch_bounds(self, cupy):
        with pytest.raises(ValueError, match=r"block: got 256 threads, wanted <= 128 \(__launch_bounds__\)"):
            scale_wide = (OnDevice(), OnDevice(), np.float32(2), 64)
            KernelLibrary(KERNELS).launch("scale.cu", "scale_v1", 1, 256, scale_wide)

    def test_unknown_kernel_lists_what_there_is(self, cupy):
        with pytest.raises(
            ValueError, match=r"scale\.cu: no kernel 'scale_v9'; there are reverse_v1, scale_v1"
        ):
            KernelLibrary(KERNELS).launch("scale.cu", "scale_v9", 1, 64, (OnDevice(),))

    def test_torch_runs_on_its_own_stream(self, cupy, monkeypatch):
        current = SimpleNamespace(cuda_stream=77)
        fake = SimpleNamespace(cuda=SimpleNamespace(current_stream=lambda device: current))
        monkeypatch.setitem(sys.modules, "torch", fake)
        seen = []
        monkeypatch.setattr(Function, "__call__", lambda self, *a, **k: seen.append(cupy.stream))
        scale_torch = (tensor(), tensor(), np.float32(2), 64)
        KernelLibrary(KERNELS).launch("scale.cu", "scale_v1", 1, 64, scale_torch)
        scale(KernelLibrary(KERNELS))
        assert seen == [77, 0]

    def test_edit_loads_a_new_module(self, cupy, sources):  # noqa: F811
        library = KernelLibrary(sources)
        scale(library)
        scale(library)
        assert len(cupy.loads) == 1
        (sources / "scale.cuh").write_text(HEADER.replace("2.0f", "3.0f"))
        scale(library)
        assert len(cupy.loads) == 2
        library.replace("scale.cuh", HEADER)
        scale(library)
        assert len(cupy.loads) == 2, "seen before: still loaded"

    def test_kernel_object_stays_as_compiled(self, cupy, sources):  # noqa: F811
        kernel = KernelLibrary(sources).kernel("scale.cu", "scale_v1", backend="cuda")
        (sources / "scale.cuh").write_text("#error never read")
        kernel(1, 64, (OnDevice(), OnDevice(), np.float32(2), 64))
        assert len(cupy.launches) == 1

    def test_raw_module_is_cupys_own(self, cupy):
        module = KernelLibrary(KERNELS).raw_module("scale.cu", device=1)
        assert module.get_function("scale_v1").name == "scale_v1"
        assert cupy.loads[0][0] == 1

    def test_clear(self, cupy, monkeypatch):
        library = KernelLibrary(KERNELS)
        scale(library)
        monkeypatch.setitem(sys.modules, "cupy", cupy)
        library.clear()
        assert cupy.memo_cleared == 1
        scale(library)
        assert len(cupy.loads) == 2


def tensor():
    kind = type("Tensor", (), {"__module__": "torch"})
    made = kind()
    made.device = SimpleNamespace(type="cuda", index=0)
    made.dtype, made.shape = "torch.float32", (64,)
    made.data_ptr, made.is_contiguous = lambda: 4096, lambda: True
    return made


def test_least_recently_used_modules_go_first():
    fake, modules = FakeCupy(), cuda.Modules(2)
    made = [SimpleNamespace(key=str(i), path=f"/{i}.cubin") for i in range(3)]
    for i in (0, 1, 0, 2, 0, 1):
        modules.get(fake, 0, made[i])
    assert [path for _, path in fake.loads] == ["/0.cubin", "/1.cubin", "/2.cubin", "/1.cubin"]
    assert len(modules) == 2


def test_bfloat16_scalars_pack_as_their_bits():
    packed = cuda.pack(ml_dtypes.bfloat16(2.0))
    assert packed.dtype == np.uint16 and packed == 0x4000
    assert cuda.pack(None) == 0 and cuda.pack(None).dtype == np.uint64
    assert cuda.pack(np.float32(1)) == np.float32(1)
