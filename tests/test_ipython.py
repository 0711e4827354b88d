"""Magics of ``%load_ext kdtree_cupy``: edits of kernels, mistakes on the user's line, what kernels print."""

from __future__ import annotations

import sys

import pytest

pytest.importorskip("IPython", reason="IPython (extra notebook) is not installed")

import numpy as np
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from library_tools import needs_nvrtc

from kdtree_cupy import kernel_trial, study_report, tree_build
from kdtree_cupy.errors import BackendError
from kdtree_cupy.library import KernelLibrary, host, nvrtc, printed
from kdtree_cupy.study import StudyResult
from kdtree_cupy.tree import DraftTree

needs_compiler = pytest.mark.skipif(bool(host.problem()), reason=f"needs a C++ compiler: {host.problem()}")
HEADER = (KernelLibrary().sources.package / "tree_nodes.cuh").read_text()
HELLO = """#include "common.cuh"

extern "C" __global__ void hello(int* x)
{
    x[threadIdx.x] = 7;
    printf("thread %d\\n", int(threadIdx.x));
}
"""


@pytest.fixture(scope="module")
def shell():
    shell = InteractiveShell.instance()
    shell.run_cell("%load_ext kdtree_cupy")
    yield shell
    shell.run_cell("%unload_ext kdtree_cupy")
    InteractiveShell.clear_instance()
    assert printed.sink is None


@pytest.fixture
def library(shell):
    """A library of the notebook, named ``mine``."""
    shell.user_ns["mine"] = KernelLibrary(backend="host")
    return shell.user_ns["mine"]


def run(shell, text):
    done = shell.run_cell(text)
    assert done.success, done.error_in_exec
    return done.result


def mistake(shell, text) -> str:
    """Run a cell that is wrong; return its message, which comes without a traceback."""
    error = shell.run_cell(text).error_in_exec
    assert isinstance(error, UsageError), error
    return str(error)


def test_the_magics_are_there_with_help_and_completion(shell, capsys):
    for name in ("kernel", "kernels", "tree", "study"):
        assert "Options:" in shell.find_line_magic(name).__doc__
        assert run(shell, f"%{name} --help") is None
        assert f"Usage: {name}" in capsys.readouterr().out
    for line, wanted in {
        "%kernel tree_b": "tree_build.cu",
        "%%kernel tree_n": "tree_nodes.cuh",
        "%kernels --arch sm_1": "sm_120",
        "%tree --policy cali": "calibrated",
        "%study --bud": "--budgets",
        "%study --cost ddtree-h": "ddtree-h200-8b",
    }.items():
        assert wanted in shell.complete("", line, len(line))[1], line


@needs_nvrtc
def test_kernels_shows_the_resource_table(shell):
    report = run(shell, "%kernels tree_build.cu --arch sm_120 --arch sm_90")
    assert {row.arch for row in report.rows} == {"sm_120", "sm_90"}
    assert "tree_build.cu:tree_build_v2" in report._repr_html_()
    assert repr(report).splitlines()[0].startswith("kernel")


@needs_compiler
def test_a_right_cell_is_live_and_reset_undoes_it(shell, library):
    arrays = np.int32([[[7, 8]]]), np.log(np.float32([[[0.6, 0.3]]])), [1]
    trial = run(shell, f"%%kernel tree_nodes.cuh --time --library mine\n// edited\n{HEADER}")
    assert trial.files == ("tree_build.cu",)
    assert trial.checked == {"tree_build.cu": True}
    assert trial.us("tree_build") > 0
    assert "equals the reference" in str(trial)
    assert "no GPU speed" in str(trial)
    assert library.sources.replaced["tree_nodes.cuh"].startswith("// edited")
    assert tree_build(*arrays, 2, library=library).tree.tokens.tolist() == [[1, 7, 8]]
    run(shell, "%kernel tree_nodes.cuh --reset --library mine")
    assert not library.sources.replaced


