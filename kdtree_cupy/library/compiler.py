"""Find kernels and compile them: everything a machine without a GPU can do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from . import make, nvrtc, report
from .cache import Cache
from .compiled import Compiled, compile_unit, define_texts
from .sources import Sources

NOTHING: Mapping[str, Any] = MappingProxyType({})


class Compiler:
    """Source folders, macros, architecture and cache of a :class:`KernelLibrary`, which documents them."""

    def __init__(
        self, source: str | Path | Iterable[str | Path] | None, arch: str, defines: Mapping[str, Any]
    ) -> None:
        if arch != "auto":
            nvrtc.split_arch(arch)
        folders = () if source is None else (source,) if isinstance(source, str | Path) else tuple(source)
        self.sources = Sources(folders)
        self.arch = arch
        self.defines: Mapping[str, str] = MappingProxyType(define_texts(defines))
        self.cache = Cache()
        self.requested: dict[tuple[str, str], int] = {}  # largest dynamic shared memory launched so far

    def files(self) -> list[str]:
        """Return the names of all ``.cu`` files in sight."""
        return self.sources.files()

    def replace(self, file: str, text: str | None, *, new: bool = False) -> None:
        """Use ``text`` in place of ``file`` (a ``.cu`` or a header) from the next call on.

        Parameters
        ----------
        file : str
            Name relative to the source folders, such as ``"verify_attn.cu"``.
        text : str or None
            The new text; None goes back to the file.
        new : bool
            Allow a name that no folder has.

        Raises
        ------
        ValueError
            No folder has such a file and ``new`` is False (the message lists those there are).
        TypeError
            ``text`` is not a str.
        """
        self.sources.replace(file, text, new=new)

    def compile(
        self, file: str, *, arch: str | None = None, defines: Mapping[str, Any] = NOTHING
    ) -> Compiled:
        """Compile ``file`` with NVRTC, or take it from the cache; needs no GPU.

        Parameters
        ----------
        file : str
            Such as ``"tree_build.cu"``.
        arch : str, optional
            Instead of the library's own.
        defines : mapping
            Macros on top of the library's own.

        Raises
        ------
        CompileError
            The compiler refused it; the message starts with the user's file and line.
        BackendError
            There is no NVRTC, or it cannot compile for ``arch``.
        ValueError
            No such file.
        """
        unit, chosen = self.sources.unit(file), nvrtc.choose()
        wanted = self.arch if arch is None else arch
        if wanted == "auto":
            wanted = unit.only_arch or make.automatic_arch(chosen)
        wanted = make.require_arch(unit, wanted)
        return compile_unit(unit, chosen, wanted, self.merged(defines), self.cache)

    def report(
        self,
        files: Iterable[str] | None = None,
        *,
        arch: str | None = None,
        defines: Mapping[str, Any] = NOTHING,
    ) -> report.Report:
        """Return registers, spills, stack, shared memory and estimated occupancy of every kernel.

        Needs no GPU, and says the same for kernels that come from the cache.

        Parameters
        ----------
        files : iterable of str, optional
            Default: every ``.cu`` file in sight, but for those written for another chip than ``arch``.
        arch : str, optional
            Instead of the library's own.
        defines : mapping
            Macros on top of the library's own.

        Raises
        ------
        CompileError, BackendError, ValueError
            As for :meth:`compile`.
        """
        rows = []
        wanted = self.arch if arch is None else arch
        for file in self.files() if files is None else files:
            elsewhere = wanted != "auto" and make.fitting_arch(self.sources.unit(file), wanted) is None
            if files is None and elsewhere:
                continue
            compiled = self.compile(file, arch=arch, defines=defines)
            lines = report.launch_lines(self.sources.unit(file), self.merged(defines), compiled.kernels)
            seen = {name: most for (where, name), most in self.requested.items() if where == compiled.file}
            rows += report.rows(compiled, lines, seen)
        return report.Report(tuple(rows))

    def merged(self, defines: Mapping[str, Any]) -> Mapping[str, str]:
        """Return the library's macros with ``defines`` on top."""
        return define_texts(self.defines, defines) if defines else self.defines
