"""What stage functions share: the place of a call's arrays, results in their kind, the check of an edit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .checks import apart, host, kind

if TYPE_CHECKING:
    from .library.resolve import Run

Array = Any


def placed(
    given: Mapping[str, Any],
    numbers: Sequence[str],
    out: Sequence[Array] | None = None,
    *,
    in_place: Sequence[str] = (),
) -> dict[str, Array]:
    """Return what decides where a call runs: its arrays by name, those of ``out`` included.

    Parameters
    ----------
    given : mapping
        Arguments as the caller gave them; what is no array is left out.
    numbers : sequence of str
        Arguments that may be numbers per request in host memory wherever the others are.
    out : sequence of arrays, optional
        Arrays to write into.
    in_place : sequence of str
        Arguments that ``out`` may share memory with, or whose memory the caller looks at.

    Raises
    ------
    ValueError
        An array of ``out`` shares memory with another one or with an argument.
    """
    arrays = {
        name: value
        for name, value in given.items()
        if kind(value) is not None and not (name in numbers and kind(value) == "numpy")
    }
    targets = {f"out[{i}]": array for i, array in enumerate(out or ())}
    if targets:
        apart(targets, {name: value for name, value in arrays.items() if name not in in_place})
    return arrays | targets


def deliver(run: Run, out: Sequence[Array] | None, results: Sequence[np.ndarray]) -> tuple[Array, ...]:
    """Return numpy ``results`` in the kind of the call's arrays, or ``out`` after copying them into it."""
    if out is None:
        return tuple(map(run.give_back, results))
    for target, result in zip(out, results, strict=True):
        run.numpy(target)[...] = result
    return tuple(out)


def attend(
    library: Any,
    inputs: Mapping[str, Array | None],
    out: Sequence[Array] | None,
    shape: Sequence[int],
    dtype: str,
    *,
    check: bool,
    check_values: Callable[[], None],
    launch: Callable[..., None],
    reference: Callable[..., Any],
) -> tuple[Array, ...]:
    """Run an attention stage where its arrays are; return its output and lse, or ``out`` with them.

    Parameters
    ----------
    library
        The stage's argument of that name.
    inputs : mapping
        Arrays by name, None where there is none.
    out : two arrays, optional
        To write into.
    shape, dtype
        Of the output; lse is float32 without the last axis.
    check : bool
        Call ``check_values`` before kernels, too; before the reference it always is.
    check_values : function
        Raises where values of arrays are wrong.
    launch : function
        ``launch(run, out, lse)`` runs the kernels.
    reference : function
        Takes ``inputs`` by name, in numpy.

    Raises
    ------
    TypeError, ValueError, BackendError
        As :func:`apart`, ``resolve`` and the given functions do.
    """
    from .library import resolve
    from .library.signature import numpy_dtype

    if out:
        apart(dict(zip(("out.out", "out.lse"), out, strict=True)), inputs)
    run = resolve(library, inputs)
    if run.backend != "numpy":
        if check:
            check_values()
        targets = (
            (run.empty(tuple(shape), dtype), run.empty(tuple(shape[:-1]), "float32"))
            if out is None
            else tuple(out)
        )
        launch(run, *targets)
        return targets
    check_values()
    values = {name: None if value is None else run.numpy(value) for name, value in inputs.items()}
    found = reference(**values)
    with np.errstate(over="ignore"):
        results = (found.out.astype(numpy_dtype(dtype)), found.lse.astype(np.float32))
    return deliver(run, out, results)


def compare(stage: Callable[..., Any], library: Any, *args: Any, **options: Any) -> None:
    """Raise ``ValueError`` naming the first array in which ``library`` and the reference differ.

    Parameters
    ----------
    stage : function
        A public stage function whose results are exact: integers, bits, sums in a fixed order.
    library : KernelLibrary
        Where its kernels come from; numpy arrays in the arguments are moved there.
    *args, **options
        Arguments of the call, in numpy.
    """
    from .library import KernelLibrary

    wanted = leaves(stage(*args, library=KernelLibrary(backend="numpy"), **options))
    moved = {name: to_device(value, library) for name, value in options.items()}
    got = leaves(stage(*(to_device(value, library) for value in args), library=library, **moved))
    for name, other in wanted.items():
        if not np.array_equal(host(got[name]), other, equal_nan=other.dtype.kind == "f"):
            raise ValueError(f"{stage.__name__}: {name} is not what the reference gives")


def leaves(result: Any, name: str = "") -> dict[str, Array]:
    """Return the arrays of a stage's result by name, records inside records included."""
    if is_dataclass(result):
        pairs = [(f.name, getattr(result, f.name)) for f in fields(result)]
    elif isinstance(result, tuple):
        pairs = list(result._asdict().items())
    else:
        return {name: result}
    return {inner: array for key, value in pairs for inner, array in leaves(value, key).items()}


def to_device(value: Any, library: Any) -> Any:
    """Return a numpy array, or a record of such, where ``library`` runs kernels; other values as they are."""
    if library.backend != "cuda":
        return value
    if is_dataclass(value):
        return type(value)(**{f.name: to_device(getattr(value, f.name), library) for f in fields(value)})
    if not isinstance(value, np.ndarray):
        return value
    import cupy

    return cupy.asarray(value)
