"""A folder of compiled kernels, named by the hash of everything that went into them.

Each entry is a binary (``<key>.cubin`` or ``<key>.so``) and ``<key>.json`` that describes it and holds the
binary's own SHA-256.  A binary is code: it is used only if the folder and both files belong to this user,
nobody else can write the folder, and the hash fits.  Anything else counts as absent and is made again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

MOST_ENTRIES = 2000
"""Kernels kept in a folder: far more than a day of edits makes, some hundred MiB."""


def wanted_folder() -> Path:
    """Return the folder the user wants: ``$KDTREE_CACHE``, else ``kdtree_cupy`` in the XDG cache folder."""
    if own := os.environ.get("KDTREE_CACHE"):
        return Path(own).expanduser()
    if xdg := os.environ.get("XDG_CACHE_HOME"):
        return Path(xdg) / "kdtree_cupy"
    try:
        return Path.home() / ".cache" / "kdtree_cupy"
    except RuntimeError:  # no HOME and no entry in the password file
        return Path(tempfile.gettempdir()) / f"kdtree_cupy-{os.geteuid()}"


def unsafe(folder: Path) -> str | None:
    """Return why ``folder`` may not hold our binaries, or None; creates it with mode 0700 if it is absent."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        status = folder.lstat()
        if not stat.S_ISDIR(status.st_mode):
            return f"{folder} is not a folder"
        if status.st_uid != os.geteuid():
            return f"{folder} belongs to user {status.st_uid}, not to user {os.geteuid()}"
        if status.st_mode & 0o022:
            return f"others can write {folder} (mode {status.st_mode & 0o777:o}); chmod go-w it"
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        return f"{folder} cannot be written: {error.strerror or error}"
    return None


class Cache:
    """Content-addressed store of binaries.

    Parameters
    ----------
    folder : path, optional
        Where to keep entries; default :func:`wanted_folder`.  If it is unsafe or cannot be written, a folder
        of mode 0700 in the temporary folder is used and ``reason`` says why.
    """

    def __init__(self, folder: str | Path | None = None) -> None:
        self.wanted = Path(folder).expanduser() if folder is not None else wanted_folder()
        self.reason: str | None = None
        self._folder: Path | None = None

    @property
    def folder(self) -> Path:
        """The folder in use, found and created at first need."""
        if self._folder is None:
            self.reason = unsafe(self.wanted)
            self._folder = self.wanted if self.reason is None else self._fallback()
        return self._folder

    def _fallback(self) -> Path:
        shared = Path(tempfile.gettempdir()) / f"kdtree_cupy-{os.geteuid()}"
        if unsafe(shared) is None:
            return shared
        return Path(tempfile.mkdtemp(prefix="kdtree_cupy-"))  # mkdtemp makes it 0700

    def load(self, key: str, suffix: str) -> tuple[Path, dict[str, Any]] | None:
        """Return the path and description of an entry, or None if absent, foreign, truncated or corrupt."""
        path = self.folder / f"{key}{suffix}"
        try:
            described = _own_bytes(self.folder / f"{key}.json")
            binary = _own_bytes(path)
        except OSError:
            return None
        try:
            entry = json.loads(described)
        except ValueError:
            return None
        if not isinstance(entry, dict) or entry.get("key") != key:
            return None
        if entry.get("sha256") != hashlib.sha256(binary).hexdigest():
            return None
        with contextlib.suppress(OSError):
            os.utime(self.folder / f"{key}.json")  # used now: the last to be dropped
        return path, entry

    def store(self, key: str, suffix: str, binary: bytes, entry: Mapping[str, Any]) -> Path:
        """Write an entry so that no reader ever sees half of it; return the path of the binary."""
        entry = {**entry, "key": key, "sha256": hashlib.sha256(binary).hexdigest()}
        described = json.dumps(entry, indent=1, sort_keys=True).encode()
        try:
            return self._write(key, suffix, binary, described)
        except OSError as error:  # the disk filled up, or the folder went away or read-only meanwhile
            if self.folder != self.wanted:
                raise
            self.reason = f"{self.wanted} cannot be written: {error.strerror or error}"
            self._folder = self._fallback()
            return self._write(key, suffix, binary, described)

    def _write(self, key: str, suffix: str, binary: bytes, described: bytes) -> Path:
        path = self.folder / f"{key}{suffix}"
        write_atomic(path, binary)
        write_atomic(self.folder / f"{key}.json", described)
        self._prune()
        return path

    def _prune(self) -> None:
        """Drop the quarter used longest ago once there are too many entries."""
        entries = list(self.folder.glob("*.json"))
        if len(entries) <= MOST_ENTRIES:
            return
        with contextlib.suppress(FileNotFoundError):  # another process is pruning, too
            entries.sort(key=lambda path: path.stat().st_mtime_ns)
            for path in entries[: len(entries) // 4]:
                for suffix in (".json", ".cubin", ".so"):
                    path.with_suffix(suffix).unlink(missing_ok=True)


def write_atomic(path: Path, data: bytes) -> None:
    """Write ``data`` beside ``path`` and rename it into place (mode 0600)."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _own_bytes(path: Path) -> bytes:
    """Return the content of a regular file of this user; OSError for anything else."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as file:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            raise PermissionError(f"{path} is not a regular file of user {os.geteuid()}")
        return file.read()
