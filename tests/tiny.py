"""A small made-up trace, for tests that need the shape of one and not its meaning."""

from __future__ import annotations

import numpy as np

from kdtree_cupy.trace import Trace, make_trace


def tiny_arrays(
    lengths=(9, 12, 2, 1, 0, 15), *, depth=4, width=3, vocab=12, seed=0, hit=0.6
) -> dict[str, np.ndarray]:
    """Return arrays of a trace whose drafter is right at rank 0 with probability ``hit``."""
    rng = np.random.default_rng(seed)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    total = int(offsets[-1])
    tokens = rng.integers(0, vocab, total).astype(np.int32)
    logits = np.sort(rng.normal(size=(total, depth, width)) * 2, axis=-1)[..., ::-1]
    mass = np.exp(logits).sum(-1, keepdims=True) * 1.1
    ids = np.argsort(rng.random((total, depth, vocab)), axis=-1)[..., :width].astype(np.uint16)
    for t in range(total):
        for d in range(depth):
            if t + d + 1 < total and rng.random() < hit and tokens[t + d + 1] not in ids[t, d]:
                ids[t, d, rng.integers(0, width)] = tokens[t + d + 1]
    return {
        "sequence_offsets": offsets,
        "tokens": tokens,
        "draft_ids": ids,
        "draft_logprobs": np.minimum(logits - np.log(mass), 0).astype(np.float32),
    }


def tiny_trace(name="tiny", header=None, **options) -> Trace:
    """Return a checked :class:`Trace` of :func:`tiny_arrays`."""
    arrays = tiny_arrays(**options)
    return make_trace(name, {"vocab_size": options.get("vocab", 12), "name": name} | (header or {}), arrays)


def small_study():
    """Return a study of two tiny traces at a few budgets, every published cost table."""
    from kdtree_cupy import cost
    from kdtree_cupy.study import run_study

    traces = [tiny_trace("one"), tiny_trace("two", seed=1, header={"stop_tokens": [3], "temperature": 1.0})]
    costs = [table for table in map(cost.load_cost, cost.available()) if table.kind == "published"]
    return run_study(traces, budgets=[0, 1, 2, 8, 200], costs=costs, command="kdtree study")
