"""``kdtree doctor``: every fault has its finding and its cure."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from click.testing import CliRunner
from library_tools import cache_folder, driver_says  # noqa: F401

from kdtree_cupy.cli.doctor import command
from kdtree_cupy.errors import BackendError
from kdtree_cupy.library import doctor, host_build
from kdtree_cupy.library.driver import Device, driver
from kdtree_cupy.library.findings import FAULT, INFO, OK, WARNING, Finding

H200 = Device(0, "NVIDIA H200", (9, 0), 141 << 30)
RTX = Device(0, "NVIDIA RTX PRO 6000", (12, 0), 96 << 30)


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
    driver_says(monkeypatch, problem="no NVIDIA driver: libcuda.so.1 is not found")
    (found,) = doctor.check_driver()
    assert found.status == INFO


def test_driver_that_fails(monkeypatch):
    driver_says(
        monkeypatch, library="libcuda.so.1", version=(12, 8), problem="cuInit failed with 999: unknown error"
    )
    (found,) = doctor.check_driver()
    assert found.status == FAULT and "nvidia-smi" in found.cure


def test_devices(monkeypatch):
    driver_says(monkeypatch, library="libcuda.so.1", version=(13, 0), devices=(H200, replace(RTX, ordinal=1)))
    found = list(doctor.check_driver())
    assert [one.status for one in found] == [OK] * 3
    assert "1: NVIDIA RTX PRO 6000, sm_120, 96 GiB" in found[2].detail


def test_driver_too_old_for_the_chip(monkeypatch):
    driver_says(monkeypatch, library="libcuda.so.1", version=(12, 4), devices=(RTX,))
    (fault,) = only(doctor.check_driver(), FAULT)
    assert "12.8 (R570)" in fault.cure


def test_driver_without_devices(monkeypatch):
    driver_says(monkeypatch, library="libcuda.so.1", version=(12, 8))
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
