"""Policies with the options they need, for tests that run over all of them."""

from __future__ import annotations

from functools import partial

import numpy as np
from strategies import ids_for

from kdtree_cupy.policies import POLICIES


def options(name: str, depth: int, width: int) -> dict:
    """Return options that make policy ``name`` differ from ddtree where it can."""
    falling = 0.6 / (1.0 + np.arange(width)) ** 2
    return {
        "static": {"table": np.tile(falling, (depth, 1))},
        "sequoia": {"vector": falling},
        "fan_out": {"caps": np.maximum(1, 3 - np.arange(depth))},
        "calibrated": {"temperatures": np.linspace(1.2, 2.0, depth)},
        "conditioned": {"gains": np.tile([1.0, 0.6, 0.4, 0.2], (depth, 1))},
        "longrun": {"rate": 1.5},
        "caddtree": {"context": 8000.0},
    }.get(name, {})


def case(name: str, depth: int, width: int):
    """Return policy ``name`` with :func:`options`."""
    return partial(POLICIES[name], **options(name, depth, width))


def arguments(logprobs: np.ndarray):
    """Return ids, log-probs and roots for rows [b, D, K]."""
    return ids_for(logprobs), logprobs, np.arange(100, 100 + len(logprobs), dtype=np.int32)


def paths_of(tree, b: int = 0) -> list[tuple[int, ...]]:
    """Return the rank tuples of the drafted nodes of request ``b`` in node order."""
    paths: list[tuple[int, ...]] = [()]
    for i in range(1, int(tree.counts[b])):
        paths.append((*paths[tree.parents[b, i]], int(tree.ranks[b, i])))
    return paths[1:]