@needs_compiler
@pytest.mark.parametrize("nvrtc_there", [pytest.param(True, marks=needs_nvrtc), False])
def test_a_typing_error_is_shown_on_the_line_of_the_cell(shell, library, nvrtc_there, monkeypatch):
    if not nvrtc_there:
        monkeypatch.setattr(nvrtc, "choose", _no_nvrtc)
    wrong = HEADER.replace("return ra != rb", "return ra != rc")
    line = wrong[: wrong.index("return ra != rc")].count("\n") + 1
    message = mistake(shell, f"%%kernel tree_nodes.cuh --library mine\n{wrong}")
    assert f"cell line {line + 1} (tree_nodes.cuh:{line})" in message
    assert "return ra != rc" in message
    assert "rc" in message.split("\n")[1]
    assert "keeps what it had" in message
    assert not library.sources.replaced


def _no_nvrtc():
    raise BackendError("no NVRTC library is installed")


@needs_compiler
def test_a_wrong_kernel_is_refused(shell, library):
    wrong = HEADER.replace("ra < rb : depth_a < depth_b", "ra > rb : depth_a < depth_b")
    assert wrong != HEADER
    library.replace("tree_nodes.cuh", f"// mine\n{HEADER}")
    message = mistake(shell, f"%%kernel tree_nodes.cuh --library mine\n{wrong}")
    assert "not what the reference gives" in message
    assert library.sources.replaced["tree_nodes.cuh"].startswith("// mine")


@needs_compiler
def test_macros_are_for_one_trial(shell, library, monkeypatch):
    monkeypatch.setattr(nvrtc, "choose", _no_nvrtc)
    trial = run(shell, "%kernel tree_accept.cu -D KD_MINE=3 --no-check --library mine")
    assert trial.library.defines["KD_MINE"] == "3"
    assert "KD_MINE" not in library.defines
    assert trial.report is None
    assert "no resource table: no NVRTC" in str(trial)
    assert "not checked" in str(trial)


def test_without_gpu_and_compiler(shell, monkeypatch):
    monkeypatch.setattr(kernel_trial, "default_backend", lambda: "numpy")
    trial = run(shell, "%kernel tree_accept.cu --time")
    assert "no GPU and no C++ compiler" in str(trial)
    assert not trial.checked


@needs_compiler
def test_what_a_kernel_prints_appears_in_the_cell(shell, library, capsys):
    mistaken = mistake(shell, f"%%kernel hello.cu --library mine\n{HELLO}")
    assert "pass new=True" in mistaken or "--new" in mistaken
    trial = run(shell, f"%%kernel hello.cu --new --library mine\n{HELLO}")
    assert "no reference to be checked against" in str(trial)
    x = shell.user_ns["x"] = np.zeros(3, np.int32)
    capsys.readouterr()
    run(shell, "mine.launch('hello.cu', 'hello', 1, 3, (x,))")
    assert x.tolist() == [7, 7, 7]
    assert capsys.readouterr().out == "thread 0\nthread 1\nthread 2\n"
    wrong = HEADER.replace("ra < rb : depth_a < depth_b", "ra > rb : depth_a < depth_b")
    assert "thread" not in mistake(shell, f"%%kernel tree_nodes.cuh --library mine\n{wrong}")


@needs_compiler
def test_print_is_cut_and_the_descriptor_comes_back(library, capfd, monkeypatch):
    library.replace("hello.cu", HELLO, new=True)
    got: list[str] = []
    monkeypatch.setattr(printed, "sink", got.append)
    monkeypatch.setattr(printed, "MOST_BYTES", 12)
    x = np.zeros(3, np.int32)
    library.launch("hello.cu", "hello", 1, 3, (x,))
    assert got == ["thread 0\nthr\n... and 15 more bytes\n"]
    monkeypatch.setattr(printed, "sink", None)
    library.launch("hello.cu", "hello", 1, 1, (x,))
    sys.stdout.flush()
    assert capfd.readouterr().out == "thread 0\n"


