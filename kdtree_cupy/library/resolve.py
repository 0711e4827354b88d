"""Which backend a call runs on: it follows the arrays, and never moves or copies them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import BackendError
from . import arrays
from .arrays import Handle

if TYPE_CHECKING:
    from .kernel_library import KernelLibrary

_NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class Run:
    """A library bound to the place of one call's arrays.

    Parameters
    ----------
    library : KernelLibrary
        Where kernels come from.
    backend : str
        "cuda", "host" or "numpy": what this call runs on.
    kind : str
        Kind of the arrays that come back: "numpy", "cupy" or "torch".
    device : int or None
        CUDA ordinal, None for host memory.
    """

    library: KernelLibrary
    backend: str
    kind: str
    device: int | None

    def launch(
        self,
        file: str,
        kernel: str,
        grid: Any,
        block: Any,
        args: Sequence[Any],
        *,
        shared_bytes: int = 0,
        defines: Mapping[str, Any] = _NOTHING,
        early: bool = False,
    ) -> None:
        """Launch a kernel on this backend; see :meth:`KernelLibrary.launch`."""
        self.library.launch(
            file, kernel, grid, block, args, shared_bytes=shared_bytes, defines=defines,
            backend=self.backend, device=self.device, early=early,
        )  # fmt: skip

    def empty(self, shape: int | tuple[int, ...], dtype: str) -> Any:
        """Return a new uninitialised array of the call's own kind and place."""
        return arrays.empty(shape, dtype, self.kind, self.device)

    def array(self, values: Any, dtype: str) -> Any:
        """Return host values (a number per request, say) as an array of the call's kind and place.

        Copies to the device, so it is for small vectors that the caller gave as numbers or lists.
        """
        host = np.ascontiguousarray(values, arrays.numpy_dtype(dtype))
        if self.device is None:
            return arrays.like(host, self.kind)
        target = self.empty(host.shape, dtype)
        if self.kind == "torch":
            target.copy_(arrays.like(host, "torch"))
        else:
            import cupy

            with cupy.cuda.Device(self.device):
                target.set(host)
        return target

    def numpy(self, array: Any) -> np.ndarray:
        """Return a host array as numpy without a copy (numpy and host backends only)."""
        found = arrays.handle(array)
        if found is None or found.device is not None:
            raise TypeError(f"got {type(array).__name__}, wanted an array in host memory")
        return found.numpy()

    def give_back(self, array: np.ndarray) -> Any:
        """Return a numpy result in the kind the arrays came in, without a copy."""
        return arrays.like(array, self.kind)


@lru_cache(maxsize=1)
def default_library() -> KernelLibrary:
    """Return the library that stages use when they are given none."""
    from .kernel_library import KernelLibrary

    return KernelLibrary()


def resolve(library: KernelLibrary | None, given: Mapping[str, Any]) -> Run:
    """Bind ``library`` (None: the default one) to the place of the arrays of one call.

    Parameters
    ----------
    library : KernelLibrary or None
        With backend "auto" it follows the arrays; a named backend must fit them.
    given : mapping of str to array
        The call's arrays by argument name; None entries are skipped.

    Raises
    ------
    BackendError
        The arrays are of different places, the library's backend does not take such arrays, or it cannot
        run here; the message gives the reason and the cure.
    TypeError
        Something in ``given`` is not an array.
    """
    library = default_library() if library is None else library
    if not hasattr(library, "backend"):
        raise TypeError(
            f"library: got {type(library).__name__}, wanted a KernelLibrary, "
            "such as KernelLibrary(backend='host')"
        )
    found: dict[str, Handle] = {}
    for name, value in given.items():
        if value is None:
            continue
        one = arrays.handle(value)
        if one is None:
            raise TypeError(f"{name}: got {type(value).__name__}, wanted an array")
        found[name] = one
    first = next(iter(found.items()), None)
    for name, one in found.items():
        if one.device != first[1].device:
            raise BackendError(
                f"{name} is {one.place}, but {first[0]} is {first[1].place}; move one of them, "
                f"{'for example cupy.asarray(...)' if None in (one.device, first[1].device) else 'first'}"
            )
    device = first[1].device if first else None
    kinds = {one.kind for one in found.values()}
    kind = "torch" if "torch" in kinds else "numpy" if device is None else "cupy"
    backend = choose(library.backend, device, first)
    return Run(library, backend, kind, device)


def choose(wanted: str, device: int | None, first: tuple[str, Handle] | None) -> str:
    """Return the backend for arrays on ``device``; BackendError if ``wanted`` does not take them."""
    if wanted == "auto":
        if device is not None:
            return "cuda"
        return "numpy" if host_problem() else "host"
    if wanted == "cuda" and device is None and first is not None:
        raise BackendError(
            f"backend 'cuda' takes arrays on a device, but {first[0]} is {first[1].place}; "
            f"pass cupy.asarray({first[0]}), or use backend='auto' to follow the arrays"
        )
    if wanted in ("host", "numpy") and device is not None:
        cure = f"{first[0]}.cpu()" if first[1].kind == "torch" else f"cupy.asnumpy({first[0]})"
        raise BackendError(
            f"backend {wanted!r} takes arrays in host memory, but {first[0]} is {first[1].place}; "
            f"pass {cure}, or use backend='auto' to follow the arrays"
        )
    if wanted == "host" and (problem := host_problem()):
        raise BackendError(f"backend 'host' cannot run: {problem}; use backend='numpy' or 'auto'")
    return wanted


def host_problem() -> str | None:
    """Return why kernels cannot be built for the CPU here, or None."""
    from . import host

    return host.problem()
