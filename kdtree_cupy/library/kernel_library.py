"""The class that finds, compiles, checks and launches kernels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from . import nvrtc, report
from .cache import Cache
from .compiled import Compiled, compile_unit, define_texts
from .driver import driver
from .sources import Sources

if TYPE_CHECKING:
    from .report import Report

BACKENDS = ("auto", "cuda", "host", "numpy")
HOME_ARCH = "sm_120"
"""Compiled for where there is no device."""

_NOTHING: Mapping[str, Any] = MappingProxyType({})


class KernelLibrary:
    """Kernels by file and name, from the package or from the user, on a GPU, on the CPU, or as references.

    Parameters
    ----------
    source : path or sequence of paths, optional
        The user's folders of ``.cu`` and ``.cuh`` files, searched in order before the package's own.
    backend : {"auto", "cuda", "host", "numpy"}
        Where kernels run.  "auto" follows the arrays of each call: CuPy and CUDA torch arrays go to
        "cuda"; numpy and CPU torch arrays to "host" if there is a C++ compiler, else to "numpy".
    arch : str
        Architecture to compile for, such as ``"sm_120"`` or ``"sm_120a"``.  "auto": the capability of the
        device that holds the arrays, or ``sm_120`` where there is no device.
    defines : mapping of str to bool, int, float or str
        Macros for every compilation, over those of :mod:`kdtree_cupy.limits` (``KD_MAX_NODES``, ...).

    Raises
    ------
    ValueError
        An unknown backend, a malformed architecture, a source that is not a folder, a bad macro name.
    TypeError
        A macro's value is of another type.

    Notes
    -----
    Files are looked at again at every call, so an edit (of a header too) is live at the next one.  Results of
    compilation are kept on disk under a hash of everything that went in.

    Examples
    --------
    >>> from kdtree_cupy.library import KernelLibrary
    >>> library = KernelLibrary(defines={"KD_BLOCK": 128})
    >>> library.defines["KD_BLOCK"], library.backend
    ('128', 'auto')
    """

    def __init__(
        self,
        source: str | Path | Iterable[str | Path] | None = None,
        backend: str = "auto",
        arch: str = "auto",
        defines: Mapping[str, Any] = _NOTHING,
    ) -> None:
        if backend not in BACKENDS:
            raise ValueError(f"backend: got {backend!r}, wanted one of {', '.join(BACKENDS)}")
        if arch != "auto":
            nvrtc.split_arch(arch)
        folders = () if source is None else (source,) if isinstance(source, str | Path) else tuple(source)
        self.sources = Sources(folders)
        self.backend = backend
        self.arch = arch
        self.defines: Mapping[str, str] = MappingProxyType(define_texts(defines))
        self.cache = Cache()
        self._requested: dict[tuple[str, str], int] = {}  # largest dynamic shared memory launched

    def __repr__(self) -> str:
        folders = ", ".join(map(str, self.sources.folders)) or "package"
        return f"KernelLibrary(source={folders}, backend={self.backend!r}, arch={self.arch!r})"

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
        self, file: str, *, arch: str | None = None, defines: Mapping[str, Any] = _NOTHING
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
        chosen = nvrtc.choose()
        wanted = self.arch if arch is None else arch
        arch = automatic_arch(chosen) if wanted == "auto" else wanted
        return compile_unit(self.sources.unit(file), chosen, arch, self._merged(defines), self.cache)

    def report(
        self,
        files: Iterable[str] | None = None,
        *,
        arch: str | None = None,
        defines: Mapping[str, Any] = _NOTHING,
    ) -> Report:
        """Return registers, spills, stack, shared memory and estimated occupancy of every kernel.

        Needs no GPU, and says the same for kernels that come from the cache.

        Parameters
        ----------
        files : iterable of str, optional
            Default: every ``.cu`` file in sight.
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
        for file in self.files() if files is None else files:
            compiled = self.compile(file, arch=arch, defines=defines)
            lines = report.launch_lines(self.sources.unit(file), self._merged(defines))
            seen = {name: most for (where, name), most in self._requested.items() if where == compiled.file}
            rows += report.rows(compiled, lines, seen)
        return report.Report(tuple(rows))

    def _merged(self, defines: Mapping[str, Any]) -> Mapping[str, str]:
        return define_texts(self.defines, defines) if defines else self.defines


def automatic_arch(compiler: nvrtc.Nvrtc, capability: tuple[int, int] | None = None) -> str:
    """Return the architecture for a device: its own, or the newest older one of the same major number.

    A cubin runs on every device of the same major and no smaller minor capability, so an NVRTC that does not
    know ``sm_121`` yet still serves it with ``sm_120``.

    Parameters
    ----------
    compiler : Nvrtc
        The compiler to be used.
    capability : tuple of int, optional
        Such as ``(12, 0)``; default: the first device's, or that of ``sm_120`` where there is none.
    """
    if capability is None:
        devices = driver().devices
        if not devices:
            return HOME_ARCH
        capability = devices[0].capability
    major, minor = capability
    fitting = [arch for arch in compiler.archs if arch // 10 == major and arch % 10 <= minor]
    return f"sm_{max(fitting)}" if fitting else f"sm_{major}{minor}"
