"""The C++ reader: compiled here, it agrees with the Python reader on good, hostile and random files."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from kdtr_files import END, HOSTILE, START, entry, pack

from kdtree_cupy import kdtr
from kdtree_cupy.errors import KdtrError
from kdtree_cupy.kdtr_format import DTYPES

HERE = Path(__file__).parent
WARNINGS = ["-std=c++17", "-O1", "-g", "-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Werror"]
SANITIZE = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]


def compiler() -> str | None:
    named = os.environ.get("CXX")
    return named or shutil.which("g++") or shutil.which("clang++")


@pytest.fixture(scope="module")
def probe(tmp_path_factory):
    """Function that reads files with the C++ reader; returns its exit code, its lines and its errors."""
    cxx = compiler()
    if cxx is None:
        pytest.skip("no C++ compiler: neither $CXX nor g++ nor clang++")
    program = tmp_path_factory.mktemp("probe") / "probe"
    command = [
        *cxx.split(),
        *WARNINGS,
        "-I",
        str(HERE.parent / "kernels_cu" / "host"),
        str(HERE / "kdtr_probe.cpp"),
    ]
    for extra in (SANITIZE, []):  # some compilers come without the sanitizers' libraries
        done = subprocess.run([*command, *extra, "-o", program], capture_output=True, text=True, check=False)
        if done.returncode == 0:
            break
    assert done.returncode == 0, done.stderr

    def run(*paths):
        done = subprocess.run([program, *paths], capture_output=True, text=True, check=False)
        assert "Sanitizer" not in done.stderr, done.stderr
        return done.returncode, [json.loads(line) for line in done.stdout.splitlines()], done.stderr

    return run


def test_every_dtype_and_shape_agrees_with_numpy(probe, tmp_path):
    rng = np.random.default_rng(0)
    arrays = {}
    for name, dtype in DTYPES.items():
        for shape in ((), (0,), (7,), (3, 0, 2), (5, 13)):
            arrays[f"{name}_{'x'.join(map(str, shape))}"] = rng.integers(0, 2, shape).astype(dtype)
    arrays["large"] = rng.integers(-(2**62), 2**62, 100_003)
    header = {"text": 'é " \\ \n \U0001f600 \ud800', "list": [1, -2.5e-300, True, None, {}, []]}
    kdtr.write(tmp_path / "x.kdtr", arrays, header)
    code, (found,), _ = probe(tmp_path / "x.kdtr")
    assert (code, found["header"]) == (0, header)
    assert list(found["arrays"]) == sorted(arrays)
    for name, (dtype, shape, total, read) in found["arrays"].items():
        array = arrays[name]
        values = (
            array if array.dtype.kind in "biu" or array.itemsize >= 4 else array.view(f"u{array.itemsize}")
        )
        assert read
        assert (dtype, tuple(shape)) == (array.dtype.name, array.shape)
        assert total == pytest.approx(float(values.sum(dtype=np.float64)), rel=1e-12)


def test_golden_references_are_read(probe):
    paths = sorted((HERE.parent / "refs" / "golden").glob("*.kdtr"))
    assert paths
    _, found, _ = probe(*paths)
    for path, item in zip(paths, found, strict=True):
        shapes = {name: (a.dtype.name, list(a.shape), True) for name, a in kdtr.read(path).arrays.items()}
        assert item["code"] == 0, path
        assert {
            name: (dtype, shape, read) for name, (dtype, shape, _, read) in item["arrays"].items()
        } == shapes


def test_newer_minor_version_is_read(probe, tmp_path):
    top = {"new": [{"x": "y"}], "arrays": [entry("a", unit={"k": 1}), entry("b")], "header": {"seed": 7}}
    (tmp_path / "x.kdtr").write_bytes(pack(top, minor=9))
    code, (found,), _ = probe(tmp_path / "x.kdtr")
    assert (code, found["minor"], found["header"]) == (0, 9, {"seed": 7})
    assert found["arrays"] == {"a": ["int32", [3], 2, True], "b": ["bool", [5], 3, True]}


def test_hostile_files_give_the_documented_code(probe, tmp_path):
    paths = []
    for i, (content, _, _) in enumerate(HOSTILE.values()):
        paths.append(tmp_path / f"{i}.kdtr")
        paths[-1].write_bytes(content)
    _, found, errors = probe(*paths)
    assert dict(zip(HOSTILE, (f["code"] for f in found), strict=True)) == {
        k: v[2] for k, v in HOSTILE.items()
    }
    assert len(errors.splitlines()) == len(HOSTILE)
    assert all(str(path) in line for path, line in zip(paths, errors.splitlines(), strict=True))


def test_missing_folder_and_foreign(probe, tmp_path):
    (tmp_path / "png.kdtr").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(40))
    (tmp_path / "empty.kdtr").write_bytes(b"")
    os.mkfifo(tmp_path / "pipe.kdtr")
    for name, code in (("missing.kdtr", 1), (".", 1), ("pipe.kdtr", 1), ("png.kdtr", 2), ("empty.kdtr", 2)):
        assert probe(tmp_path / name)[0] == code, name


def test_truncated_and_flipped_files_are_refused(probe, tmp_path):
    base, paths = pack(), []
    for at in range(END):
        changed = bytearray(base)
        changed[at] ^= 1 << at % 8
        for kind, content in (("cut", base[:at]), ("flip", bytes(changed))):
            paths.append(tmp_path / f"{kind}{at}")
            paths[-1].write_bytes(content)
    _, found, _ = probe(*paths)
    assert len(found) == 2 * END
    assert [p.name for p, f in zip(paths, found, strict=True) if f["code"] == 0] == []


@pytest.mark.parametrize("seed", range(4))
def test_both_readers_judge_mutated_headers_alike(probe, tmp_path, seed):
    rng = np.random.default_rng(seed)
    base = pack({"arrays": [entry("a", unit=[1.5, "é"]), entry("b")], "header": {"k": [True, {"x": "\\"}]}})
    end = base.rindex(b"}", 0, START) + 1
    alphabet = b'{}[]:,"\\0123456789eE+-. abtrufnls/\n\0\x80'
    verdicts, paths = [], []
    for i in range(400):
        text = bytearray(base[32:end])
        for _ in range(rng.integers(1, 4)):
            at, what = int(rng.integers(len(text))), rng.integers(4)
            if what == 0:
                del text[at : at + int(rng.integers(1, 5))]
            elif what == 1:
                text.insert(at, alphabet[rng.integers(len(alphabet))])
            elif what == 2:
                text[at] = alphabet[rng.integers(len(alphabet))]
            else:
                text[at:at] = text[at : at + int(rng.integers(1, 40))]
        paths.append(tmp_path / f"{i}.kdtr")
        paths[-1].write_bytes(pack(bytes(text)))
        try:
            verdicts.append(sorted(kdtr.read(paths[-1]).arrays))
        except KdtrError:
            verdicts.append(None)
    _, found, _ = probe(*paths)
    seen = [None if f["code"] else sorted(f["arrays"]) for f in found]
    different = [p.name for p, mine, other in zip(paths, verdicts, seen, strict=True) if mine != other]
    assert not different
    assert 0 < sum(v is not None for v in verdicts) < 400
