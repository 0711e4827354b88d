"""The cache of binaries: nothing half-written, nothing foreign, nothing corrupt is ever used."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from kdtree_cupy.library import cache as module
from kdtree_cupy.library.cache import Cache, unsafe, wanted_folder

KEY = "0" * 40


@pytest.fixture
def cache(tmp_path):
    made = Cache(tmp_path / "cache")
    made.store(KEY, ".cubin", b"binary", {"log": "text"})
    return made


def test_round_trip(cache):
    path, entry = cache.load(KEY, ".cubin")
    assert path.read_bytes() == b"binary"
    assert entry["log"] == "text"
    assert cache.reason is None


def test_modes(cache):
    assert stat.S_IMODE(cache.folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(p.stat().st_mode) for p in cache.folder.iterdir()} == {0o600}


def test_absent(cache):
    assert cache.load("1" * 40, ".cubin") is None


@pytest.mark.parametrize(
    "harm",
    [
        lambda binary, described: binary.write_bytes(b"binar"),
        lambda binary, described: binary.write_bytes(b""),
        lambda binary, described: binary.write_bytes(b"binarY"),
        lambda binary, described: binary.unlink(),
        lambda binary, described: described.unlink(),
        lambda binary, described: described.write_text(described.read_text()[:-5]),
        lambda binary, described: described.write_text("[]"),
        lambda binary, described: described.write_bytes(b"\xff\xfe"),
        lambda binary, described: described.write_text(json.dumps({"key": KEY})),
        lambda binary, described: described.write_text(described.read_text().replace(KEY, "1" * 40)),
    ],
    ids=["truncated", "empty", "changed", "no-binary", "no-json", "cut-json", "list", "not-text", "no-hash",
         "other-key"],
)  # fmt: skip
def test_harmed_entries_count_as_absent(cache, harm):
    harm(cache.folder / f"{KEY}.cubin", cache.folder / f"{KEY}.json")
    assert cache.load(KEY, ".cubin") is None
    cache.store(KEY, ".cubin", b"again", {})
    assert cache.load(KEY, ".cubin")[0].read_bytes() == b"again"


@pytest.mark.parametrize("suffix", [".cubin", ".json"])
def test_links_are_not_followed(cache, tmp_path, suffix):
    path = cache.folder / f"{KEY}{suffix}"
    moved = tmp_path / "elsewhere"
    path.rename(moved)
    path.symlink_to(moved)
    assert cache.load(KEY, ".cubin") is None


@pytest.mark.parametrize("which", [0, 1], ids=["json", "cubin"])
def test_files_of_other_users_are_not_used(cache, monkeypatch, which):
    real, calls = os.fstat, []

    def fstat(handle):
        status = real(handle)
        calls.append(handle)
        if len(calls) - 1 != which:
            return status
        return os.stat_result((*status[:4], status.st_uid + 1, *status[5:10]))

    monkeypatch.setattr(module.os, "fstat", fstat)
    assert cache.load(KEY, ".cubin") is None
    assert len(calls) == which + 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("suffix", [".cubin", ".json"])
def test_files_given_away_are_not_used(cache, suffix):
    os.chown(cache.folder / f"{KEY}{suffix}", 12345, -1)
    assert cache.load(KEY, ".cubin") is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give folders away")
def test_folder_of_another_user(tmp_path, own_tmp):
    os.chown(tmp_path, 12345, -1)
    made = Cache(tmp_path)
    assert made.folder != tmp_path
    assert "belongs to user 12345" in made.reason


@pytest.fixture
def own_tmp(tmp_path_factory, monkeypatch):
    """Give the fallback a temporary folder of the test's own."""
    folder = tmp_path_factory.mktemp("tmp")
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.mark.parametrize("kind", ["below a file", "/proc"])
def test_unwritable_folder_falls_back(tmp_path, own_tmp, kind):
    (tmp_path / "file").write_text("")
    wanted = tmp_path / "file" / "cache" if kind == "below a file" else Path("/proc/kdtree")
    made = Cache(wanted)
    assert made.folder.parent == own_tmp
    assert stat.S_IMODE(made.folder.stat().st_mode) == 0o700
    assert str(wanted) in made.reason
    assert "cannot be written" in made.reason
    made.store(KEY, ".cubin", b"x", {})
    assert Cache(wanted).load(KEY, ".cubin"), "the fallback is found again"


