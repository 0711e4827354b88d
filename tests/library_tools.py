"""Things the tests of the kernel library share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kdtree_cupy.errors import BackendError
from kdtree_cupy.library import doctor, doctor_cuda, nvrtc
from kdtree_cupy.library.driver import Driver

KERNELS = Path(__file__).parent / "kernels"
SCALE = (KERNELS / "scale.cu").read_text()
HEADER = (KERNELS / "scale.cuh").read_text()


def _nvrtc_missing() -> str:
    try:
        nvrtc.choose()
    except BackendError as error:
        return str(error)
    return ""


NVRTC_MISSING = _nvrtc_missing()
needs_nvrtc = pytest.mark.skipif(bool(NVRTC_MISSING), reason=f"needs NVRTC: {NVRTC_MISSING}")


def nvrtc_files() -> list[Path]:
    """Return the NVRTC in use and those named in $KDTREE_TEST_NVRTC (paths joined by ':')."""
    more = [Path(p) for p in os.environ.get("KDTREE_TEST_NVRTC", "").split(":") if p]
    return more if NVRTC_MISSING else [nvrtc.choose().path, *more]


@pytest.fixture
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give the test an empty cache of its own."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("KDTREE_CACHE", str(folder))
    return folder


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """Return a folder with copies of the test kernels, to be edited."""
    folder = tmp_path / "mine"
    folder.mkdir()
    for path in KERNELS.glob("scale.cu*"):
        (folder / path.name).write_text(path.read_text())
    return folder


def driver_says(monkeypatch: pytest.MonkeyPatch, **facts: object) -> None:
    """Let the driver say ``facts``."""
    said = Driver(**facts)
    for module in (doctor, doctor_cuda, nvrtc):
        monkeypatch.setattr(module, "driver", lambda: said)
