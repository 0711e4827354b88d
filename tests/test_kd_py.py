"""kd.py, piece by piece: what it installs on which machine, and how it mends a broken .venv."""

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
KNOWN = {"test", "notebook", "compile", "cuda12", "cuda13", "host"}


@pytest.fixture
def real():
    """Load kd.py as a module, as it is."""
    spec = importlib.util.spec_from_file_location("kd_under_test", ROOT / "kd.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def kd(real, tmp_path, monkeypatch):
    """Pretend that the checkout is ``tmp_path``, on a Linux PC with g++ and no driver."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    monkeypatch.setattr(real, "ROOT", tmp_path)
    monkeypatch.setattr(real, "VENV", tmp_path / ".venv")
    monkeypatch.setattr(real, "PYTHON", tmp_path / ".venv" / "bin" / "python")
    monkeypatch.setattr(real, "STAMP", tmp_path / ".venv" / "kd-stamp.json")
    monkeypatch.setattr(real.sys, "platform", "linux")
    monkeypatch.setattr(real.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(real, "probe_driver", lambda: (0, 0, "no NVIDIA driver"))
    monkeypatch.setattr(real, "find_compiler", lambda: "g++")
    monkeypatch.delenv("KD_EXTRAS", raising=False)
    return real


class Driver:
    """A libcuda with the given devices, for ``probe_driver``."""

    def __init__(self, version=12080, capabilities=((12, 0),), init=0):
        self.version, self.capabilities, self.init = version, capabilities, init

    def cuInit(self, flags):
        return self.init

    def cuDriverGetVersion(self, out):
        out._obj.value = self.version

    def cuDeviceGetCount(self, out):
        out._obj.value = len(self.capabilities)

    def cuDeviceGet(self, out, ordinal):
        out._obj.value = ordinal

    def cuDeviceGetAttribute(self, out, attribute, device):
        out._obj.value = self.capabilities[device][{75: 0, 76: 1}[attribute]]


@pytest.mark.parametrize(
    ("driver", "expected"),
    [
        (Driver(), (12.8, 120, "")),
        (Driver(13000, ((9, 0), (12, 1), (8, 0))), (13.0, 121, "")),
        (Driver(12090, ()), (12.9, 0, "no device for the NVIDIA driver")),
        (Driver(init=100), (0, 0, "no device for the NVIDIA driver (cuInit: error 100)")),
    ],
    ids=["one", "best of three", "no device", "init fails"],
)
def test_probe(real, driver, expected):
    assert real.probe_driver(lambda name: driver) == pytest.approx(expected)


def test_probe_finds_the_driver_of_wsl(real):
    def load(name):
        if not name.startswith("/usr/lib/wsl/"):
            raise OSError(name)
        return Driver()

    assert real.probe_driver(load)[1] == 120


def test_probe_without_a_driver(real):
    def load(name):
        raise OSError(name)

    assert real.probe_driver(load) == (0, 0, "no NVIDIA driver")


@pytest.mark.parametrize(
    ("verb", "driver", "extras"),
    [
        ("study", (0, 0, "no NVIDIA driver"), set()),
        ("test", (0, 0, "no NVIDIA driver"), {"compile"}),
        ("report", (0, 0, "no NVIDIA driver"), {"compile"}),
        ("study", (12.8, 120, ""), {"cuda12"}),
        ("test", (12.4, 90, ""), {"cuda12"}),
        ("study", (13.0, 120, ""), {"cuda13"}),
        ("test", (13.2, 90, ""), {"cuda13"}),
        ("study", (11.8, 80, ""), set()),
        ("test", (13.0, 75, ""), {"compile"}),
        ("test", (12.9, 0, "no device for the NVIDIA driver"), {"compile"}),
    ],
)
def test_extras_fit_the_machine(kd, monkeypatch, verb, driver, extras):
    monkeypatch.setattr(kd, "probe_driver", lambda: driver)
    chosen, reason = kd.fit_machine(verb, set())
    assert chosen == extras
    assert reason


def test_a_device_that_is_too_old_is_named(kd, monkeypatch):
    monkeypatch.setattr(kd, "probe_driver", lambda: (11.8, 75, ""))
    reason = kd.fit_machine("study", set())[1]
    assert "sm_75" in reason
    assert "11.8" in reason
    assert "too old" in reason


@pytest.mark.parametrize(("system", "machine"), [("darwin", "arm64"), ("linux", "riscv64")])
def test_no_cuda_wheels(kd, monkeypatch, system, machine):
    monkeypatch.setattr(kd.sys, "platform", system)
    monkeypatch.setattr(kd.platform, "machine", lambda: machine)
    assert kd.fit_machine("test", set()) == (set(), f"no CUDA for {system} {machine}")


@pytest.mark.parametrize(("verb", "extras"), [("test", {"compile", "host"}), ("study", set())])
def test_no_compiler(kd, monkeypatch, verb, extras):
    monkeypatch.setattr(kd, "find_compiler", lambda: "")
    assert kd.fit_machine(verb, set())[0] == extras


def test_compiler_order(real, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    assert real.find_compiler() == ""
    for name in "clang++", "g++", "icpx":
        (tmp_path / name).write_text("")
        (tmp_path / name).chmod(0o755)
    assert real.find_compiler() == "g++"
    monkeypatch.setenv("CXX", "icpx -g")
    assert real.find_compiler() == "icpx"


@pytest.mark.parametrize("have", ["cuda12", "cuda13"])
def test_cuda_in_the_venv_is_kept_and_the_driver_left_alone(kd, monkeypatch, have):
    monkeypatch.setattr(kd, "probe_driver", lambda: pytest.fail("the driver was started"))
    assert kd.fit_machine("test", {have}) == (set(), "CUDA is in .venv")


@pytest.mark.parametrize(
    ("text", "have", "extras"),
    [
        ("", set(), set()),
        ("cuda12,notebook", set(), {"cuda12", "notebook"}),
        (" host  ", {"cuda13"}, {"host"}),
    ],
)
def test_extras_by_hand(kd, text, have, extras):
    assert kd.parse_request(text, have, KNOWN)[0] == extras


@pytest.mark.parametrize(
    ("text", "have", "message"),
    [
        ("cuda14", set(), "no extra 'cuda14'; there are compile, cuda12"),
        ("cuda13,compile", set(), "leave out cuda12 and compile"),
        ("cuda13", {"cuda12"}, "rm -rf .venv"),
    ],
)
def test_extras_by_hand_that_cannot_be(kd, text, have, message):
    with pytest.raises(kd.Problem, match=re.escape(message)):
        kd.parse_request(text, have, KNOWN)


def test_hash_covers_installing_only(kd, tmp_path):
    project = tmp_path / "pyproject.toml"
    before, known = kd.read_project()
    assert known >= KNOWN
    text = project.read_text(encoding="utf-8")
    project.write_text(text + '\n[tool.other]\nname = "x"\n', encoding="utf-8")
    assert kd.read_project()[0] == before
    project.write_text(text.replace("numpy>=2.0", "numpy>=2.1"), encoding="utf-8")
    assert kd.read_project()[0] != before


@pytest.mark.parametrize("damage", ["python", "pyvenv.cfg", "pip"])
def test_broken_venv_is_made_again(kd, tmp_path, monkeypatch, damage):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", kd.VENV], check=True)
    kd.write_stamp("x", {"notebook"})
    if damage == "python":
        kd.PYTHON.unlink()
        kd.PYTHON.symlink_to(tmp_path / "gone")
    elif damage == "pyvenv.cfg":
        (kd.VENV / "pyvenv.cfg").unlink()
    steps = []
    monkeypatch.setattr(kd, "run_step", lambda what, *command: steps.append((what, *command)))
    kd.prepare("study")
    assert [step[0] for step in steps] == ["making .venv", "installing"]
    assert "--clear" in steps[0]
    assert steps[1][-1] == f"{tmp_path}[notebook]", "the extras it had are restored"


@pytest.mark.parametrize("module", ["venv", "ensurepip"])
def test_python_without_venv(kd, monkeypatch, capsys, module):
    find = importlib.util.find_spec
    monkeypatch.setattr(kd.importlib.util, "find_spec", lambda name: None if name == module else find(name))
    assert kd.main(["study"]) == 2
    assert "apt install python3-venv" in capsys.readouterr().err


def test_unwritable_folder(kd, monkeypatch, capsys):
    def refuse(*_):
        raise PermissionError(13, "Permission denied", ".venv/kd-stamp.json")

    monkeypatch.setattr(kd, "set_up", refuse)
    assert kd.main(["study"]) == 2
    assert "must be yours to write" in capsys.readouterr().err
