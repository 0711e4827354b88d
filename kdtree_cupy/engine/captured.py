"""Calls that become CUDA graphs: the same launches again, without Python between them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from .fused import on_cupy


class Captured:
    """A function without arguments that works on the same arrays at every call.

    On CuPy its first call runs as it is and compiles what it needs; the second is captured into a CUDA graph,
    which that call and all later ones launch on the current stream.  Elsewhere every call runs as it is.

    Parameters
    ----------
    call : callable
        Launches kernels only: it neither copies to the host nor branches on values.  It may allocate; what it
        allocates while captured belongs to the graph and is written again by every launch.
    xp : module
        ``numpy`` or ``cupy``.
    """

    def __init__(self, call: Callable[[], object], xp: Any) -> None:
        self._call, self._plain = call, not on_cupy(xp)
        self._warm, self._graph, self._pool = False, None, None

    def __call__(self) -> None:
        """Run once."""
        if self._plain:
            self._call()
        elif not self._warm:
            self._warm_up()
        else:
            if self._graph is None:
                self._graph = self._capture()
            self._graph.launch()

    def _warm_up(self) -> None:
        """Run on the stream of captures, so that the stages' scratch memory is there when they begin."""
        import cupy

        stream = _stream(cupy.cuda.Device().id)
        cupy.cuda.get_current_stream().synchronize()
        with stream:
            self._call()
        stream.synchronize()
        self._warm = True

    def _capture(self) -> Any:
        import cupy

        stream, self._pool = _stream(cupy.cuda.Device().id), cupy.cuda.MemoryPool()
        cupy.cuda.get_current_stream().synchronize()
        with stream, cupy.cuda.using_allocator(self._pool.malloc):
            stream.begin_capture()
            try:
                self._call()
            except BaseException:
                stream.end_capture()  # leave the stream usable; the error is what counts
                raise
            return stream.end_capture()


@cache
def _stream(device: int) -> Any:
    """Return the one stream on which everything is captured: the stages keep scratch memory for each."""
    import cupy

    return cupy.cuda.Stream(non_blocking=True)
