"""What kernels print: passed on to a function, such as one that writes into a notebook's cell.

``printf`` of a kernel goes to file descriptor 1, on the device when somebody waits for it: a notebook sees it
late, or not at all.  With :data:`sink` set, a launch of a kernel whose text has ``printf`` waits for its end
and hands over what was printed.
"""

from __future__ import annotations

import ctypes
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

sink: Callable[[str], object] | None = None
"""Gets the text of each launch; None leaves it where the kernel sent it."""

MOST_BYTES = 1 << 16
"""Text of one launch beyond this is counted, not shown."""
_lock = threading.Lock()


@contextmanager
def forwarded(device: int | None) -> Iterator[None]:
    """Hand what is printed inside the block to :data:`sink`; waits for the device.

    Parameters
    ----------
    device : int or None
        CUDA ordinal; None on the host.  Nothing is done while a graph is being captured.
    """
    receive = sink
    if receive is None or (device is not None and _capturing(device)):
        yield
        return
    with _lock, tempfile.TemporaryFile() as file:
        with suppress(OSError, ValueError):
            sys.stdout.flush()
        _wait(device)  # what earlier launches print is theirs
        _flush()
        saved = os.dup(1)
        os.dup2(file.fileno(), 1)
        try:
            yield
            _wait(device)
        finally:
            _flush()
            os.dup2(saved, 1)
            os.close(saved)
            text = _read(file)
    if text:
        receive(text)


@contextmanager
def silent() -> Iterator[None]:
    """Drop what kernels print inside the block, as far as :data:`sink` would get it."""
    global sink
    kept = sink
    if kept is not None:
        sink = _drop
    try:
        yield
    finally:
        sink = kept


def _drop(_: str) -> None:
    pass


def _wait(device: int | None) -> None:
    if device is not None:
        import cupy

        cupy.cuda.Device(device).synchronize()


def _capturing(device: int) -> bool:
    import cupy

    with cupy.cuda.Device(device):
        return cupy.cuda.get_current_stream().is_capturing()


def _flush() -> None:
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).fflush(None)  # the driver prints through C's stdout


def _read(file) -> str:
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    text = file.read(MOST_BYTES).decode(errors="replace")
    return text if size <= MOST_BYTES else f"{text}\n... and {size - MOST_BYTES} more bytes\n"
