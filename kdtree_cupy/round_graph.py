"""A decoding round as one CUDA graph: no Python, no launch gaps, no host in the loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .errors import BackendError
from .round import decode_round
from .round_buffers import RoundBuffers


class RoundGraph:
    """A captured round; :meth:`launch` runs it on the current stream and does not wait.

    The graph keeps the addresses of the buffers, and this object keeps the buffers alive.  Between launches
    write into them in place: budgets (-1 makes a slot idle), roots, lengths, draft logits, uniforms.

    Parameters
    ----------
    graph : cupy.cuda.Graph
    buffers : RoundBuffers
    stream : cupy.cuda.Stream
        That of the capture: kept, because scratch memory in the graph belongs to it, and a new stream could
        get its number.
    """

    def __init__(self, graph: Any, buffers: RoundBuffers, stream: Any) -> None:
        self.graph = graph
        self.buffers = buffers
        self._captured_on = stream

    def launch(self, stream: Any = None) -> None:
        """Run one round; ``stream`` is a CuPy stream, by default the current one."""
        self.graph.launch(stream)

    def __repr__(self) -> str:
        return f"RoundGraph({self.buffers!r})"


def capture(
    buffers: RoundBuffers,
    target_model: Callable[[RoundBuffers], object],
    *,
    library: Any = None,
    warm_up: bool = True,
) -> RoundGraph:
    """Capture one round.

    Parameters
    ----------
    buffers : RoundBuffers
        CuPy arrays.
    target_model : callable
        As for :func:`kdtree_cupy.round.decode_round`; called once for the warm-up and once while capturing,
        so it must launch kernels only: no allocation, no copy to the host, no branch on values.
    library : KernelLibrary, optional
    warm_up : bool
        Run the round once before, with all slots idle, so that kernels are compiled and loaded outside the
        capture.  Roots, lengths and budgets are restored; nothing is committed.

    Returns
    -------
    RoundGraph

    Raises
    ------
    BackendError
        The buffers are not CuPy arrays.

    Notes
    -----
    Waits for the device.
    """
    if type(buffers.roots).__module__.split(".")[0] != "cupy":
        raise BackendError(
            f"buffers: got {type(buffers.roots).__module__} arrays, wanted CuPy arrays to capture"
        )
    import cupy

    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.get_current_stream().synchronize()
    with stream:
        if warm_up:
            kept = [(array, array.copy()) for array in (buffers.budgets, buffers.roots, buffers.lengths)]
            buffers.budgets.fill(-1)
            decode_round(buffers, target_model, library=library)
            for array, value in kept:
                array[...] = value
            stream.synchronize()
        stream.begin_capture()
        try:
            decode_round(buffers, target_model, library=library)
        except BaseException:
            stream.end_capture()  # leave the stream usable; the error is what counts
            raise
        graph = stream.end_capture()
    stream.synchronize()
    return RoundGraph(graph, buffers, stream)
