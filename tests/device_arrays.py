"""Arrays that behave like those of a device: numpy arrays may not meet them, nor are they read in passing.

CuPy raises where numpy and CuPy arrays meet; these do, too: code for both can be tested without a GPU.
"""

from __future__ import annotations

import types
from typing import Any

import numpy as np

_METHODS = "mean sum max min any all astype reshape transpose copy argmax"


class DeviceArray(np.ndarray):
    """A numpy array that refuses the company of plain ones."""

    def __array_ufunc__(self, ufunc, method, *inputs, **options):
        out = options.get("out", ())
        for value in (*inputs, *out):
            _refuse(value, ufunc.__name__)
        if out:
            options["out"] = tuple(map(to_host, out))
        result = getattr(ufunc, method)(*map(to_host, inputs), **options)
        return out[0] if out else to_device(result)

    def __array_function__(self, function, kinds, args, options):
        raise TypeError(f"numpy.{function.__name__} of a device array")

    def __getitem__(self, index):
        for part in index if isinstance(index, tuple) else (index,):
            _refuse(part, "index")
        return to_device(self.view(np.ndarray)[to_host(index)])

    def __setitem__(self, index, value):
        for part in (*(index if isinstance(index, tuple) else (index,)), value):
            _refuse(part, "assignment")
        self.view(np.ndarray)[to_host(index)] = to_host(value)

    def __iter__(self):
        return (self[i] for i in range(len(self)))

    def _refuse_read(self, *_):
        raise TypeError("a device array was read in passing: call get()")

    __int__ = __float__ = __bool__ = __index__ = __array__ = _refuse_read

    def get(self):
        return np.array(self.view(np.ndarray))


def _method(name: str):
    plain = getattr(np.ndarray, name)
    return lambda self, *args, **options: to_device(
        plain(self.view(np.ndarray), *map(to_host, args), **options)
    )


for _name in _METHODS.split():
    setattr(DeviceArray, _name, _method(_name))


def _refuse(value: Any, where: str) -> None:
    plain = isinstance(value, np.ndarray) and not isinstance(value, DeviceArray) and value.ndim
    if plain or isinstance(value, list):
        raise TypeError(f"{where}: a {type(value).__name__} among device arrays")


def to_host(value: Any) -> Any:
    """Return ``value`` with plain arrays in it."""
    if isinstance(value, DeviceArray):
        return value.view(np.ndarray)
    return type(value)(map(to_host, value)) if type(value) in (tuple, list) else value


def to_device(value: Any) -> Any:
    """Return ``value`` with device arrays in it."""
    if isinstance(value, np.generic):
        value = np.asarray(value)
    if isinstance(value, np.ndarray):
        return value.view(DeviceArray)
    return tuple(map(to_device, value)) if type(value) is tuple else value


class DeviceModule(types.ModuleType):
    """What ``numpy`` offers, over device arrays; only ``asarray`` takes plain ones."""

    def __getattr__(self, name: str) -> Any:
        found = getattr(np, name)

        def call(*args, **options):
            for value in args:
                for one in value if isinstance(value, list | tuple) else (value,):
                    if name != "asarray" and isinstance(one, np.ndarray):
                        _refuse(one, name)
            return to_device(found(*map(to_host, args), **{k: to_host(v) for k, v in options.items()}))

        return call


def on_device(stage: Any, library: Any) -> Any:
    """Return a public stage function that takes device arrays only and gives them back."""

    def inside(value):
        if isinstance(value, DeviceArray):
            return value.view(np.ndarray)
        _refuse(None if isinstance(value, list) else value, stage.__name__)
        if isinstance(value, list | tuple):
            return type(value)(map(inside, value))
        if hasattr(value, "__dataclass_fields__"):
            return type(value)(**{name: inside(getattr(value, name)) for name in value.__dataclass_fields__})
        return value

    def outside(value):
        if isinstance(value, np.ndarray):
            return value.view(DeviceArray)
        if hasattr(value, "_fields"):
            return type(value)(*map(outside, value))
        if hasattr(value, "__dataclass_fields__"):
            return type(value)(**{name: outside(getattr(value, name)) for name in value.__dataclass_fields__})
        return value

    def call(*args, **options):
        options = {name: inside(value) for name, value in options.items() if name != "library"}
        return outside(stage(*map(inside, args), library=library, **options))

    return call
