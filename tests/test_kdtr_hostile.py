"""Broken and hostile KDTR files: each is refused with file and place, before memory is taken."""

from __future__ import annotations

import os
import tracemalloc

import numpy as np
import pytest
from kdtr_files import DATA, HOSTILE, START, entry, pack

from kdtree_cupy import kdtr
from kdtree_cupy.errors import KdtrError

BASE = pack()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "x.kdtr"


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_file_is_refused_by_name_without_memory(case, path):
    content, words, _ = HOSTILE[case]
    path.write_bytes(content)
    for mmap in (True, False):
        tracemalloc.start()
        try:
            with pytest.raises(KdtrError, match=words) as caught:
                kdtr.read(path, mmap=mmap)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert str(path) in str(caught.value)
        assert len(str(caught.value)) < len(str(path)) + 300
        assert peak < 1_000_000 + 60 * min(len(content), 500_000)


def test_hand_made_file_is_read(path):
    path.write_bytes(BASE)
    file = kdtr.read(path)
    assert file.header == {"seed": 7}
    assert file.arrays["a"].tolist() == [1, -2, 3]
    assert file.arrays["b"].tolist() == [True, False, True, True, False]


def test_truncation_at_every_byte(path):
    for size in range(len(BASE)):
        path.write_bytes(BASE[:size])
        with pytest.raises(KdtrError):
            kdtr.read(path)


def test_a_flipped_bit_at_every_byte(path):
    for at in range(len(BASE)):
        for bit in range(8) if at < 32 else (at % 8,):
            changed = bytearray(BASE)
            changed[at] ^= 1 << bit
            path.write_bytes(changed)
            with pytest.raises(KdtrError):
                kdtr.read(path)


def test_deepest_allowed_header_is_read(path):
    nested: list = []
    for _ in range(61):
        nested = [nested]
    kdtr.write(path, {}, {"x": nested})
    assert kdtr.read(path).header == {"x": nested}
    with pytest.raises(ValueError, match="nested deeper"):
        kdtr.write(path, {}, {"x": [nested]})


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"\x89PNG\r\n\x1a\n" + bytes(40), "a PNG image"),
        (b"PK\x03\x04" + bytes(40), "an .npz or other zip archive; convert it"),
        (b"\x93NUMPY\x01\x00" + bytes(40), "a single .npy array"),
        (b"\x80\x04\x95" + bytes(40), "a pickle, which is never loaded"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:", "git lfs pull"),
        (b"\x1f\x8b\x08" + bytes(40), "gzip"),
        ((40).to_bytes(8, "little") + b'{"a":' + bytes(40), "looks like .safetensors"),
        (bytes(100), "starts with zeros"),
        (b'{"a": 1}' + b" " * 40, "JSON text"),
        (b"\n<!DOCTYPE html>" + b" " * 40, "HTML"),
        (b"plain words, and more of them than a preamble takes", "starts with bytes 70 6c 61"),
        (b"\xd1KD", "truncated: 3 bytes"),
    ],
)
def test_foreign_file_is_named(path, content, words):
    path.write_bytes(content)
    with pytest.raises(KdtrError, match=words) as caught:
        kdtr.read(path)
    assert str(caught.value).startswith(f"{path}: ")


def test_missing_folder_pipe_and_unreadable(tmp_path, monkeypatch):
    with pytest.raises(KdtrError, match="no such file"):
        kdtr.read(tmp_path / "missing.kdtr")
    with pytest.raises(KdtrError, match="is a folder"):
        kdtr.read(tmp_path)
    with pytest.raises(KdtrError, match="not a usable file name"):
        kdtr.read("a\0b")
    os.mkfifo(tmp_path / "pipe.kdtr")
    with pytest.raises(KdtrError, match="pipe, socket or device"):  # and does not wait for a writer
        kdtr.read(tmp_path / "pipe.kdtr")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(KdtrError, match=r"cannot be read: .*symbolic links"):
        kdtr.read(tmp_path / "loop")
    secret = tmp_path / "secret.kdtr"
    secret.write_bytes(BASE)
    secret.chmod(0)
    if os.access(secret, os.R_OK):  # root reads everything
        monkeypatch.setattr(
            "pathlib.Path.open", lambda *_: (_ for _ in ()).throw(PermissionError(13, "denied"))
        )
    with pytest.raises(KdtrError, match="no permission"):
        kdtr.read(secret)


def test_verification_now_lazily_or_never(path):
    damaged = bytearray(BASE)
    damaged[START + 64] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(KdtrError, match="array 'b'"):
        kdtr.read(path)
    for mmap in (True, False):
        lazy = kdtr.read(path, verify="lazy", mmap=mmap)
        assert lazy.arrays["a"].tolist() == [1, -2, 3]
        with pytest.raises(KdtrError, match="array 'b'"):
            lazy.arrays["b"]
        unchecked = kdtr.read(path, verify=False, mmap=mmap)
        assert unchecked.arrays["b"].shape == (5,)
        with pytest.raises(KdtrError, match="array 'b'"):
            unchecked.verify()
    with pytest.raises(ValueError, match="verify: got 'maybe'"):
        kdtr.read(path, verify="maybe")


def test_fields_of_a_newer_minor_version_survive_a_rewrite(path, tmp_path):
    top = {"arrays": [entry("a", unit="token"), entry("b", unit="flag")], "header": {}, "index": {"k": [1]}}
    path.write_bytes(pack(top, minor=3))
    file = kdtr.read(path)
    assert file.version == (1, 3)
    assert file.extra == {"index": {"k": [1]}}
    changed = {"a": file.arrays["a"], "b": ~file.arrays["b"]}
    kdtr.write(tmp_path / "y.kdtr", changed, {"seed": 1}, like=file)
    again = kdtr.read(tmp_path / "y.kdtr")
    assert (again.version, again.header, again.extra) == ((1, 3), {"seed": 1}, file.extra)
    assert again.entries["a"].extra == {"unit": "token"}
    assert again.entries["b"].extra == {}  # what was said of the old content may not hold for the new
    kdtr.write(tmp_path / "z.kdtr", changed)
    assert kdtr.read(tmp_path / "z.kdtr").version == (1, 0)


def test_file_replaced_while_open_keeps_its_content(path):
    kdtr.write(path, {"a": np.arange(1000)})
    file = kdtr.read(path, verify="lazy")
    kdtr.write(path, {"a": np.zeros(3)})
    np.testing.assert_array_equal(file.arrays["a"], np.arange(1000))
    assert DATA[:4] == b"\1\0\0\0"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names")
def test_devices_and_pipes_are_not_replaced(tmp_path):
    """For root a rename would put a file in the place of /dev/null."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match=r"device, pipe or socket, which a file will not replace: .*pipe"):
        kdtr.write(pipe, {})
    assert pipe.is_fifo()
    assert [p.name for p in tmp_path.iterdir()] == ["pipe"]
