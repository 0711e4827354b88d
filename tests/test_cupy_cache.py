"""Importing CuPy: its cache folder is made usable before, and its faults are said plainly."""

from __future__ import annotations

import os
import sys

import pytest

from kdtree_cupy.errors import BackendError
from kdtree_cupy.library import cuda
from kdtree_cupy.library.cache import Cache


class TestCupyCacheFolder:
    """``import cupy`` fails if its cache folder cannot be made; ours is offered before it tries."""

    @pytest.fixture(autouse=True)
    def no_cupy(self, monkeypatch):
        monkeypatch.delitem(sys.modules, "cupy", raising=False)
        monkeypatch.setenv("CUPY_CACHE_DIR", "")
        monkeypatch.delenv("CUPY_CACHE_DIR")

    def imported(self, monkeypatch, tmp_path):
        seen = []
        real = __import__

        def spy(name, *rest):
            if name != "cupy":
                return real(name, *rest)
            seen.append(os.environ.get("CUPY_CACHE_DIR"))
            raise ModuleNotFoundError("No module named 'cupy'")

        monkeypatch.setattr("builtins.__import__", spy)
        with pytest.raises(BackendError, match="needs CuPy"):
            cuda.import_cupy(Cache(tmp_path / "cache"))
        return seen

    def test_writable_home_is_left_alone(self, monkeypatch, tmp_path):
        monkeypatch.setenv("HOME", str(tmp_path))
        assert self.imported(monkeypatch, tmp_path) == [None]

    @pytest.mark.parametrize("how", ["home", "variable"])
    def test_unwritable_folder_is_replaced(self, monkeypatch, tmp_path, how):
        monkeypatch.setenv("HOME", "/proc" if how == "home" else str(tmp_path))
        if how == "variable":
            monkeypatch.setenv("CUPY_CACHE_DIR", "/proc/nowhere")
        own = tmp_path / "cache" / "cupy"
        assert self.imported(monkeypatch, tmp_path) == [str(own)]
        assert own.is_dir()

    def test_broken_cupy(self, monkeypatch, tmp_path):
        (tmp_path / "site").mkdir()
        (tmp_path / "site" / "cupy.py").write_text("raise ImportError('libcublas.so.12: cannot open')")
        monkeypatch.syspath_prepend(tmp_path / "site")
        with pytest.raises(BackendError, match=r"cannot be imported \(libcublas\.so\.12: cannot open\)"):
            cuda.import_cupy(Cache(tmp_path / "cache"))
