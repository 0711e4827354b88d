"""The folder that holds a recording while it is made: a header and one small file per sequence.

Every file is complete or absent, and one process at a time owns the folder.
"""

from __future__ import annotations

import fcntl
import re
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Any

from . import kdtr
from .errors import KdtrError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import numpy as np

_HEADER, _LOCK = "header.kdtr", "lock"
_PART = re.compile(r"(\d{6,})\.kdtr")
_UNFINISHED = r"\.{}\.[0-9a-f]+\.tmp"  # what a killed write leaves behind


class Parts:
    """Sequences stored in a folder, in order.

    Parameters
    ----------
    folder : Path
        Created if it is missing; its parent must exist.
    header : dict
        Plain JSON; must equal that of a recording which is there.
    fixed : mapping of str to array
        Arrays that belong to the whole recording; must be equal, too.

    Raises
    ------
    KdtrError
        A part is damaged or missing, or a file is none of ours.
    ValueError
        Header or fixed arrays differ.
    OSError
        The folder cannot be written, or another process owns it.
    """

    def __init__(self, folder: Path, header: Mapping[str, Any], fixed: Mapping[str, np.ndarray]) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self._done = folder.with_name(f".{folder.name}.done")
        self._lock: IO[bytes] | None = _take(folder)
        self._layout: dict[str, tuple[str, tuple[int, ...]]] = {}
        self.count = 0
        try:
            self._open(header, fixed)
        except BaseException:
            self.release()
            raise

    @property
    def open(self) -> bool:
        """Whether sequences can be added."""
        return self._lock is not None

    def add(self, where: str, arrays: Mapping[str, np.ndarray]) -> None:
        """Store one sequence durably; ``where`` names it if its layout differs from the first one's."""
        layout = self._checked(where, arrays)
        kdtr.write(self.folder / _name(self.count), arrays)
        self._layout = layout
        self.count += 1

    def read(self) -> list[Mapping[str, np.ndarray]]:
        """Return the arrays of all sequences, memory-mapped, checksums verified."""
        return [kdtr.read(self.folder / _name(i)).arrays for i in range(self.count)]

    def remove(self) -> None:
        """End the recording: nothing can be continued from the moment on at which this begins."""
        self.folder.rename(self._done)  # one step: no half-emptied folder is ever taken for a recording
        _delete(self._done)
        self.release()

    def release(self) -> None:
        """Let another process continue."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _open(self, header: Mapping[str, Any], fixed: Mapping[str, np.ndarray]) -> None:
        _delete(self._done)  # a removal that was killed
        sweep(self.folder, ".*")
        names = {entry.name for entry in self.folder.iterdir()}
        parts = sorted((name for name in names if _PART.fullmatch(name)), key=lambda name: int(name[:-5]))
        if foreign := sorted(names - {*parts, _HEADER, _LOCK}):
            raise KdtrError(f"{self.folder / foreign[0]}: is no part of a recording; move it away")
        if not parts and _HEADER not in names:
            kdtr.write(self.folder / _HEADER, fixed, header)
            return
        self._compare(kdtr.read(self.folder / _HEADER), header, fixed)
        for index, name in enumerate(parts):
            if name != _name(index):
                raise KdtrError(f"{self.folder / _name(index)}: is missing; delete the parts after it")
            self._layout = self._checked(name, kdtr.read(self.folder / name).arrays)
            self.count += 1

    def _compare(self, file: kdtr.Kdtr, header: Mapping[str, Any], fixed: Mapping[str, np.ndarray]) -> None:
        for key in sorted({*file.header, *header}):
            old, new = file.header.get(key, _NOTHING), header.get(key, _NOTHING)
            if old != new:
                raise ValueError(
                    f"header field {key!r}: got {new!r}, but the recording in {self.folder} was started with "
                    f"{old!r}; continue with the same header, or delete that folder"
                )
        for name in sorted({*file.arrays, *fixed}):
            old_array, new_array = file.arrays.get(name), fixed.get(name)
            if old_array is None or new_array is None or not _equal(old_array, new_array):
                raise ValueError(f"{name}: differs from that of the recording in {self.folder}")

    def _checked(
        self, where: str, arrays: Mapping[str, np.ndarray]
    ) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Compare dtypes and shapes, but for the first axis, with the first sequence; return them."""
        layout = {name: (array.dtype.name, array.shape[1:]) for name, array in arrays.items()}
        known = self._layout or layout
        for name in sorted({*layout, *known}):
            got, wanted = layout.get(name), known.get(name)
            if got != wanted:
                raise ValueError(
                    f"{where}: {name}: got {_show(got)}, wanted {_show(wanted)} as in sequence 0"
                )
        return known


class _Nothing:
    def __repr__(self) -> str:
        return "nothing"


_NOTHING = _Nothing()


def _name(index: int) -> str:
    return f"{index:06d}.kdtr"


def _equal(one: np.ndarray, other: np.ndarray) -> bool:
    return one.shape == other.shape and bool((one == other).all())


def _show(layout: tuple[str, tuple[int, ...]] | None) -> str:
    return "no such array" if layout is None else f"{layout[0]} [n{''.join(f', {k}' for k in layout[1])}]"


def _take(folder: Path) -> IO[bytes]:
    """Own the folder; the system lets go of it when the process ends, however it ends."""
    handle = (folder / _LOCK).open("ab")
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        handle.close()
        raise OSError(error.errno, "another writer is recording there", str(folder)) from error
    return handle


def sweep(folder: Path, name: str) -> None:
    """Delete what killed writes of a file called ``name`` (a pattern) left in ``folder``."""
    pattern = re.compile(_UNFINISHED.format(name))
    for entry in folder.iterdir():
        if pattern.fullmatch(entry.name):
            entry.unlink()


def _delete(folder: Path) -> None:
    with suppress(FileNotFoundError):
        for entry in list(folder.iterdir()):
            entry.unlink()
        folder.rmdir()
