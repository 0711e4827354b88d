"""Where kernel text comes from: replaced text, then the user's folders, then the package's own folder.

Every quoted include is followed by hand, so a unit is *all* the project text a compiler will see; its digest
is therefore exact, and an edited header can never run an old binary.
"""

from __future__ import annotations

import hashlib
import posixpath
import re
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ..errors import CompileError
from .live_text import Read, first_text, included, read, stamp

_ARCH = re.compile(r"^//[ \t]*Arch[ \t]+(sm_\d+[af]?)\b", re.MULTILINE)
_PRINTS = re.compile(r"\bprintf\s*\(")
_HERE = Path(__file__).resolve().parents[1]


def package_folder() -> Path:
    """Return the folder of the package's own kernels: inside a wheel, or beside it in a checkout."""
    for folder in (_HERE / "kernels_cu", _HERE.parent / "kernels_cu"):
        if folder.is_dir():
            return folder
    raise FileNotFoundError(f"kernels_cu is neither in {_HERE} nor beside it: the installation is incomplete")


@dataclass(frozen=True)
class Unit:
    """One ``.cu`` file and every project header it can reach.

    Parameters
    ----------
    main : str
        Name of the ``.cu`` file, relative to its folder.
    texts : dict of str to str
        Text of ``main`` and of each header, by name relative to the source folders.
    spellings : dict of str to str
        How headers are spelled in ``#include``, and the name each spelling stands for.
    origins : dict of str to str
        What to show in messages for each name: a path, or ``"tree_build.cu (replaced)"``.
    edited : bool
        True if some text is not what the package shipped or the process first read.
    """

    main: str
    texts: Mapping[str, str]
    spellings: Mapping[str, str]
    origins: Mapping[str, str]
    edited: bool

    @cached_property
    def only_arch(self) -> str | None:
        """The one architecture the file is written for (a header line ``// Arch  sm_90a``), or None."""
        found = _ARCH.search(self.texts[self.main])
        return found[1] if found else None

    @cached_property
    def prints(self) -> bool:
        """Whether some text calls ``printf``."""
        return any(map(_PRINTS.search, self.texts.values()))

    @cached_property
    def digest(self) -> str:
        """SHA-256 over names, spellings and texts."""
        h = hashlib.sha256(self.main.encode())
        for part in (self.texts, self.spellings):
            for name in sorted(part):
                for item in (name, part[name]):
                    data = item.encode()
                    h.update(len(data).to_bytes(8, "little") + data)
        return h.hexdigest()


@dataclass(frozen=True)
class _Known:
    """A unit, and the files looked at to make it: while none has changed, it is still right."""

    unit: Unit
    texts: tuple[object, ...]
    generation: int
    looked: dict[Path, tuple[int, ...] | None] | None  # None: a file was too young to be sure

    def unchanged(self) -> bool:
        """Whether every file looked at is as it was (one ``stat`` each)."""
        return self.looked is not None and all(stamp(path) == was for path, was in self.looked.items())