def test_folder_that_others_can_write_is_refused(tmp_path, own_tmp):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    made = Cache(tmp_path / "open")
    assert made.folder.parent == own_tmp
    assert "chmod go-w" in made.reason


def test_planted_fallback_is_refused(own_tmp, tmp_path):
    (tmp_path / "file").write_text("")
    planted = own_tmp / f"kdtree_cupy-{os.geteuid()}"
    planted.symlink_to(tmp_path)  # /tmp is open to all: somebody was there first
    made = Cache(tmp_path / "file" / "cache")
    assert made.folder not in (planted, tmp_path)
    assert stat.S_IMODE(made.folder.stat().st_mode) == 0o700


def test_folder_that_fails_later(cache, own_tmp, monkeypatch):
    real = module.write_atomic

    def full(path, data):
        if path.parent == cache.wanted:
            raise OSError(28, "No space left on device")
        real(path, data)

    monkeypatch.setattr(module, "write_atomic", full)
    cache.store("2" * 40, ".cubin", b"x", {})
    assert "No space left" in cache.reason
    assert cache.load("2" * 40, ".cubin")


def test_failed_write_leaves_nothing(tmp_path, monkeypatch):
    def fail(self, target):
        raise OSError("no")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="no"):
        module.write_atomic(tmp_path / "x", b"data")
    assert list(tmp_path.iterdir()) == []


def test_the_longest_unused_entries_go_first(cache, monkeypatch):
    for i in range(1, 8):
        key = str(i) * 40
        cache.store(key, ".so", b"x", {})
        os.utime(cache.folder / f"{key}.json", (i, i))
    os.utime(cache.folder / f"{KEY}.json", (0, 0))
    assert cache.load(KEY, ".cubin"), "used just now"
    monkeypatch.setattr(module, "MOST_ENTRIES", 8)
    cache.store("8" * 40, ".so", b"x", {})
    assert [i for i in range(9) if not (cache.folder / f"{str(i) * 40}.json").exists()] == [1, 2]
    assert not (cache.folder / f"{'1' * 40}.so").exists()
    assert cache.load(KEY, ".cubin")


def test_where_the_folder_is(monkeypatch, tmp_path):
    monkeypatch.setenv("KDTREE_CACHE", str(tmp_path / "a"))
    assert wanted_folder() == tmp_path / "a"
    monkeypatch.delenv("KDTREE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert wanted_folder() == tmp_path / "kdtree_cupy"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert wanted_folder() == tmp_path / ".cache" / "kdtree_cupy"


def test_unsafe_says_nothing_of_a_good_folder(tmp_path):
    assert unsafe(tmp_path / "new") is None
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700


def test_home_on_a_read_only_mount(tmp_path):
    """The real thing, where the kernel lets us mount."""
    (tmp_path / "home").mkdir()
    code = (
        "from kdtree_cupy.library.cache import Cache; c = Cache(); c.store('0' * 40, '.so', b'x', {}); "
        "assert c.load('0' * 40, '.so'); print(c.reason)"
    )
    script = f'mount -t tmpfs -o ro none {tmp_path}/home && exec {sys.executable} -c "{code}"'
    environment = {k: v for k, v in os.environ.items() if k not in ("KDTREE_CACHE", "XDG_CACHE_HOME")}
    environment |= {"HOME": str(tmp_path / "home"), "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", script], capture_output=True, text=True, env=environment, check=False
    )
    if "unshare" in done.stderr or "mount" in done.stderr:
        pytest.skip(f"mounting is not allowed here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    assert "Read-only file system" in done.stdout
