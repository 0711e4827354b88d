"""Notebooks run as scripts, are short, and their .ipynb twins are in step and hold no outputs."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kdtree_cupy.errors import BackendError

FOLDER = Path(__file__).resolve().parents[1] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("[0-9][0-9]_*.py"))
MAX_LINES, MAX_BYTES = 150, 40_000


@pytest.fixture(params=NOTEBOOKS, ids=lambda path: path.stem)
def source(request) -> Path:
    return request.param


def test_there_are_notebooks():
    assert [path.name[:2] for path in NOTEBOOKS] == [f"{n:02d}" for n in range(1, 9)]


def needs(source: Path) -> None:
    """Skip by name where a notebook's tools are missing: 04 compiles for sm_120 and runs the kernel."""
    if source.name.startswith("04"):
        from kdtree_cupy.library import nvrtc
        from kdtree_cupy.selftest import default_backend

        if default_backend() == "numpy":
            pytest.skip("no GPU and no C++ compiler")
        try:
            nvrtc.choose()
        except BackendError as error:
            pytest.skip(f"no NVRTC: {error}")


def test_runs_as_a_script(source, tmp_path):
    needs(source)
    environment = os.environ | {"MPLBACKEND": "Agg"}
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, str(source)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    print(f"{source.name}: {time.monotonic() - started:.1f} s")


def test_is_short(source):
    assert len(source.read_text().splitlines()) < MAX_LINES


def test_every_section_asserts_something(source):
    assert source.read_text().count("\nassert ") >= source.read_text().count("\n# ## ") - 1


def test_ipynb_is_the_same_notebook_without_outputs(source):
    pytest.importorskip("jupytext", reason="jupytext (extra test) is not installed")
    made = runpy.run_path(str(FOLDER / "make_ipynb.py"))["notebook_text"](source)
    stored = source.with_suffix(".ipynb").read_text(encoding="utf-8")
    assert json.loads(stored)["cells"] == json.loads(made)["cells"], "run: python notebooks/make_ipynb.py"
    assert len(stored) < MAX_BYTES
    for cell in json.loads(stored)["cells"]:
        assert cell.get("outputs", []) == []
        assert cell.get("execution_count") is None


def test_runs_in_jupyter(source, tmp_path):
    needs(source)
    nbclient = pytest.importorskip("nbclient", reason="nbclient (extra notebook) is not installed")
    pytest.importorskip("ipykernel", reason="ipykernel (extra notebook) is not installed")
    import nbformat

    notebook = nbformat.read(source.with_suffix(".ipynb"), as_version=4)
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": tmp_path}}).execute()
    kinds = {o["output_type"] for c in notebook.cells for o in c.get("outputs", [])}
    assert "display_data" in kinds
    assert "error" not in kinds
