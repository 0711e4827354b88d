"""Fit the options of policies on a trace, each sequence left out of its own fit.

The result of :func:`fit` goes to :func:`kdtree_cupy.replay.acceptance`: options, and keyword arguments per
position that pick the table fitted without the sequence a position belongs to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from .policies import ddtree
from .policies.caddtree import expected_by_budget, round_costs
from .policies.calibrated import tempered_rows
from .policies.conditioned import CLASSES, rank_class
from .policies.fan_out import fan_out_caps
from .policies.longrun import long_run_rate
from .rank_tables import path_conditional_table, uncensored_positions
from .trace import Trace

TEMPERATURES = np.round(np.geomspace(0.5, 4.0, 43), 4)
"""Temperatures that are tried."""

_RATE_NODES, _RATE_POSITIONS = 256, 256


def left_out(per_sequence: np.ndarray) -> np.ndarray:
    """Return, for each sequence, the sum over all others, [S, ...]; for one sequence the sum itself."""
    total = per_sequence.sum(0)
    return total - per_sequence if len(per_sequence) > 1 else per_sequence.copy()


def fit_temperatures(trace: Trace, ranks: np.ndarray) -> np.ndarray:
    """Return the temperature of each depth that makes the true tokens most likely, [S, D], leave one out.

    A true token outside the kept ranks counts with the mass the row leaves.  Depths are fitted separately on
    all positions whose recording goes far enough.
    """
    use = np.flatnonzero(uncensored_positions(trace))
    sequence = trace.sequence_of()[use]
    depth = trace.depth
    loss = np.zeros((trace.sequences, depth, TEMPERATURES.size))
    for d in range(depth):
        truth = ranks[use, d].astype(np.int64)
        seen = truth > -2
        rows, rank, owner = trace.draft_logprobs[use[seen], d], truth[seen], sequence[seen]
        for i, temperature in enumerate(TEMPERATURES):
            logs = tempered_rows(rows, np.full(len(rows), temperature)).astype(np.float64)
            rest = np.log(np.maximum(1.0 - np.exp(logs).sum(-1), 1e-9))
            picked = np.take_along_axis(logs, np.maximum(rank, 0)[:, None], 1)[:, 0]
            value = np.maximum(np.where(rank >= 0, picked, rest), -30.0)
            loss[:, d, i] = np.bincount(owner, weights=-value, minlength=trace.sequences)
    return TEMPERATURES[left_out(loss).argmin(2)]


def fit_gains(trace: Trace, ranks: np.ndarray) -> np.ndarray:
    """Return accepted / predicted by depth and class of the parent's rank, [S, D, 4], leave one out.

    Over positions whose path so far was kept, the drafter predicts the summed probability of its ranks; what
    came is counted.  A prior of one accepted and one predicted token keeps rare cells near 1.
    """
    use = uncensored_positions(trace)
    sequence = trace.sequence_of()[use]
    truth = ranks[use].astype(np.int64)
    rows = trace.draft_logprobs[use]
    hits, mass = (np.zeros((trace.sequences, trace.depth, CLASSES)) for _ in range(2))
    alive = np.ones(truth.shape[0], bool)
    for d in range(trace.depth):
        alive &= truth[:, d] > -2
        group = rank_class(truth[:, d - 1]) if d else np.zeros(truth.shape[0], np.int64)
        predicted = np.exp(rows[:, d].astype(np.float64)).sum(1)
        np.add.at(mass[:, d], (sequence[alive], group[alive]), predicted[alive])
        alive &= truth[:, d] >= 0
        np.add.at(hits[:, d], (sequence[alive], group[alive]), 1.0)
    return (left_out(hits) + 1.0) / (left_out(mass) + 1.0)


def fit_vector(trace: Trace, ranks: np.ndarray) -> np.ndarray:
    """Return acceptance by rank given the path above, all depths together, [S, K], leave one out."""
    use = uncensored_positions(trace)
    sequence = trace.sequence_of()[use]
    truth = ranks[use].astype(np.int64)
    hits, trials = np.zeros((trace.sequences, trace.width)), np.zeros(trace.sequences)
    alive = np.ones(truth.shape[0], bool)
    for d in range(trace.depth):
        alive &= truth[:, d] > -2
        trials += np.bincount(sequence[alive], minlength=trace.sequences)
        alive &= truth[:, d] >= 0
        np.add.at(hits, (sequence[alive], truth[alive, d]), 1.0)
    return left_out(hits) / np.maximum(left_out(trials), 1.0)[:, None]


def fit_rate(trace: Trace, cost: str = "caddtree-a800-8b", context: float | None = None) -> float:
    """Return the long-run throughput that the drafter expects, in tokens per autoregressive step.

    Looks only at what was drafted (no true token), at up to 256 positions spread over the trace.
    """
    use = np.flatnonzero(uncensored_positions(trace))
    use = use if use.size else np.arange(trace.tokens.size)
    at = use[np.linspace(0, use.size - 1, min(use.size, _RATE_POSITIONS)).astype(int)]
    rows = np.ascontiguousarray(trace.draft_logprobs[at])
    tree = ddtree(np.asarray(trace.draft_ids[at]), rows, trace.tokens[at], _RATE_NODES)
    return long_run_rate(expected_by_budget(tree), round_costs(cost, _RATE_NODES, context))


Fitted = tuple[Mapping[str, Any], Mapping[str, np.ndarray]]
FITS: dict[str, Callable[[Trace, np.ndarray], Mapping[str, Any]]] = {
    "static": lambda trace, ranks: {"table": path_conditional_table(trace, ranks)},
    "sequoia": lambda trace, ranks: {"vector": fit_vector(trace, ranks)},
    "fan_out": lambda trace, ranks: {"caps": fan_out_caps(path_conditional_table(trace, ranks))},
    "calibrated": lambda trace, ranks: {"temperatures": fit_temperatures(trace, ranks)},
    "conditioned": lambda trace, ranks: {"gains": fit_gains(trace, ranks)},
    "longrun": lambda trace, ranks: {"rate": fit_rate(trace)},
}
"""Fits by policy name."""


def fit(name: str, trace: Trace, ranks: np.ndarray) -> Fitted:
    """Return (options, per position) of a policy on a trace; empty for policies without anything to fit.

    Parameters
    ----------
    name : str
        Policy.
    trace : Trace
    ranks : int16 [T, D]
        :meth:`kdtree_cupy.trace.Trace.true_ranks`.
    """
    if name not in FITS:
        return {}, {}
    options = FITS[name](trace, ranks)
    return options, {} if name == "longrun" else {"table_index": trace.sequence_of()}
