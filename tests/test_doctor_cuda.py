"""``kdtree doctor`` on NVRTC, its headers, CuPy and torch."""

from __future__ import annotations

import importlib.metadata
from dataclasses import replace
from types import SimpleNamespace

import pytest
from library_tools import driver_says, needs_nvrtc

from kdtree_cupy.errors import BackendError, CompileError
from kdtree_cupy.library import cuda, doctor_cuda, nvrtc
from kdtree_cupy.library.driver import Device
from kdtree_cupy.library.findings import FAULT, INFO, OK, WARNING

H200 = Device(0, "NVIDIA H200", (9, 0), 141 << 30)


def only(found, status):
    return [one for one in found if one.status == status]


@needs_nvrtc
class TestNvrtc:
    probe = staticmethod(lambda: SimpleNamespace(arch="sm_120", cached=False, seconds=0.1))

    def test_good(self):
        found = list(doctor_cuda.check_nvrtc(self.probe))
        assert not only(found, FAULT)
        assert str(nvrtc.choose().path) in found[0].detail

    @pytest.mark.parametrize(("devices", "status"), [((), INFO), ((H200,), FAULT)])
    def test_none(self, monkeypatch, devices, status):
        driver_says(monkeypatch, library="libcuda.so.1", version=(12, 8), devices=devices)
        monkeypatch.setattr(nvrtc, "candidates", list)
        monkeypatch.setattr(nvrtc, "_pathfinder", list)
        (found,) = doctor_cuda.check_nvrtc(self.probe)
        assert found.status == status and "kdtree-cupy[compile]" in found.cure

    def test_too_old_for_the_device(self, monkeypatch):
        def fail():
            raise BackendError("NVRTC 12.6 (/x/libnvrtc.so.12) cannot compile for sm_120")

        (fault,) = only(doctor_cuda.check_nvrtc(fail), FAULT)
        assert "/x/libnvrtc.so.12" in fault.detail

    def test_probe_that_does_not_compile(self):
        def fail():
            raise CompileError("doctor.cu:1: no")

        (fault,) = only(doctor_cuda.check_nvrtc(fail), FAULT)
        assert "doctor.cu:1: no" in fault.detail

    def test_two_libraries(self, monkeypatch, tmp_path):
        (tmp_path / "libnvrtc.so.13").write_text("not one")
        chosen = nvrtc.choose()
        monkeypatch.setattr(nvrtc, "choose", lambda: chosen)
        monkeypatch.setattr(nvrtc, "candidates", lambda: [chosen.path, tmp_path / "libnvrtc.so.13"])
        (found,) = only(doctor_cuda.check_nvrtc(self.probe), WARNING)
        assert "1 more beside it, not used" in found.detail and "KDTREE_NVRTC" in found.cure

    @pytest.mark.parametrize(("text", "status"), [(None, FAULT), ("#define CUDART_VERSION 12000\n", WARNING)])
    def test_headers(self, monkeypatch, tmp_path, text, status):
        if text:
            (tmp_path / "cuda_runtime_api.h").write_text(text)
        other = replace(nvrtc.choose(), include=tmp_path if text else None)
        monkeypatch.setattr(nvrtc, "choose", lambda: other)
        assert status in [one.status for one in doctor_cuda.check_nvrtc(self.probe) if one.check == "headers"]


class TestCupy:
    @pytest.fixture(autouse=True)
    def nvrtc_of_ours(self, monkeypatch):
        monkeypatch.setattr(nvrtc, "choose", lambda: SimpleNamespace(version=(12, 9)))
        driver_says(monkeypatch, library="libcuda.so.1", version=(12, 8), devices=(H200,))

    def installed(self, monkeypatch, *names, **said):
        found = [SimpleNamespace(metadata={"Name": name}, version="14.2.0") for name in names]
        monkeypatch.setattr(importlib.metadata, "distributions", lambda: found)
        answer = {"version": "14.2.0", "runtime": 12090, "nvrtc": [12, 9], **said}
        monkeypatch.setattr(doctor_cuda, "ask_cupy", lambda: answer)
        return list(doctor_cuda.check_cupy())

    def test_good(self, monkeypatch):
        (found,) = self.installed(monkeypatch, "numpy", "cupy_cuda12x", "cupyx-tools")
        assert (found.status, found.detail) == (OK, "cupy-cuda12x 14.2.0, built for CUDA 12.9")

    def test_none_with_a_device(self, monkeypatch):
        (found,) = self.installed(monkeypatch, "numpy")
        assert found.status == WARNING and found.cure == cuda.INSTALL

    def test_two(self, monkeypatch):
        (fault,) = only(self.installed(monkeypatch, "cupy-cuda12x", "cupy", "cupy-cuda12x"), FAULT)
        assert "2 CuPys" in fault.detail and "pip uninstall cupy cupy-cuda12x" in fault.cure

    def test_newer_than_the_driver(self, monkeypatch):
        (fault,) = only(self.installed(monkeypatch, "cupy-cuda13x", runtime=13020), FAULT)
        assert "newer than the driver's 12.8" in fault.detail and "kdtree-cupy[cuda12]" in fault.cure

    def test_old(self, monkeypatch):
        (found,) = only(self.installed(monkeypatch, "cupy-cuda12x", version="13.6.0"), WARNING)
        assert "14.2" in found.cure

    def test_other_nvrtc(self, monkeypatch):
        (found,) = only(self.installed(monkeypatch, "cupy-cuda12x", nvrtc=[13, 5]), WARNING)
        assert "CuPy's own operations use NVRTC 13.5, our kernels 12.9" in found.detail

    def test_no_nvrtc(self, monkeypatch):
        (found,) = only(self.installed(monkeypatch, "cupy-cuda12x", nvrtc=None), WARNING)
        assert "finds no NVRTC" in found.detail

    def test_broken(self, monkeypatch):
        (fault,) = only(self.installed(monkeypatch, "cupy-cuda12x", error="ImportError: libx"), FAULT)
        assert "cannot be imported: ImportError: libx" in fault.detail


def test_cupy_is_asked_in_a_child(monkeypatch, tmp_path):
    site = tmp_path / "site"
    (site / "cupy").mkdir(parents=True)
    (site / "cupy" / "__init__.py").write_text("raise ImportError('half an installation')")
    monkeypatch.setenv("PYTHONPATH", str(site))
    assert doctor_cuda.ask_cupy() == {"error": "ImportError: half an installation"}


def test_torch_is_not_imported(monkeypatch):
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "2.11.0")
    assert [one.detail for one in doctor_cuda.check_torch()] == ["torch 2.11.0"]
