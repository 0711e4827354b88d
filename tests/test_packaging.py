"""What a user gets: the wheel and the editable install work outside the checkout, and nothing is missing."""

import json
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
try:
    VERSION = metadata.version("kdtree-cupy")
except metadata.PackageNotFoundError:
    pytest.skip("kdtree-cupy is not installed in this Python: pip install -e .", allow_module_level=True)

ROOT = Path(__file__).resolve().parents[1]
IN_WHEEL = {"kdtree_cupy": "kdtree_cupy", "refs": "kdtree_cupy/refs"} | {
    name: f"kdtree_cupy/{name}" for name in ("kernels_cu", "data")
}
NOT_INSTALLED = re.compile(r"^refs/golden/.*\.py$|^kernels_cu/.*\.md$|^kdtree_cupy/.*\.md$")
IGNORED = (
    "__pycache__",
    "*.pyc",
    "*.egg-info",
    ".*cache",
    ".hypothesis",
    ".ipynb_checkpoints",
    ".git",
    ".venv",
)
PROBE = """
import json, kdtree_cupy, kdtree_cupy.refs, kdtree_cupy.refs.tree_build
from importlib import metadata
from kdtree_cupy.library.sources import package_folder
from kdtree_cupy.trace import bundled_traces
from pathlib import Path
home = Path(kdtree_cupy.__file__).parent
print(json.dumps({
    "home": str(home),
    "refs": str(Path(kdtree_cupy.refs.__file__).parent),
    "version": [kdtree_cupy.__version__, metadata.version("kdtree-cupy")],
    "kernels": sorted(p.relative_to(package_folder()).as_posix() for p in package_folder().rglob("*.*")),
    "traces": sorted(p.name for p in bundled_traces()),
    "templates": sorted(p.name for p in (home / "templates").iterdir()),
}))
"""


def files_of(folder, root=ROOT):
    """Return every file below ``folder`` that belongs to the project, relative to the checkout ``root``."""
    skip = re.compile(r"__pycache__|\.pyc$|\.ipynb_checkpoints|/\.")
    paths = (p.relative_to(root).as_posix() for p in (root / folder).rglob("*") if p.is_file())
    return {path for path in paths if not skip.search(path)}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Build source archive and wheel in a copy of the checkout; return (sdist, wheel, copy)."""
    pytest.importorskip("build", reason="needs the extra 'test'")
    copy = tmp_path_factory.mktemp("build") / "checkout"
    shutil.copytree(
        ROOT,
        copy,
        ignore=shutil.ignore_patterns(*IGNORED, "study", "out", "site", "generated", "build", "dist"),
    )
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", copy / "dist", copy]
    done = subprocess.run(command, capture_output=True, text=True, cwd=copy.parent, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return next(copy.glob("dist/*.tar.gz")), next(copy.glob("dist/*.whl")), copy


@pytest.fixture(scope="module")
def wheel_python(built, tmp_path_factory):
    """Install the wheel in an environment of its own, which borrows the dependencies of this one."""
    folder = tmp_path_factory.mktemp("wheel") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "borrowed.pth").write_text("\n".join({sysconfig.get_path(k) for k in ("purelib", "platlib")}))
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps", "--no-index"]
    done = subprocess.run([*pip, built[1]], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return python


@pytest.fixture(params=["wheel", "editable"])
def installed(request, tmp_path):
    """Return (python, run): a Python that has the package, and a way to run it far from the checkout."""
    wheel = request.param == "wheel"
    python = request.getfixturevalue("wheel_python") if wheel else Path(sys.executable)

    def run(*command):
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)

    return python, run


def test_package_is_complete(installed):
    python, run = installed
    done = run(python, "-I", "-c", PROBE)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["version"] == [VERSION, VERSION]
    assert set(found["kernels"]) >= {
        p.removeprefix("kernels_cu/") for p in files_of("kernels_cu") if not NOT_INSTALLED.match(p)
    }
    assert found["traces"] == sorted(Path(p).name for p in files_of("data") if p.endswith((".npz", ".kdtr")))
    assert found["templates"] == sorted(Path(p).name for p in files_of("kdtree_cupy/templates"))


def test_wheel_and_checkout_are_not_mixed(wheel_python, tmp_path):
    done = subprocess.run(
        [wheel_python, "-I", "-c", PROBE], capture_output=True, text=True, cwd=tmp_path, check=True
    )
    found = json.loads(done.stdout)
    environment = wheel_python.parents[1]
    assert Path(found["home"]).is_relative_to(environment)
    assert Path(found["refs"]) == Path(found["home"]) / "refs"


def test_command(installed):
    python, run = installed
    for command in [python.with_name("kdtree")], [python, "-m", "kdtree_cupy"]:
        done = run(*command, "--version")
        assert (done.returncode, done.stderr) == (0, "")
        assert VERSION in done.stdout


def test_wheel_holds_the_package_and_nothing_else(built):
    names = {name for name in zipfile.ZipFile(built[1]).namelist() if ".dist-info/" not in name}
    expected = {
        target + path.removeprefix(folder)
        for folder, target in IN_WHEEL.items()
        for path in files_of(folder, built[2])
        if not NOT_INSTALLED.match(path)
    }
    assert names == expected


def test_source_archive_holds_the_checkout(built):
    with tarfile.open(built[0]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    folders = ("benchmarks", "data", "docs", "kdtree_cupy", "kernels_cu", "notebooks", "refs", "tests")
    top = {p.name for p in built[2].iterdir() if p.is_file() and p.suffix in (".md", ".py", ".toml", ".yml")}
    assert names >= top | {"LICENSE", ".ci/run"}.union(*(files_of(folder, built[2]) for folder in folders))


def test_every_package_is_listed():
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    listed = set(re.findall(r'"(kdtree_cupy[\w.]*)"', text.split("packages = [")[1].split("]")[0]))
    folders = {p.parent.relative_to(ROOT) for p in ROOT.glob("kdtree_cupy/**/__init__.py")}
    assert listed >= {".".join(folder.parts) for folder in folders}


def requirements(text):
    """Return {name: constraint} of the requirement strings in ``text``, names in one spelling."""
    found = re.findall(r'^ *(?:- )?"?([A-Za-z][\w.-]*(?:\[[\w,]+\])?) ?([<>=][^\s";]*)?', text, re.M)
    return {re.sub(r"[-_.]+", "-", name).lower(): bound for name, bound in found}


@pytest.mark.parametrize("name", ["environment.yml", "environment-conda.yml"])
def test_conda_environments_hold_what_the_project_needs(name):
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    arrays = re.findall(r"^(?:dependencies|notebook|test) = \[([^]]*)\]", project, re.M)
    assert len(arrays) == 3
    wanted = "\n".join(re.findall(r'"([^"]+)"', "".join(arrays)))
    held = requirements((ROOT / name).read_text(encoding="utf-8").split("dependencies:")[1])
    for requirement, bound in requirements(wanted).items():
        if requirement != "ruff":  # a wheel in one, spelled ruff=0.17 in the other
            found = held[{"build": "python-build"}.get(requirement, requirement)]
            assert found.startswith(bound), f"{requirement}: {found} is not {bound}"
    wheels = {"cupy-cuda12x", "cuda-toolkit[nvrtc,cudart]"}
    assert wheels <= set(held) if name == "environment.yml" else not wheels & set(held)


def test_hooks_and_tests_use_one_ruff():
    hooks = set(re.findall(r"ruff==([\d.]+)", (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")))
    assert len(hooks) == 1
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert f'"ruff=={".".join(hooks.pop().split(".")[:2])}.*"' in project
