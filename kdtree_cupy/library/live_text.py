"""Text of files as it is now: read once, and again whenever a file may have changed."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from pathlib import Path

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)"', re.MULTILINE)
_SETTLED_NS = 2_000_000_000
"""A file younger than this when read is read again: some file systems keep times of 1 s or coarser."""


def included(text: str) -> tuple[str, ...]:
    """Return the quoted includes of a text, in order."""
    return tuple(_INCLUDE.findall(text))


@dataclass(frozen=True)
class Read:
    """A file as it was read: what ``stat`` said just before, when that was (ns), its text and includes."""

    stamp: tuple[int, ...]
    when: int
    text: str
    includes: tuple[str, ...]

    @property
    def settled(self) -> bool:
        """Whether the times would show any later change."""
        return self.when - max(self.stamp[:2]) > _SETTLED_NS


_reads: dict[Path, Read] = {}
_first: dict[Path, str] = {}  # text of each file when this process first read it


def stamp(path: Path) -> tuple[int, ...] | None:
    """Return what changes when a file does, or None if there is no such file."""
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino


def read(path: Path) -> Read | None:
    """Return the current text of ``path``, or None if there is no such file."""
    seen = stamp(path)
    if seen is None:
        return None
    known = _reads.get(path)
    if known and known.stamp == seen and known.settled:
        return known
    when = time.time_ns()
    try:
        text = path.read_bytes().decode("utf-8")
    except FileNotFoundError:  # an editor is just replacing it
        return None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 text at byte {error.start}") from None
    if known and known.text == text:
        text = known.text  # the same object: later comparisons are cheap
    _reads[path] = found = Read(seen, when, text, included(text))
    _first.setdefault(path, text)
    return found


def first_text(path: Path) -> str:
    """Return the text of a file when this process first read it."""
    return _first[path]
