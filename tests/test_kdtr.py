"""KDTR files: exact round trips, the bytes of the format, and writes that are whole or absent."""

from __future__ import annotations

import errno
import os
import re
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from kdtree_cupy import files, kdtr
from kdtree_cupy.kdtr_format import DTYPES


@pytest.fixture
def path(tmp_path):
    return tmp_path / "x.kdtr"


@st.composite
def arrays(draw):
    """Any dtype, shape (empty and 0-d too), byte order and memory order, with any bits inside."""
    dtype = DTYPES[draw(st.sampled_from(list(DTYPES)))]
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4))
    count = int(np.prod(shape)) * dtype.itemsize
    raw = np.frombuffer(draw(st.binary(min_size=count, max_size=count)), np.uint8)
    raw = raw % 2 if dtype.kind == "b" else raw
    array = raw.view(dtype).reshape(shape)
    if draw(st.booleans()):
        array = array.astype(dtype.newbyteorder(">"))
    step = draw(st.sampled_from([None, -1, 2]))
    return array.T[..., ::step] if array.ndim and draw(st.booleans()) else array


@given(content=st.dictionaries(st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,8}", fullmatch=True), arrays()))
def test_round_trip_is_exact_to_the_bit(path, content):
    kdtr.write(path, content, {"n": len(content)})
    for mmap in (True, False):
        file = kdtr.read(path, mmap=mmap)
        assert list(file.arrays) == sorted(content)
        for name, wanted in content.items():
            got = file.arrays[name]
            assert type(got) is np.ndarray
            assert (got.shape, got.dtype) == (wanted.shape, wanted.dtype.newbyteorder("="))
            assert got.tobytes() == np.asarray(wanted, got.dtype).tobytes()
            assert got.flags.c_contiguous
            assert not got.flags.writeable
            assert not got.size or got.ctypes.data % 64 == 0
    again = path.with_name("again.kdtr")
    kdtr.write(again, dict(reversed(list(file.arrays.items()))), file.header, like=file)
    assert again.read_bytes() == path.read_bytes()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)


@given(header=st.dictionaries(st.text(), json_values, max_size=5))
def test_header_round_trip(path, header):
    kdtr.write(path, {}, header)
    assert kdtr.read(path).header == header


def test_bytes_of_the_format(path):
    kdtr.write(path, {"b": np.array([True]), "a": np.arange(2, dtype=">i2").reshape(2, 1)}, {"k": "é"})
    text = (
        b'{"arrays":['
        b'{"bytes":4,"crc32":%d,"dtype":"int16","name":"a","offset":256,"shape":[2,1]},'
        b'{"bytes":1,"crc32":%d,"dtype":"bool","name":"b","offset":320,"shape":[1]}'
        b'],"header":{"k":"\\u00e9"}}'
    ) % (zlib.crc32(b"\0\0\1\0"), zlib.crc32(b"\1"))
    start = b"\xd1KDTR\r\n\x1a" + struct.pack("<HHIQI", 1, 0, len(text), 384, 0)
    start += struct.pack("<I", zlib.crc32(start + text))
    wanted = (start + text).ljust(256, b"\0") + b"\0\0\1\0".ljust(64, b"\0") + b"\1".ljust(64, b"\0")
    assert path.read_bytes() == wanted


def test_the_documented_file_is_what_is_written(path):
    document = (Path(__file__).parent.parent / "docs" / "kdtr.md").read_text("utf-8")
    dump = re.findall(r"^[0-9a-f]{4}  ((?:[0-9a-f]{2} ){16}) ", document, re.MULTILINE)
    kdtr.write(path, {"ids": np.int16([[5], [-6]])}, {"seed": 7})
    assert path.read_bytes() == bytes.fromhex("".join(dump))


def test_many_arrays_push_each_other(path):
    content = {
        f"a{i}": np.full(i, i % 251, np.uint8) for i in range(600)
    }  # offsets grow digits as the header grows
    kdtr.write(path, content)
    found = kdtr.read(path).arrays
    assert all((found[name] == array).all() for name, array in content.items())


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.array([object()]), "dtype object"),
        (np.array(["text"]), "dtype <U4"),
        (np.array([b"text"]), r"dtype \|S4"),
        (np.complex64([1j]), "dtype complex64"),
        (np.longdouble([1]), "dtype (float128|longdouble)"),
        (np.zeros(1, [("x", "i4")]), r"dtype \[\("),
        (np.array(["2020-01-01"], "datetime64[D]"), r"dtype datetime64\[D\]"),
        (np.ma.masked_array([1], [True]), "got a masked array"),
        ([1, 2], "got list"),
        (3, "got int"),
        (None, "got NoneType"),
    ],
)
def test_unsupported_array_is_named(path, array, words):
    with pytest.raises(TypeError, match=f"array 'ids': {words}"):
        kdtr.write(path, {"ok": np.zeros(1), "ids": array})
    assert not path.exists()


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../a", "a\\b", "a b", "-a", "é", "x" * 129, "a\n"])
def test_bad_array_name(path, name):
    with pytest.raises(ValueError, match="array name"):
        kdtr.write(path, {name: np.zeros(1)})


