"""The kdtree command: instant help, exit codes, one message for an expected error, nothing half-written."""

from __future__ import annotations

import errno
import importlib.util
import os
import subprocess
import sys
import types
from pathlib import Path

import click
import numpy as np
import pytest

from kdtree_cupy import kdtr
from kdtree_cupy.cli import COMMANDS, main
from kdtree_cupy.errors import BackendError, CompileError, KdtrError


def run(*args, code: str | None = None, **options) -> subprocess.CompletedProcess:
    """Run the command (or Python code) in a process of its own."""
    start = ["-m", "kdtree_cupy"] if code is None else ["-c", code]
    command = [sys.executable, *start, *map(str, args)]
    return subprocess.run(command, text=True, check=False, capture_output="stdout" not in options, **options)


@pytest.fixture
def file(tmp_path):
    kdtr.write(tmp_path / "x.kdtr", {"a": np.arange(5)}, {"seed": 0})
    return tmp_path / "x.kdtr"


# ---- the group ------------------------------------------------------------------------------------------


def test_every_listed_command_exists():
    for module, text in COMMANDS.values():
        assert importlib.util.find_spec(module) is not None, module
        assert text.endswith(".")
        assert len(text) < 90


@pytest.mark.parametrize(
    "args", [["--help"], ["-h"], ["trace", "--help"], ["trace", "convert", "--help"], ["--version"]]
)
def test_help_imports_nothing_heavy(args):
    code = (
        "import sys, kdtree_cupy\n"
        "before = set(sys.modules)\n"
        "from kdtree_cupy.cli import main\n"
        "code = main(sys.argv[1:])\n"
        "new = {name.split('.')[0] for name in set(sys.modules) - before}\n"
        "heavy = {'numpy', 'matplotlib', 'ml_dtypes', 'joblib', 'tqdm', 'jinja2', 'cupy', 'torch'}\n"
        "print(code, sorted(new & heavy))\n"
    )
    done = run(*args, code=code)
    assert done.stdout.splitlines()[-1] == "0 []"
    assert done.stderr == ""


def test_help_lists_the_commands_and_the_exit_codes(capsys):
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(f"\n  {name} " in shown for name in COMMANDS)
    assert "Exit codes" in shown
    assert "KDTREE_DEBUG=1" in shown


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("kdtree_cupy 0.")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["trase"], "No such command 'trase'; did you mean 'trace'?"),
        (["zzz"], "No such command 'zzz'; wanted one of "),
        (["--nope"], "No such option"),
        (["trace", "info"], "Missing argument 'FILE'"),
        (["trace", "info", "x.npz", "--max-bytes", "3x"], "wanted bytes such as 500000000, 500M or 8G"),
    ],
)
def test_usage_errors(capsys, args, words):
    assert main(args) == 2
    shown = capsys.readouterr().err
    assert words in shown
    assert "Traceback" not in shown


# ---- exit codes -----------------------------------------------------------------------------------------


@pytest.fixture
def command(monkeypatch):
    """Install a sub-command "probe" that runs the given function."""

    def install(function):
        module = types.ModuleType("kdtree_probe")
        module.command = click.Command("probe", callback=function)
        monkeypatch.setitem(sys.modules, "kdtree_probe", module)
        monkeypatch.setitem(COMMANDS, "probe", ("kdtree_probe", "Probe."))

    return install


def raises(error):
    def function():
        raise error

    return function


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ValueError("k: got 0, wanted 1..1024"), "Error: k: got 0, wanted 1..1024\n"),
        (TypeError("ids: got float32, wanted int32"), "Error: ids: got float32, wanted int32\n"),
        (KdtrError("x.kdtr: is empty"), "Error: x.kdtr: is empty\n"),
        (BackendError("cuda: no device"), "Error: cuda: no device\n"),
        (CompileError("a.cu:3: expected ';'", "log"), "Error: a.cu:3: expected ';'\n"),
        (
            OSError(errno.ENOSPC, "No space left on device", "out/x.csv"),
            "Error: out/x.csv: No space left on device\n",
        ),
        (
            FileNotFoundError(errno.ENOENT, "No such file or directory", "y"),
            "Error: y: No such file or directory\n",
        ),
        (OSError("socket says no"), "Error: socket says no\n"),
        (ValueError(), "Error: ValueError\n"),
        (ValueError("a\x1b[2Jb\x9b1mc"), "Error: a\\x1b[2Jb\\x9b1mc\n"),
        (click.ClickException("plain"), "Error: plain\n"),
        (click.FileError("f", "hint"), "Error: Could not open file 'f': hint\n"),
        (KeyboardInterrupt(), "\nInterrupted; nothing was left half-written.\n"),
        (click.Abort(), "Interrupted; nothing was left half-written.\n"),
        (BrokenPipeError(errno.EPIPE, "Broken pipe"), ""),
    ],
)
def test_expected_error_is_one_message(command, capsys, monkeypatch, error, message):
    command(raises(error))
    monkeypatch.delenv("KDTREE_DEBUG", raising=False)
    assert main(["probe"]) == 2
    assert capsys.readouterr() == ("", message)
    monkeypatch.setenv("KDTREE_DEBUG", "1")
    assert main(["probe"]) == 2
    shown = capsys.readouterr().err
    assert "Traceback" in shown
    assert shown.endswith(message.lstrip())


@pytest.mark.parametrize(
    "error", [KeyError("x"), ZeroDivisionError("y"), AssertionError("z"), ImportError("w")]
)
def test_other_errors_are_ours(command, capsys, error):
    command(raises(error))
    assert main(["probe"]) == 1
    shown = capsys.readouterr().err
    assert "Traceback" in shown
    assert type(error).__name__ in shown
    assert shown.endswith(
        "This is a fault of kdtree_cupy, not of what you did. Please report it with the lines above.\n"
    )


def test_a_command_may_choose_its_exit_code(command):
    command(lambda: click.get_current_context().exit(2))
    assert main(["probe"]) == 2
    command(lambda: None)
    assert main(["probe"]) == 0


def test_interrupt_of_a_real_process(tmp_path):
    code = (
        "import os, signal, sys, numpy as np\n"
        "from kdtree_cupy import files, kdtr\n"
        "from kdtree_cupy.cli import main\n"
        "files.os.fsync = lambda fd: os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.exit(main(['trace', 'convert', 'a.kdtr', 'b.npz']))\n"
    )
    kdtr.write(tmp_path / "a.kdtr", {"x": np.arange(5)})
    done = run(code=code, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.strip() == "Interrupted; nothing was left half-written."
    assert [p.name for p in tmp_path.iterdir()] == ["a.kdtr"]


def test_closed_pipe_is_quiet(file):
    reader, writer = os.pipe()
    os.close(reader)
    done = run("trace", "info", file, "--json", stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert (done.returncode, done.stderr) == (2, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
def test_full_disk_behind_stdout_is_one_message(file):
    with Path("/dev/full").open("w") as full:
        done = run("trace", "info", file, stdout=full, stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (2, "Error: No space left on device\n")
