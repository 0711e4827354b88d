"""NVRTC: which library, which architectures, which headers, and what it says."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from library_tools import needs_nvrtc, nvrtc_files

from kdtree_cupy.errors import BackendError
from kdtree_cupy.library import nvrtc
from kdtree_cupy.library.driver import Driver


@pytest.fixture
def chosen():
    return nvrtc.choose()


def old(chosen, version=(12, 6), archs=(80, 90)):
    return replace(chosen, path=Path("/opt/old/libnvrtc.so.12"), version=version, archs=archs)


@pytest.mark.parametrize("text", ["sm_120", "sm_90a", "sm_120f"])
def test_split_arch(text):
    number, suffix = nvrtc.split_arch(text)
    assert f"sm_{number}{suffix}" == text


@pytest.mark.parametrize(
    "text", ["sm120", "compute_90", "native", "sm_", "sm_120b", "", "sm_12 0", None, 120]
)
def test_malformed_arch(text):
    with pytest.raises(ValueError, match="wanted 'auto' or a name like"):
        nvrtc.split_arch(text)


@needs_nvrtc
@pytest.mark.parametrize(
    ("arch", "cure"),
    [
        ("sm_120", "sm_120 needs NVRTC 12.8 or newer: pip install -U 'nvidia-cuda-nvrtc-cu12>=12.8'"),
        ("sm_100a", "sm_100a needs NVRTC 12.8 or newer"),
        ("sm_121", "sm_121 needs NVRTC 12.9 or newer: pip install -U 'nvidia-cuda-nvrtc-cu12>=12.9'"),
        ("sm_107", "sm_107 needs NVRTC 13 or newer: pip install -U 'nvidia-cuda-nvrtc>=13'"),
        ("sm_70", "use an architecture from this list, or an older NVRTC"),
    ],
)
def test_architecture_beyond_the_library_names_the_file(chosen, arch, cure):
    with pytest.raises(BackendError) as caught:
        old(chosen).check_arch(arch)
    assert "NVRTC 12.6 (/opt/old/libnvrtc.so.12) cannot compile for" in str(caught.value)
    assert cure in str(caught.value)


@needs_nvrtc
def test_suffix_f_needs_12_9(chosen):
    library = old(chosen, (12, 8), (90, 120))
    assert library.check_arch("sm_120a") == "sm_120a"
    with pytest.raises(BackendError, match=r"suffix 'f' needs NVRTC 12\.9 or newer"):
        library.check_arch("sm_120f")


@pytest.mark.parametrize("path", nvrtc_files(), ids=lambda path: path.parts[-4] + "-" + path.name)
def test_every_library_at_hand(path):
    library = nvrtc.load(path)
    assert library.version >= (12, 0)
    assert 90 in library.archs
    if library.version < (12, 8):
        with pytest.raises(BackendError, match=str(path)):
            library.check_arch("sm_120")


@needs_nvrtc
def test_headers_belong_to_the_library(chosen):
    assert nvrtc.header_version(chosen.include) // 1000 == chosen.version[0]
    includes = "".join(f"#include <cuda_{name}.h>\n" for name in ("bf16", "fp16", "fp8"))
    text = includes + 'extern "C" __global__ void k() {}'
    binary, log = chosen.compile(text, "t.cu", {}, ["-arch=sm_90", f"-I{chosen.include}"])
    assert binary, log


@needs_nvrtc
def test_headers_in_memory_and_line_numbers(chosen):
    headers = {"a.cuh": '#line 1 "a.cuh"\n#include "deep/b.cuh"', "deep/b.cuh": '#line 1 "b"\n\n#error here'}
    text = '#line 1 "t.cu"\n#include "a.cuh"\n'
    binary, log = chosen.compile(text, "t.cu", headers, ["-arch=sm_90"])
    assert binary is None
    assert "b(2): catastrophic error: #error directive: here" in log


@needs_nvrtc
def test_wrong_option_is_a_log_not_a_crash(chosen):
    binary, log = chosen.compile("", "t.cu", {}, ["--no-such-option"])
    assert binary is None
    assert "error" in log


@needs_nvrtc
def test_non_ascii_text_and_names(chosen):
    binary, log = chosen.compile(
        '// ü\nextern "C" __global__ void k() {}', "ü.cu", {"ö.cuh": "// ö"}, ["-arch=sm_90"]
    )
    assert binary, log


def test_no_library(monkeypatch):
    monkeypatch.setattr(nvrtc, "candidates", list)
    monkeypatch.setattr(nvrtc, "_pathfinder", list)
    with pytest.raises(
        BackendError, match=r"no NVRTC library .* is installed: pip install 'kdtree-cupy\[compile\]'"
    ):
        nvrtc.choose()


def test_broken_library_names_the_file(tmp_path, monkeypatch):
    broken = tmp_path / "libnvrtc.so.12"
    broken.write_bytes(b"not a library")
    monkeypatch.setenv("KDTREE_NVRTC", str(broken))
    with pytest.raises(BackendError, match=str(broken)):
        nvrtc.choose()


@needs_nvrtc
def test_broken_library_beside_a_good_one(tmp_path, monkeypatch, chosen):
    broken = tmp_path / "libnvrtc.so.12"
    broken.write_bytes(b"not a library")
    monkeypatch.setattr(nvrtc, "candidates", lambda: [broken, chosen.path])
    assert nvrtc.choose().path == chosen.path


@needs_nvrtc
@pytest.mark.parametrize(
    ("driver", "wanted"),
    [(None, (13, 5)), ((13, 0), (13, 5)), ((12, 8), (12, 9)), ((11, 8), (13, 5))],
    ids=["no driver", "driver 13", "driver 12", "driver older than all"],
)
def test_the_newest_library_that_the_driver_can_load(chosen, monkeypatch, driver, wanted):
    libraries = {
        Path("/12"): old(chosen, (12, 9)),
        Path("/13"): old(chosen, (13, 5)),
        Path("/a"): old(chosen),
    }
    monkeypatch.setattr(nvrtc, "load", libraries.__getitem__)
    monkeypatch.setattr(nvrtc, "driver", lambda: Driver(version=driver))
    nvrtc._choose.cache_clear()
    try:
        assert nvrtc._choose(tuple(libraries)).version == wanted
    finally:
        nvrtc._choose.cache_clear()


@needs_nvrtc
def test_one_environment_variable_overrides(monkeypatch, chosen):
    monkeypatch.setenv("KDTREE_NVRTC", str(chosen.path))
    assert nvrtc.candidates() == [chosen.path]


def test_candidates_come_from_wheels_before_the_system(monkeypatch, tmp_path):
    for place in (
        "nvidia/cuda_nvrtc/lib/libnvrtc.so.12",
        "nvidia/cu13/lib/libnvrtc.so.13",
        "conda/lib/libnvrtc.so.12",
    ):
        (tmp_path / place).parent.mkdir(parents=True)
        (tmp_path / place).write_text("")
    (tmp_path / "nvidia/cuda_nvrtc/lib/libnvrtc.alt.so.12").write_text("")
    monkeypatch.delenv("KDTREE_NVRTC", raising=False)
    monkeypatch.setattr(sys, "path", ["", str(tmp_path)])
    monkeypatch.setenv("CONDA_PREFIX", str(tmp_path / "conda"))
    names = [str(p.relative_to(tmp_path)) for p in nvrtc.candidates() if p.is_relative_to(tmp_path)]
    assert names == [
        "nvidia/cuda_nvrtc/lib/libnvrtc.so.12",
        "nvidia/cu13/lib/libnvrtc.so.13",
        "conda/lib/libnvrtc.so.12",
    ]


def test_importing_the_library_loads_no_cuda_package():
    code = "import kdtree_cupy.library, sys; print({'cupy', 'cuda', 'torch'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