@pytest.mark.parametrize(
    ("header", "error", "words"),
    [
        ({"a": {"b": [1, float("nan")]}}, ValueError, r"header\['a'\]\['b'\]\[1\]: nan is not JSON"),
        ({"a": float("-inf")}, ValueError, "-inf is not JSON"),
        ({1: 2}, TypeError, "header: key 1 is int"),
        ({"a": {None: 2}}, TypeError, r"header\['a'\]: key None"),
        ({"a": np.float32(1)}, TypeError, r"header\['a'\]: got float32"),
        ({"a": {1, 2}}, TypeError, "got set"),
        ({"a": b"x"}, TypeError, "got bytes"),
        ({"a": "x" * (4 << 20)}, ValueError, "header: 4194[0-9]+ bytes of JSON, wanted at most 4194304"),
        ([1], TypeError, "header: got list"),
    ],
)
def test_bad_header(path, header, error, words):
    with pytest.raises(error, match=words):
        kdtr.write(path, {}, header)
    assert not path.exists()


def test_other_bad_arguments(path):
    with pytest.raises(TypeError, match="arrays: got list"):
        kdtr.write(path, [np.zeros(1)])
    with pytest.raises(TypeError, match="arrays: name 1 is int"):
        kdtr.write(path, {1: np.zeros(1)})
    with pytest.raises(ValueError, match="array 'a': a bool holds"):
        kdtr.write(path, {"a": np.uint8([0, 2]).view(bool)})
    cycle: dict = {}
    cycle["x"] = cycle
    with pytest.raises(ValueError, match="nested deeper"):
        kdtr.write(path, {}, cycle)


class Failing:
    """A file whose method ``which`` raises ``error`` at call ``at``."""

    def __init__(self, handle, error, at, which):
        self.handle, self.error, self.at, self.which, self.calls = handle, error, at, which, 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.handle.close()

    def __getattr__(self, name):
        method = getattr(self.handle, name)

        def call(*args):
            self.calls += name == self.which
            if self.calls > self.at:
                raise self.error
            return method(*args)

        return call


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt(), MemoryError()]
)
@pytest.mark.parametrize(
    ("which", "at"), [("write", 0), ("write", 1), ("write", 4), ("flush", 0), ("fileno", 0)]
)
@pytest.mark.parametrize("exists", [False, True])
def test_failed_write_leaves_nothing(path, monkeypatch, error, which, at, exists):
    if exists:
        path.write_bytes(b"before")
    real = os.fdopen
    monkeypatch.setattr(files.os, "fdopen", lambda *args: Failing(real(*args), error, at, which))
    with pytest.raises(type(error)) as caught:
        kdtr.write(path, {"a": np.arange(100), "b": np.arange(5)})
    if isinstance(error, OSError):
        assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(path))
    assert [p.name for p in path.parent.iterdir()] == (["x.kdtr"] if exists else [])
    assert not exists or path.read_bytes() == b"before"


@pytest.mark.parametrize("call", ["os.fsync", "pathlib.Path.replace"])
def test_failure_at_the_end_leaves_nothing(path, monkeypatch, call):
    def fail(*_):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(call, fail)
    with pytest.raises(OSError, match="Input/output error"):
        kdtr.write(path, {"a": np.arange(100)})
    assert not list(path.parent.iterdir())


def test_real_limit_on_file_size(path):
    code = (
        "import resource, signal, sys, numpy as np\n"
        "from kdtree_cupy import kdtr\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "kdtr.write(sys.argv[1], {'a': np.arange(100_000)})\n"
    )
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=False)
    assert "File too large" in done.stderr.splitlines()[-1]
    assert str(path) in done.stderr.splitlines()[-1]
    assert not list(path.parent.iterdir())


def test_where_a_file_may_go(path, tmp_path):
    with pytest.raises(FileNotFoundError, match="missing"):
        kdtr.write(tmp_path / "missing" / "x.kdtr", {})
    with pytest.raises(IsADirectoryError):
        kdtr.write(tmp_path, {})
    kdtr.write(path, {"a": np.zeros(1)})
    link = tmp_path / "link.kdtr"
    link.symlink_to(path)
    kdtr.write(link, {"a": np.ones(1)})
    assert (link.is_symlink(), kdtr.read(path).arrays["a"].item()) == (True, 1)
    umask = os.umask(0o027)
    try:
        kdtr.write(tmp_path / "mode.kdtr", {})
    finally:
        os.umask(umask)
    assert (tmp_path / "mode.kdtr").stat().st_mode & 0o777 == 0o640