def test_tree_draws_a_round(shell):
    view = run(shell, "%tree --budget 8 --position 33")
    assert isinstance(view.tree, DraftTree)
    assert view.tree.counts.tolist() == [9]
    assert "drafts accepted" in repr(view)
    assert "<svg" in view._repr_html_()
    shell.user_ns["grown"] = view.tree
    assert run(shell, "%tree grown") is view.tree


def test_mistakes_come_without_traceback(shell):
    assert "no such variable" in mistake(shell, "%tree nothing")
    assert "budget: got 1000, wanted 127 at most" in mistake(shell, "%tree --policy edge -b 1000")
    assert "is a folder" in mistake(shell, '%tree --trace ""')
    assert "nope.cu" in mistake(shell, "%kernel nope.cu --reset")
    assert "--reset: got a cell, wanted none" in mistake(shell, "%%kernel masks.cu --reset\ntext")
    assert "got both" in mistake(shell, "%kernel masks.cu --reset --edit")
    assert "wanted 0..1425" in mistake(shell, "%tree --position 9999")
    assert "policies: got 'nix'" in mistake(shell, "%tree --policy nix")
    assert "no such kernel file" in mistake(shell, "%kernel tree_biuld.cu --no-check")
    assert "wanted a .cu file or a header" in mistake(shell, "%kernel nothing.cuh")
    assert "No such option" in mistake(shell, "%kernels --nix")
    assert "wanted integers" in mistake(shell, "%study --budgets x")
    assert "no such file" in mistake(shell, "%study nothing.kdtr")
    assert "wanted a KernelLibrary" in mistake(shell, "nix = 3\n%kernels --library nix")


def test_study_runs_here(shell, tmp_path, capsys, monkeypatch):
    written = []
    monkeypatch.setattr(study_report, "write_report", lambda *given: written.append(given) or given[1])
    result = run(shell, f"%study --budgets 4,16 --out {tmp_path / 'out'} --cost none")
    assert isinstance(result, StudyResult)
    assert result.policies == ("chain", "ddtree")
    pooled = {r["budget"]: r["tau_pooled"] for r in result.select(policy="ddtree", subset="all")}
    html = result._repr_html_()
    assert f"{pooled[4]:.3f}" in html
    assert f"{pooled[16]:.3f}" in html
    assert f"{pooled[4]:7.3f}" in capsys.readouterr().out
    assert written == [(result, tmp_path / "out")]


@needs_compiler
def test_in_a_jupyter_kernel(tmp_path):
    nbclient = pytest.importorskip("nbclient", reason="nbclient (extra notebook) is not installed")
    pytest.importorskip("ipykernel", reason="ipykernel (extra notebook) is not installed")
    from nbformat.v4 import new_code_cell, new_notebook

    launch = "import numpy as np\nfrom kdtree_cupy.library.resolve import default_library\n"
    launch += "default_library().launch('hello.cu', 'hello', 1, 2, (np.zeros(2, np.int32),))"
    cells = ["%load_ext kdtree_cupy", f"%%kernel hello.cu --new\n{HELLO}", launch, "%tree --budget 4",
             "%study --budgets 4"]  # fmt: skip
    notebook = new_notebook(cells=[new_code_cell(text) for text in cells])
    nbclient.NotebookClient(notebook, timeout=120, resources={"metadata": {"path": tmp_path}}).execute()
    outputs = [cell.outputs for cell in notebook.cells]
    assert "no reference" in outputs[1][0]["data"]["text/html"]
    assert "".join(o["text"] for o in outputs[2]) == "thread 0\nthread 1\n"
    assert "<svg" in outputs[3][0]["data"]["text/html"]
    assert any("image/png" in o.get("data", {}) for o in outputs[4])
    assert any("B = 4" in o.get("data", {}).get("text/html", "") for o in outputs[4])
