"""Opening files that strangers made, and writing files that are whole or absent."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from .errors import KdtrError

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def atomic_file(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a binary file for writing that appears under its name only when it is complete.

    The bytes go to a temporary file in the same folder, which is flushed, synchronised and renamed
    over ``path`` when the block ends.  If the block raises anything, Ctrl-C included, the temporary file
    is removed and whatever stood at ``path`` before is untouched.  A symbolic link is followed.

    Parameters
    ----------
    path : path-like
        File to create or replace; its folder must exist.

    Yields
    ------
    binary file
        Handle to write to.  Do not close it.

    Raises
    ------
    OSError
        The folder is missing or read-only, ``path`` is a folder, device or pipe, or the disk is full; names
        ``path``.

    Examples
    --------
    >>> with atomic_file("numbers.bin") as handle:   # doctest: +SKIP
    ...     _ = handle.write(bytes(range(10)))
    """
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise IsADirectoryError(21, "Is a directory", str(path))
    if (
        target.exists() and not target.is_file()
    ):  # for root a rename would put a file in the place of /dev/null
        raise OSError(errno.EEXIST, "Is a device, pipe or socket, which a file will not replace", str(path))
    temporary = target.with_name(f".{target.name[:200]}.{secrets.token_hex(6)}.tmp")
    try:
        # O_EXCL: never write through a file or link that someone else put there.
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
        with os.fdopen(fd, "wb") as handle:
            yield handle
            handle.flush()
            os.fsync(handle.fileno())
        temporary.replace(target)
        _sync_folder(target.parent)
    except OSError as error:
        if error.errno is None or error.filename not in (None, str(temporary)):
            raise
        # write() and fsync() do not say which file: a person with a full disk wants to know.
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        with suppress(FileNotFoundError):
            temporary.unlink()


def encodable(text: str) -> str:
    r"""Return ``text`` with what UTF-8 cannot hold escaped: bytes of a file's name that are no text, say.

    >>> encodable("a\udcff")
    'a\\udcff'
    """
    return text.encode("utf-8", "backslashreplace").decode()


def _sync_folder(folder: Path) -> None:
    """Make the rename durable where the system allows a folder to be synchronised."""
    with suppress(OSError):
        fd = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """Open an existing regular file for reading; any reason why not is a :class:`KdtrError`.

    Pipes and devices are refused before they are opened, because opening one can block for ever.

    Parameters
    ----------
    path : path-like
        File to open.

    Raises
    ------
    KdtrError
        No such file, a folder, not a regular file, no permission, or another fault of the system.
    """
    try:
        mode = Path(path).stat().st_mode
        if stat.S_ISDIR(mode):
            raise KdtrError(f"{path}: is a folder, wanted a file")
        if not stat.S_ISREG(mode):
            raise KdtrError(f"{path}: is a pipe, socket or device, wanted a regular file")
        return Path(path).open("rb")
    except (FileNotFoundError, NotADirectoryError) as error:
        raise KdtrError(f"{path}: no such file") from error
    except PermissionError as error:
        raise KdtrError(f"{path}: no permission to read it") from error
    except OSError as error:
        raise KdtrError(f"{path}: cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        if isinstance(error, KdtrError):
            raise
        raise KdtrError(f"{path!r}: not a usable file name: {error}") from error
