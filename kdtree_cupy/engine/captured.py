"""Calls that become CUDA graphs: the same launches again, without Python between them."""

from __future__ import annotations

from collections.abc import Callable
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
        self._call, self._warm, self._graph = call, not on_cupy(xp), None
        self._kept: tuple[Any, ...] = ()
        self._plain = self._warm

    def __call__(self) -> None:
        """Run once."""
        if self._plain or not self._warm:
            self._call()
            self._warm = True
            return
        if self._graph is None:
            self._graph = self._capture()
        self._graph.launch()

    def _capture(self) -> Any:
        import cupy

        stream, pool = cupy.cuda.Stream(non_blocking=True), cupy.cuda.MemoryPool()
        self._kept = (stream, pool)  # scratch memory belongs to the stream, everything else to the pool
        cupy.cuda.get_current_stream().synchronize()
        with stream, cupy.cuda.using_allocator(pool.malloc):
            stream.begin_capture()
            try:
                self._call()
            except BaseException:
                stream.end_capture()  # leave the stream usable; the error is what counts
                raise
            graph = stream.end_capture()
        return graph
