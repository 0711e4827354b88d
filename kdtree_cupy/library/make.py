"""Turn a unit of source into a kernel that can be called, on a device or on the host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..errors import BackendError
from . import cuda, host, nvrtc, signature
from .compiled import Compiled, compile_unit
from .driver import driver
from .kernel import Kernel
from .launch import Slot, slots
from .report import shared_limit
from .sources import Unit

if TYPE_CHECKING:
    from .kernel_library import KernelLibrary

HOME_ARCH = "sm_120"
"""Compiled for where there is no device."""


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


def fitting_arch(unit: Unit, arch: str) -> str | None:
    """Return what to compile ``unit`` for when ``arch`` is wanted; None if it is for another chip.

    A file written for ``sm_90a`` is compiled for that when ``sm_90`` is wanted: a device of capability 9.0
    runs both.
    """
    if unit.only_arch is None or arch == unit.only_arch:
        return arch
    number, suffix = nvrtc.split_arch(arch)
    return unit.only_arch if number == nvrtc.split_arch(unit.only_arch)[0] and not suffix else None


def require_arch(unit: Unit, arch: str) -> str:
    """Return :func:`fitting_arch`, or raise ``BackendError``."""
    fitting = fitting_arch(unit, arch)
    if fitting is None:
        raise BackendError(f"{unit.main} is written for {unit.only_arch} only, not for {arch}")
    return fitting


def check_runs_on(arch: str, capability: tuple[int, int], device: int) -> None:
    """Raise ``BackendError`` unless a cubin for ``arch`` runs on a device of ``capability``."""
    number, suffix = nvrtc.split_arch(arch)
    major, minor = divmod(number, 10)
    fits = (
        (major, minor) == capability if suffix == "a" else major == capability[0] and minor <= capability[1]
    )
    if not fits:
        raise BackendError(
            f"arch {arch!r} was asked for, but device {device} is sm_{capability[0]}{capability[1]}; "
            "use arch='auto' to launch, or only compile() and report()"
        )


def load_module(
    library: KernelLibrary, unit: Unit, device: int, defines: Mapping[str, str]
) -> tuple[Any, Any, Compiled]:
    """Compile for a device and load there; return ``(cupy.RawModule, cupy, Compiled)``."""
    cupy = cuda.require_device(library.cache)
    compiler = nvrtc.choose()
    capability = cuda.capability(device)
    arch = automatic_arch(compiler, capability) if library.arch == "auto" else library.arch
    arch = require_arch(unit, arch)
    check_runs_on(arch, capability, device)
    compiled = compile_unit(unit, compiler, arch, defines, library.cache)
    return cuda.MODULES.get(cupy, device, compiled), cupy, compiled


def cuda_kernel(
    library: KernelLibrary, unit: Unit, name: str, device: int, defines: Mapping[str, str]
) -> Kernel:
    """Return a kernel on a device."""
    module, cupy, compiled = load_module(library, unit, device, defines)
    info = compiled.kernels.get(name)
    if info is None:
        raise ValueError(_unknown(unit, name, compiled.kernels))
    loaded = cuda.CudaKernel(cupy, device, module, info)
    return Kernel(
        unit.main, name, "cuda", device, _slots(unit, name, info.params, defines), info.static_shared,
        shared_limit(compiled.arch), info.max_threads, loaded.run,
    )  # fmt: skip


def host_kernel(
    library: KernelLibrary, unit: Unit, name: str, device: None, defines: Mapping[str, str]
) -> Kernel:
    """Return a kernel on the CPU."""
    sanitize = bool(library.host_options.get("sanitize"))
    module = host.load(unit, defines, library.cache, sanitize=sanitize)
    sizes = module.kernels()
    if name not in sizes:
        raise ValueError(_unknown(unit, name, sizes))
    known = _slots(unit, name, tuple(sizes[name]), defines)
    run = host.HostKernel(module, name, library.host_options).run
    return Kernel(unit.main, name, "host", None, known, 0, None, None, run)


def _slots(
    unit: Unit, name: str, sizes: tuple[int, ...] | None, defines: Mapping[str, str]
) -> tuple[Slot, ...] | None:
    headers = "\n".join(text for file, text in unit.texts.items() if file != unit.main)
    return slots(name, sizes, signature.parameters(unit.texts[unit.main], name, defines, headers))


def _unknown(unit: Unit, name: str, there: Mapping[str, Any]) -> str:
    listed = ", ".join(there) or 'none (is it extern "C" __global__?)'
    return f"{unit.main}: no kernel {name!r}; there are {listed}"
