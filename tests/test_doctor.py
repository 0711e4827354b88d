"""``kdtree doctor``: every fault has its finding and its cure."""

from __future__ import annotations

import importlib.metadata
import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from library_tools import cache_folder, needs_nvrtc  # noqa: F401

from kdtree_cupy.cli.doctor import command
from kdtree_cupy.errors import BackendError, CompileError
from kdtree_cupy.library import cuda, doctor, doctor_cuda, host_build, nvrtc
from kdtree_cupy.library.driver import Device, Driver, driver
from kdtree_cupy.library.findings import FAULT, INFO, OK, WARNING, Finding

H200 = Device(0, "NVIDIA H200", (9, 0), 141 << 30)
RTX = Device(0, "NVIDIA RTX PRO 6000", (12, 0), 96 << 30)


def told(monkeypatch, **facts):
    """Let the driver say ``facts``."""
    said = Driver(**facts)
    for module in (doctor, doctor_cuda, nvrtc):
        monkeypatch.setattr(module, "driver", lambda: said)


def only(found, status):
    return [one for one in found if one.status == status]


def test_this_machine(cache_folder):  # noqa: F811
    done = CliRunner().invoke(command, ["--json"], catch_exceptions=False)
    said = json.loads(done.output)
    assert said["ok"] == (done.exit_code == 0) == (not only([Finding(**f) for f in said["findings"]], FAULT))
    checks = {one["check"] for one in said["findings"]}
    assert {"python", "driver", "nvrtc", "cupy", "compiler", "cache"} <= checks
    assert all(one["cure"] for one in said["findings"] if one["status"] in (WARNING, FAULT))


def test_text_shows_every_cure(monkeypatch):
    faulty = [Finding("one", FAULT, "broken \x1b[2J", "mend it"), Finding("two", OK, "fine")]
    monkeypatch.setattr(doctor, "findings", lambda: faulty)
    done = CliRunner().invoke(command, [], catch_exceptions=False)
    assert done.exit_code == 1
    assert done.output == "FAULT   one: broken \\x1b[2J\n        -> mend it\nok      two: fine\n"


def test_a_check_that_fails_is_a_finding(monkeypatch):
    def check_luck():
        raise RuntimeError("none left")
        yield

    monkeypatch.setattr(doctor, "CHECKS", (check_luck,))
    assert doctor.findings() == [Finding("luck", WARNING, "could not be checked: RuntimeError: none left")]


def test_no_driver_is_no_fault(monkeypatch):
    told(monkeypatch, problem="no NVIDIA driver: libcuda.so.1 is not found")
    (found,) = doctor.check_driver()
    assert found.status == INFO


def test_driver_that_fails(monkeypatch):
    told(
        monkeypatch, library="libcuda.so.1", version=(12, 8), problem="cuInit failed with 999: unknown error"
    )
    (found,) = doctor.check_driver()
    assert found.status == FAULT and "nvidia-smi" in found.cure


def test_devices(monkeypatch):
    told(monkeypatch, library="libcuda.so.1", version=(13, 0), devices=(H200, replace(RTX, ordinal=1)))
    found = list(doctor.check_driver())
    assert [one.status for one in found] == [OK] * 3
    assert "1: NVIDIA RTX PRO 6000, sm_120, 96 GiB" in found[2].detail


def test_driver_too_old_for_the_chip(monkeypatch):
    told(monkeypatch, library="libcuda.so.1", version=(12, 4), devices=(RTX,))
    (fault,) = only(doctor.check_driver(), FAULT)
    assert "12.8 (R570)" in fault.cure


def test_driver_without_devices(monkeypatch):
    told(monkeypatch, library="libcuda.so.1", version=(12, 8))
    (found,) = only(doctor.check_driver(), WARNING)
    assert "CUDA_VISIBLE_DEVICES" in found.cure


@pytest.mark.parametrize(
    ("version", "files", "status", "text"),
    [
        ("Linux version 6.1 (gcc)", [], None, ""),
        ("Linux 5.15-microsoft-standard-WSL2", [], WARNING, "install NVIDIA's driver in Windows"),
        ("Linux 5.15-microsoft-standard-WSL2", ["usr/lib/wsl/lib/libcuda.so.1"], OK, ""),
        (
            "Linux 5.15-Microsoft-standard",
            ["usr/lib/wsl/lib/libcuda.so.1", "usr/lib/x86_64-linux-gnu/libcuda.so.1"],
            FAULT,
            "remove the Linux driver",
        ),
    ],
    ids=["not wsl", "no driver", "good", "two drivers"],
)
def test_wsl(tmp_path, version, files, status, text):
    (tmp_path / "version").write_text(version)
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    found = list(doctor.check_wsl(tmp_path / "version", tmp_path))
    assert [one.status for one in found] == ([status] if status else [])
    assert all(text in one.cure for one in found)


def test_no_compiler(monkeypatch):
    def none():
        raise BackendError("no C++ compiler (tried $CXX, g++): install one: 'apt install g++'")

    monkeypatch.setattr(host_build, "find_compiler", none)
    monkeypatch.delenv("CXX", raising=False)
    (found,) = doctor.check_compiler()
    assert found.status == INFO and "apt install g++" in found.cure


def test_cxx_that_does_not_run(monkeypatch):
    monkeypatch.setenv("CXX", "/nowhere/g++")
    (found,) = doctor.check_compiler()
    assert found.status == FAULT and "/nowhere/g++" in found.detail


def test_cache_that_cannot_be_written(monkeypatch, tmp_path):
    monkeypatch.setenv("KDTREE_CACHE", "/proc/nowhere")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("CUPY_CACHE_DIR", "/proc/nowhere")
    found = list(doctor.check_cache())
    assert [one.status for one in found] == [WARNING, WARNING]
    assert "KDTREE_CACHE" in found[0].cure and "CUPY_CACHE_DIR" in found[1].cure


@needs_nvrtc
class TestNvrtc:
    probe = staticmethod(lambda: SimpleNamespace(arch="sm_120", cached=False, seconds=0.1))

    def test_good(self):
        found = list(doctor_cuda.check_nvrtc(self.probe))
        assert not only(found, FAULT)
        assert str(nvrtc.choose().path) in found[0].detail

    @pytest.mark.parametrize(("devices", "status"), [((), INFO), ((H200,), FAULT)])
    def test_none(self, monkeypatch, devices, status):
        told(monkeypatch, library="libcuda.so.1", version=(12, 8), devices=devices)
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
        told(monkeypatch, library="libcuda.so.1", version=(12, 8), devices=(H200,))

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


def test_driver_probe_answers_in_a_child(monkeypatch, tmp_path):
    # a shared library that has none of CUDA's functions: the child fails, we do not
    driver.cache_clear()
    try:
        monkeypatch.setattr("kdtree_cupy.library.driver._can_load", lambda name: True)
        found = driver()
        assert found.devices == ()
        assert found.problem
    finally:
        driver.cache_clear()
