"""Read plain values and tensors from a ``torch.save`` file without torch and without running code in it.

Such a file is a ZIP with a pickle and raw storages.  A pickle may name any function and call it; this reader
looks names up in a short list of stand-ins of its own and refuses the file at the first other name.
"""

from __future__ import annotations

import io
import math
import pickle
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import KdtrError
from ..files import open_regular

MAX_BYTES = 2 << 30
_DTYPES = {
    "DoubleStorage": "<f8", "FloatStorage": "<f4", "HalfStorage": "<f2", "BFloat16Storage": "<u2",
    "LongStorage": "<i8", "IntStorage": "<i4", "ShortStorage": "<i2", "CharStorage": "i1",
    "ByteStorage": "u1", "BoolStorage": "?",
}  # fmt: skip
_BROKEN = (
    zipfile.BadZipFile, zlib.error, EOFError, struct.error, pickle.UnpicklingError, KeyError, IndexError,
    TypeError, ValueError, AttributeError, OverflowError, MemoryError, RecursionError, NotImplementedError,
    RuntimeError, OSError, UnicodeError,
)  # fmt: skip


class Plain:
    """Stand-in for namespaces: attributes only."""

    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)

    def __setstate__(self, state: Any) -> None:
        if not isinstance(state, dict) or not all(isinstance(key, str) for key in state):
            raise KdtrError("a namespace whose state is no dictionary of names")
        self.__dict__.update(state)


class _Dtype:
    """Stand-in for ``numpy.dtype``: the type string; what a pickle adds to it is byte order."""

    def __init__(self, text: str, *_: Any) -> None:
        self.dtype = np.dtype(text)
        if self.dtype.kind not in "biuf":
            raise KdtrError(f"a scalar of dtype {text!r}, wanted numbers")

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, tuple) and len(state) > 1 and state[1] in ("<", ">"):
            self.dtype = self.dtype.newbyteorder(state[1])


def _scalar(dtype: _Dtype, data: bytes) -> Any:
    return np.frombuffer(data, dtype.dtype, count=1)[0].item()


def _encode(text: str, encoding: str = "latin1") -> bytes:
    return text.encode("latin1" if encoding not in ("ascii", "utf-8") else encoding)


def _path(*parts: str) -> str:
    return "/".join(map(str, parts))


def _ordered(pairs: Any = ()) -> dict[Any, Any]:
    return dict(pairs)


def _tensor(storage: np.ndarray, offset: int, size: tuple, stride: tuple, *_: Any) -> np.ndarray:
    count = math.prod(size)
    last = offset + sum((n - 1) * s for n, s in zip(size, stride, strict=True)) if count else 0
    if min([offset, *size, *stride], default=0) < 0 or last >= max(storage.size, 1) or count > storage.size:
        raise KdtrError(
            f"a tensor of shape {tuple(size)} reaches outside its storage of {storage.size} numbers"
        )
    index = np.full(size, offset)
    for axis, step in enumerate(stride):
        shape = [1] * len(size)
        shape[axis] = -1
        index = index + (np.arange(size[axis]) * step).reshape(shape)
    return storage[index] if count else np.zeros(size, storage.dtype)


_ALLOWED: dict[tuple[str, str], Any] = {
    ("types", "SimpleNamespace"): Plain,
    ("argparse", "Namespace"): Plain,
    ("collections", "OrderedDict"): _ordered,
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
    ("numpy", "dtype"): _Dtype,
    ("numpy.core.multiarray", "scalar"): _scalar,
    ("numpy._core.multiarray", "scalar"): _scalar,
    ("_codecs", "encode"): _encode,
    ("pathlib", "PosixPath"): _path,
}


class _Reader(pickle.Unpickler):
    def __init__(self, data: bytes, archive: zipfile.ZipFile, prefix: str) -> None:
        super().__init__(io.BytesIO(data))
        self.archive, self.prefix = archive, prefix
        self.storages: dict[str, np.ndarray] = {}

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch" and name in _DTYPES:
            return np.dtype(_DTYPES[name])
        if (module, name) not in _ALLOWED:
            raise KdtrError(
                f"the pickle names {module}.{name}, which no run file needs; nothing was executed"
            )
        known = _ALLOWED[module, name]
        # A copy for this file: a pickle may set attributes on what it names.
        return type(known.__name__, (known,), {}) if isinstance(known, type) else lambda *a: known(*a)

    def persistent_load(self, pid: Any) -> np.ndarray:
        kind, dtype, key, _, count = pid
        if kind != "storage" or not isinstance(dtype, np.dtype) or not str(key).isdigit():
            raise KdtrError("a reference that is no storage")
        if key not in self.storages:
            data = self.archive.read(f"{self.prefix}data/{key}")
            if len(data) != int(count) * dtype.itemsize:
                raise KdtrError(f"storage {key}: {len(data)} bytes, wanted {int(count) * dtype.itemsize}")
            self.storages[key] = np.frombuffer(data, dtype)
        return self.storages[key]


def read_torch(path: Path) -> Any:
    """Return what ``torch.save`` wrote: dicts, lists, numbers, strings, numpy arrays, :class:`Plain`.

    Raises
    ------
    KdtrError
        Not such a file, truncated, larger than 2 GiB, or one that names anything else than plain values and
        tensors.  No code of the file runs.
    """
    with open_regular(path) as handle:
        try:
            with zipfile.ZipFile(handle) as archive:
                members = archive.infolist()
                if sum(m.file_size for m in members) > MAX_BYTES:
                    raise KdtrError("more than 2 GiB of data")
                if any(m.compress_type != zipfile.ZIP_STORED for m in members):
                    raise KdtrError("compressed members: not a torch file")
                pickles = [m.filename for m in members if m.filename.endswith("/data.pkl")]
                if len(pickles) != 1:
                    raise KdtrError("no data.pkl inside: not a torch file")
                return _Reader(archive.read(pickles[0]), archive, pickles[0].removesuffix("data.pkl")).load()
        except KdtrError as error:
            raise KdtrError(f"{path}: {error}") from error
        except _BROKEN as error:
            raise KdtrError(f"{path}: not a readable torch file: {error or type(error).__name__}") from error
