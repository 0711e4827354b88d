"""Calls on torch tensors, timed by :mod:`kdtree_cupy.timing`: inside a CUDA graph that holds many."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import cupy
import torch

from kdtree_cupy.timing import graph_times, summary

Call = Callable[[], Any]


def on_cupy_stream(call: Call) -> Call:
    """Return ``call`` with torch's current stream set to CuPy's, which the timer captures."""

    def run() -> None:
        pointer = cupy.cuda.get_current_stream().ptr
        with torch.cuda.stream(torch.cuda.ExternalStream(pointer)):
            call()

    return run


def time_graph(calls: Sequence[Call], replays: int = 11) -> dict[str, Any]:
    """Return median, 20th and 80th percentile in us of one call in a replayed graph, and the replays."""
    torch.cuda.synchronize()
    found = summary(graph_times([on_cupy_stream(call) for call in calls], replays=replays))
    return {"us": found.median, "us_p20": found.p20, "us_p80": found.p80, "n": found.n}
