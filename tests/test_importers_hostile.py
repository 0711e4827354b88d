"""Pickles from strangers: nothing in them runs, few names are known, cut files are refused."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch_files

from kdtree_cupy import importers
from kdtree_cupy.errors import KdtrError
from kdtree_cupy.importers import torch_file
from kdtree_cupy.importers.torch_file import read_torch


@pytest.fixture
def run_file(tmp_path):
    path = tmp_path / "run.pt"
    value = torch_files.run_value({"dflash": [[3, 5, 1]], "ddtree_tb16": [[4]], "ddtree_tb64": [[9]]})
    torch_files.write(path, value)
    return path


class Evil:
    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return Path.touch, (self.marker,)


@pytest.mark.parametrize("protocol", range(6))
def test_code_in_a_pickle_never_runs(tmp_path, protocol):
    marker = tmp_path / "ran"
    torch_files.write_zip(tmp_path / "evil.pt", pickle.dumps({"responses": [Evil(marker)]}, protocol))
    with pytest.raises(KdtrError, match="nothing was executed"):
        importers.load_measured(tmp_path / "evil.pt")
    assert not marker.exists()


@pytest.mark.parametrize(
    "text",
    [
        b"cos\nsystem\n(S'true'\ntR.",
        b"cbuiltins\neval\n(S'1'\ntR.",
        b"c__builtin__\ngetattr\n.",
        b"ctorch\nload\n.",
        b"ckdtree_cupy.importers.torch_file\nread_torch\n.",
        b"cnumpy.core.multiarray\n_reconstruct\n.",
    ],
)
def test_names_outside_the_list_are_refused(tmp_path, text):
    torch_files.write_zip(tmp_path / "evil.pt", text)
    with pytest.raises(KdtrError, match="nothing was executed"):
        read_torch(tmp_path / "evil.pt")


def test_a_pickle_cannot_change_the_reader(tmp_path, run_file):
    """BUILD with a slot state sets attributes on what was named: on a copy, not on the reader's own."""
    torch_files.write_zip(tmp_path / "e.pt", b"ctorch._utils\n_rebuild_tensor_v2\n(N}S'x'\nI1\nstb.")
    assert read_torch(tmp_path / "e.pt").x == 1
    assert not hasattr(torch_file._tensor, "x")
    torch_files.write_zip(tmp_path / "e.pt", b"ctypes\nSimpleNamespace\n(N}S'__setstate__'\nNstb.")
    with pytest.raises(KdtrError):
        read_torch(tmp_path / "e.pt")
    assert len(importers.load_measured(run_file)) == 3


def test_truncations_of_a_run_file_never_crash(tmp_path, run_file):
    data = run_file.read_bytes()
    cut = tmp_path / "cut.pt"
    for size in range(0, len(data), 97):
        cut.write_bytes(data[:size])
        with pytest.raises(KdtrError):
            importers.load_measured(cut)
