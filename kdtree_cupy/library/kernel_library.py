"""The class that finds, compiles, checks and launches kernels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import BackendError
from . import arrays, cuda, make, printed, rehearse
from .compiler import NOTHING, Compiler
from .resolve import resolve

if TYPE_CHECKING:
    from .kernel import Kernel
    from .sources import Unit

BACKENDS = ("auto", "cuda", "host", "numpy")
_KEPT = 128
"""Kernels a library keeps ready."""


@dataclass
class _Loaded:
    """A kernel, the unit it was made from, and whether that has passed its first run if it was edited."""

    unit: Unit
    kernel: Kernel
    passed: bool = False


class KernelLibrary(Compiler):
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
    compilation are kept on disk under a hash of everything that went in.  ``host_options`` is a dict to be
    filled with ``seed`` (order of threads), ``os_threads``, ``timeout`` or ``sanitize`` for runs on the CPU.

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
        defines: Mapping[str, Any] = NOTHING,
    ) -> None:
        if backend not in BACKENDS:
            raise ValueError(f"backend: got {backend!r}, wanted one of {', '.join(BACKENDS)}")
        super().__init__(source, arch, defines)
        self.backend = backend
        self.host_options: dict[str, Any] = {}
        self.checks_edits = True
        self.passed: set[Any] = set()  # edited kernels that have run in the worker
        self._kernels: dict[Any, _Loaded] = {}

    def __repr__(self) -> str:
        folders = ", ".join(map(str, self.sources.folders)) or "package"
        return f"KernelLibrary(source={folders}, backend={self.backend!r}, arch={self.arch!r})"

    @property
    def loaded_files(self) -> frozenset[str]:
        """Names of the ``.cu`` files of which a kernel has been loaded to run."""
        return frozenset(key[0] for key in self._kernels)

    def kernel(
        self,
        file: str,
        name: str,
        *,
        backend: str,
        device: int | None = None,
        defines: Mapping[str, Any] = NOTHING,
    ) -> Kernel:
        """Return one kernel, compiled and loaded; calling it checks arguments and launches.

        Parameters
        ----------
        file, name : str
            Such as ``"tree_build.cu"``, ``"tree_build_v2"``.
        backend : {"cuda", "host"}
            Where it runs.
        device : int or None
            CUDA ordinal (default 0); None for the host.
        defines : mapping
            Macros on top of the library's own.

        Raises
        ------
        CompileError, BackendError
            As for :meth:`compile`; also if there is no device, or no C++ compiler.
        ValueError
            No such file, or no such kernel in it (the message lists those there are).
        """
        return self._load(file, name, backend, device, defines).kernel

    def _load(
        self, file: str, name: str, backend: str, device: int | None, defines: Mapping[str, Any]
    ) -> _Loaded:
        unit = self.sources.unit(file)
        device = (device or 0) if backend == "cuda" else None
        key = (file, name, backend, device, bool(self.host_options.get("sanitize")), tuple(defines.items()))
        known = self._kernels.get(key)
        if known and known.unit is unit:
            return known
        build = make.cuda_kernel if backend == "cuda" else make.host_kernel
        loaded = _Loaded(unit, build(self, unit, name, device, self.merged(defines)))
        self._kernels[key] = loaded
        if len(self._kernels) > _KEPT:  # a sweep over macros: the oldest goes
            self._kernels.pop(next(iter(self._kernels)), None)
        return loaded

    def launch(
        self,
        file: str,
        kernel: str,
        grid: Any,
        block: Any,
        args: Sequence[Any],
        *,
        shared_bytes: int = 0,
        defines: Mapping[str, Any] = NOTHING,
        backend: str | None = None,
        device: int | None = None,
        early: bool = False,
    ) -> None:
        """Find, compile if need be, check and launch a kernel; does not wait for the device.

        Parameters
        ----------
        file, kernel : str
            Such as ``"tree_build.cu"``, ``"tree_build_v2"``.
        grid, block : int or tuple of up to three ints
            Blocks, and threads per block.  A grid with a 0 launches nothing.
        args : sequence
            Arrays, numpy or Python scalars, or None for a null pointer, in the kernel's order.
        shared_bytes : int
            Dynamic shared memory per block.
        defines : mapping
            Macros on top of the library's own.
        backend, device
            Where to run; by default where the arrays are.
        early : bool
            The kernel waits by itself for the one before it in the stream (``griddepcontrol.wait``), so it
            may be started before that has ended.  Means nothing on the host and before sm_90.

        Raises
        ------
        TypeError, ValueError
            A wrong argument: the message names it, what it got and what it wants.
        CompileError, BackendError
            As for :meth:`kernel`.
        KernelError
            The kernel was edited and its first run, in the worker process, failed.

        Notes
        -----
        An edited kernel first runs in a worker process: against its stage's reference if there is one,
        else on copies of ``args``; that first run waits for the device.
        """
        if backend is None:
            found = {f"argument {i}": a for i, a in enumerate(args) if arrays.handle(a) is not None}
            run = resolve(self, found)
            backend, device = run.backend, run.device
        if backend == "numpy":
            raise BackendError(f"{file}: {kernel}: backend 'numpy' runs references, not kernels")
        loaded = self._load(file, kernel, backend, device, defines)
        ready = loaded.kernel.prepare(grid, block, args, shared_bytes)
        ready.early = early and backend == "cuda"
        if loaded.unit.edited and self.checks_edits and not loaded.passed:
            rehearse.first_run(self, loaded.unit, loaded.kernel, ready, defines)
            loaded.passed = True
        if printed.sink is not None and loaded.unit.prints:
            with printed.forwarded(loaded.kernel.device):
                loaded.kernel.start(ready)
        else:
            loaded.kernel.start(ready)
        if shared_bytes:
            key = (loaded.unit.main, kernel)
            self.requested[key] = max(shared_bytes, self.requested.get(key, 0))

    def raw_module(self, file: str, *, device: int = 0, defines: Mapping[str, Any] = NOTHING) -> Any:
        """Return ``file`` as a ``cupy.RawModule`` on a device, for use without this library's checks.

        Raises as :meth:`kernel` does.
        """
        return make.load_module(self, self.sources.unit(file), device, self.merged(defines))[0]

    def empty(self, shape: int | tuple[int, ...], dtype: str, *, like: Any) -> Any:
        """Return a new uninitialised array of the kind and in the place of ``like``."""
        found = arrays.handle(like)
        if found is None:
            raise TypeError(f"like: got {type(like).__name__}, wanted an array")
        return arrays.empty(shape, dtype, found.kind, found.device)

    def clear(self) -> None:
        """Forget compiled and loaded kernels, CuPy's memo of modules included; the disk cache stays.

        CuPy never unloads a module by itself, so a long session of edits grows; this frees it.  CUDA graphs
        that hold such kernels must not be launched afterwards.
        """
        self._kernels.clear()
        cuda.MODULES.clear()