class Sources:
    """Find kernel text by name.

    Parameters
    ----------
    folders : iterable of path
        The user's folders, searched in this order before the package's own.
    """

    def __init__(self, folders: Iterable[str | Path] = ()) -> None:
        self.package = package_folder()
        self.folders = tuple(Path(folder).expanduser().absolute() for folder in folders)
        for folder in self.folders:
            if not folder.is_dir():
                raise ValueError(f"source: got {folder}, wanted a folder that holds .cu files")
        self._roots = (*self.folders, self.package)
        self._units: dict[str, _Known] = {}
        self._looked: dict[Path, Read | None] = {}
        self._generation = 0  # counts replacements
        self._lock = threading.Lock()
        self.replaced: dict[str, str] = {}

    def files(self) -> list[str]:
        """Return the names of all ``.cu`` files in sight (not those in folders below), sorted."""
        names = {name for name in self.replaced if name.endswith(".cu")}
        for root in self._roots:
            names.update(path.name for path in root.glob("*.cu"))
        return sorted(names)

    def replace(self, file: str, text: str | None, *, new: bool = False) -> None:
        """Use ``text`` instead of ``file`` from now on; ``None`` undoes it; ``new=True`` adds a file."""
        name = _normal(file)
        self._generation += 1
        if text is None:
            self.replaced.pop(name, None)
            return
        if not isinstance(text, str):
            raise TypeError(f"text: got {type(text).__name__}, wanted str")
        if not new and self._find(name) is None:
            raise ValueError(f"{file}: {self._unknown()}; pass new=True to add a file")
        self.replaced[name] = text

    def origin(self, file: str) -> str:
        """Return what messages call ``file``."""
        found = self._find(_normal(file))
        return file if found is None else found[1]

    def unit(self, main: str) -> Unit:
        """Return the unit of ``main`` as the files are now.

        Raises
        ------
        ValueError
            ``main`` does not exist (the message lists what does), or is not text.
        CompileError
            One spelling in ``#include`` means two different files.
        """
        known = self._units.get(main)
        if known and known.generation == self._generation and known.unchanged():
            return known.unit
        with self._lock:
            self._looked = {}
            unit, texts = self._assemble(_normal(main), known)
            young = any(read and not read.settled for read in self._looked.values())
            looked = None if young else {path: read and read.stamp for path, read in self._looked.items()}
            self._units[main] = _Known(unit, texts, self._generation, looked)
        return unit

    def _assemble(self, main: str, known: _Known | None) -> tuple[Unit, tuple[object, ...]]:
        """Follow the includes of ``main``; return the known unit if it came out the same."""
        found = self._find(main)
        if found is None:
            raise ValueError(f"{main}: {self._unknown()}")
        texts: dict[str, str] = {}
        origins: dict[str, str] = {}
        spellings: dict[str, str] = {}
        edited = False
        todo = [(main, found)]
        while todo:
            name, (text, origin, includes, own) = todo.pop()
            texts[name], origins[name] = text, origin
            edited = edited or not own
            for spelled in includes:
                target = self._resolve(spelled, name)
                if target is None:
                    continue  # a vendor header in quotes, or one only another compiler needs
                if spellings.setdefault(spelled, target[0]) != target[0]:
                    raise CompileError(
                        f'{origin}: #include "{spelled}" means {target[0]} here and '
                        f"{spellings[spelled]} elsewhere in {main}; spell them differently"
                    )
                if target[0] not in texts and all(target[0] != name for name, _ in todo):
                    todo.append(target)
        same = (edited, *((name, id(text)) for name, text in texts.items()))
        if known and known.texts == same:
            return known.unit, same
        return Unit(main, texts, spellings, origins, edited), same

    def _resolve(self, spelled: str, includer: str):
        beside = posixpath.normpath(posixpath.join(posixpath.dirname(includer), spelled))
        for name in dict.fromkeys((beside, posixpath.normpath(spelled))):
            if not name.startswith(("../", "/")) and (found := self._find(name)):
                return name, found
        return None

    def _find(self, name: str):
        """Return (text, origin, includes, is it the package's own text), or None."""
        text = self.replaced.get(name)
        if text is not None:
            own = self._see(self.package / name)
            same = own is not None and own.text == text
            return text, f"{name} (replaced)", included(text), same
        for root in self._roots:
            path = root / name
            read = self._see(path)
            if read is not None:
                if root is self.package:
                    same = read.text == first_text(path)
                else:
                    own = self._see(self.package / name)
                    same = own is not None and own.text == read.text
                return read.text, str(path), read.includes, same
        return None

    def _see(self, path: Path) -> Read | None:
        self._looked[path] = found = read(path)
        return found

    def _unknown(self) -> str:
        return f"no such kernel file; there are {', '.join(self.files()) or 'none'}"


def _normal(file: str) -> str:
    """Return ``file`` as a name relative to the source folders."""
    name = posixpath.normpath(str(file).replace("\\", "/"))
    if name.startswith(("/", "../")) or name in (".", ".."):
        raise ValueError(
            f"file: got {file!r}, wanted a name relative to a source folder, like 'tree_build.cu'"
        )
    return name
