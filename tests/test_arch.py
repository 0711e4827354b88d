"""Which architecture a kernel is compiled for, and where the result runs."""

from __future__ import annotations

import pytest
from library_tools import SCALE, cache_folder, needs_nvrtc, sources  # noqa: F401

from kdtree_cupy.errors import BackendError
from kdtree_cupy.library import KernelLibrary, make

pytestmark = needs_nvrtc


@pytest.fixture
def library(cache_folder, sources):  # noqa: F811
    return KernelLibrary(sources)


def test_automatic_arch_without_device(library, monkeypatch):
    monkeypatch.setattr("kdtree_cupy.library.make.driver", lambda: type("D", (), {"devices": ()})())
    assert library.compile("scale.cu").arch == "sm_120"


@pytest.mark.parametrize(
    ("capability", "archs", "wanted"),
    [
        ((12, 0), (90, 100, 120), "sm_120"),
        ((12, 1), (90, 100, 120), "sm_120"),
        ((9, 0), (80, 90, 120), "sm_90"),
        ((8, 9), (80, 86, 90), "sm_86"),
        ((12, 0), (80, 90), "sm_120"),
    ],
    ids=["same", "older minor", "h200", "ada", "too old: the compiler will say so"],
)
def test_automatic_arch(capability, archs, wanted):
    compiler = type("N", (), {"archs": archs})()
    assert make.automatic_arch(compiler, capability) == wanted


@pytest.mark.parametrize(
    ("arch", "capability", "fits"),
    [
        ("sm_120", (12, 0), True),
        ("sm_120", (12, 1), True),
        ("sm_120a", (12, 1), False),
        ("sm_90", (12, 0), False),
        ("sm_121", (12, 0), False),
        ("sm_80", (8, 6), True),
    ],
)
def test_which_cubins_run_where(arch, capability, fits):
    if fits:
        make.check_runs_on(arch, capability, 0)
    else:
        with pytest.raises(BackendError, match=f"arch '{arch}' was asked for, but device 0 is sm_"):
            make.check_runs_on(arch, capability, 0)


def test_file_for_one_chip_only(library):
    library.replace("scale.cu", "// Arch       sm_90a\n" + SCALE)
    assert library.compile("scale.cu").arch == "sm_90a"
    assert library.compile("scale.cu", arch="sm_90").arch == "sm_90a"
    with pytest.raises(BackendError, match=r"scale\.cu is written for sm_90a only, not for sm_120"):
        library.compile("scale.cu", arch="sm_120")
    assert {row.arch for row in library.report(["scale.cu"]).rows} == {"sm_90a"}
    library.files = lambda: ["scale.cu"]
    assert library.report(arch="sm_120").rows == ()
    assert len(library.report(arch="sm_90").rows) == 2
