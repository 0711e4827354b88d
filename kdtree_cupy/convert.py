"""Arrays with a header from and to ``.kdtr``, ``.npz`` and ``.safetensors``, told apart by suffix.

Examples
--------
>>> import numpy as np, tempfile, pathlib
>>> from kdtree_cupy import convert
>>> folder = pathlib.Path(tempfile.mkdtemp())
>>> convert.write_arrays(folder / "x.npz", {"a": np.arange(3)}, {"seed": 0})
>>> convert.convert(folder / "x.npz", folder / "x.kdtr")
>>> header, arrays = convert.read_arrays(folder / "x.kdtr")
>>> header, arrays["a"].tolist()
({'seed': 0}, [0, 1, 2])
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import kdtr
from .errors import KdtrError
from .kdtr_write import prepare
from .npz import MAX_BYTES, read_npz, write_npz
from .safetensors_file import read_safetensors, write_safetensors

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    import numpy as np

SUFFIXES = (".kdtr", ".npz", ".safetensors")


def read_arrays(
    path: str | os.PathLike[str], *, max_bytes: int = MAX_BYTES
) -> tuple[dict[str, Any], Mapping[str, np.ndarray]]:
    """Return header and arrays of a file, fully checked.

    Parameters
    ----------
    path : path-like
        File to read; its suffix says the format.
    max_bytes : int
        For ``.npz``: refuse archives that declare more decompressed bytes.

    Raises
    ------
    KdtrError
        The file is missing, foreign, corrupt, too large or holds something that KDTR lacks.
    ValueError
        The suffix is none of ``.kdtr``, ``.npz``, ``.safetensors``.
    """
    if Path(path).is_dir():
        raise KdtrError(f"{path}: is a folder, wanted a file")
    suffix = _suffix(path)
    if suffix == ".npz":
        return read_npz(path, max_bytes=max_bytes)
    if suffix == ".safetensors":
        return read_safetensors(path)
    file = kdtr.read(path)
    return file.header, file.arrays


def write_arrays(
    path: str | os.PathLike[str], arrays: Mapping[str, np.ndarray], header: Mapping[str, Any] | None = None
) -> None:
    """Write arrays and header to a file, atomically; the suffix says the format.

    Raises
    ------
    TypeError, ValueError
        An array, a name or the header cannot be stored (:func:`kdtree_cupy.kdtr.write`).
    OSError
        The file cannot be written; nothing is left behind.
    """
    suffix = _suffix(path)
    if suffix == ".kdtr":
        kdtr.write(path, arrays, header)
        return
    plain, plain_header = prepare(arrays, header)
    (write_npz if suffix == ".npz" else write_safetensors)(path, plain, plain_header)


def convert(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    force: bool = False,
    max_bytes: int = MAX_BYTES,
) -> None:
    """Convert between the three formats; every value and the header survive bit for bit.

    Parameters
    ----------
    source, target : path-like
        Files; the suffixes say the formats.  ``.kdtr`` to ``.kdtr`` rewrites a file in canonical form and
        keeps fields of a newer minor version.
    force : bool
        Replace an existing target.
    max_bytes : int
        As for :func:`read_arrays`.

    Raises
    ------
    FileExistsError
        ``target`` exists and ``force`` is not set.
    KdtrError, TypeError, ValueError, OSError
        As for reading and writing.
    """
    kinds = _suffix(source), _suffix(target)
    if Path(target).exists() and not force:
        raise FileExistsError(17, "exists already (--force or force=True replaces it)", str(target))
    if kinds == (".kdtr", ".kdtr"):
        file = kdtr.read(source)
        kdtr.write(target, file.arrays, file.header, like=file)
        return
    header, arrays = read_arrays(source, max_bytes=max_bytes)
    write_arrays(target, arrays, header)


def _suffix(path: str | os.PathLike[str]) -> str:
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise ValueError(f"{path}: suffix {suffix!r}, wanted one of {', '.join(SUFFIXES)}")
    return suffix
