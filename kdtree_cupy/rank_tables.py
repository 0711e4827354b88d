"""Acceptance and calibration by depth and rank: what tree shapes are fitted on and judged by.

Positions near the end of a recording that was cut off are left out (:func:`uncensored_positions`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .replay import Rounds
from .trace import Trace


class DepthRank(NamedTuple):
    """Acceptance by (depth, rank), three definitions, each float64 [D, K].

    Attributes
    ----------
    recall : how often the true token at depth d has rank r, over all positions (teacher-forced, no path).
    conditional : of the replayed rounds whose path reached depth d - 1, the share that goes on at rank r.
    unconditional : of all replayed rounds, the share whose path goes through rank r at depth d.
    """

    recall: np.ndarray
    conditional: np.ndarray
    unconditional: np.ndarray


def depth_rank(trace: Trace, ranks: np.ndarray, rounds: Rounds) -> DepthRank:
    """Return the three (depth, rank) tables of a replay.

    Parameters
    ----------
    trace : Trace
    ranks : int16 [T, D]
        :meth:`kdtree_cupy.trace.Trace.true_ranks`.
    rounds : Rounds
        Of one policy and budget; censored rounds are left out.
    """
    depth, width = trace.depth, trace.width
    roots, accepted = rounds.root[~rounds.censored], rounds.accepted[~rounds.censored]
    recall = np.zeros((depth, width))
    unconditional = np.zeros((depth, width))
    conditional = np.zeros((depth, width))
    open_ended = uncensored_positions(trace)
    for d in range(depth):
        truth = ranks[open_ended, d]
        truth = truth[truth > -2]  # nothing is true beyond the stop token
        recall[d] = _shares(truth, width, max(1, truth.size))
        through = ranks[roots[accepted > d], d]
        unconditional[d] = _shares(through, width, max(1, roots.size))
        conditional[d] = _shares(through, width, max(1, int((accepted >= d).sum())))
    return DepthRank(recall, conditional, unconditional)


def _shares(ranks: np.ndarray, width: int, total: int) -> np.ndarray:
    return np.bincount(ranks[ranks >= 0], minlength=width)[:width] / total


def uncensored_positions(trace: Trace) -> np.ndarray:
    """Return the positions where a round could start and would not be censored, bool [T]."""
    end = np.repeat(trace.sequence_offsets[1:].astype(np.int64), trace.lengths)
    left = end - 1 - np.arange(trace.tokens.size)
    ended = np.repeat(trace.ended(), trace.lengths)
    return (left >= 1) & ((left >= trace.depth) | ended)


def path_conditional_table(trace: Trace, ranks: np.ndarray, *, leave_out: bool = True) -> np.ndarray:
    """Return acceptance of rank r at depth d given that all earlier true tokens were kept, [S or 1, D, K].

    Fits the ``static`` policy.  With ``leave_out`` table s uses every sequence but s, so a policy is never
    fitted on the text it is replayed on.

    Notes
    -----
    Counts get half an observation spread over the K ranks by the pooled rank profile of all depths: rare
    (depth, rank) pairs keep a small, ordered value and large budgets stay reachable.
    """
    depth, width = trace.depth, trace.width
    use = uncensored_positions(trace)
    sequence = trace.sequence_of()[use]
    truth = ranks[use].astype(np.int64)
    hits = np.zeros((trace.sequences, depth, width))
    trials = np.zeros((trace.sequences, depth))
    alive = np.ones(truth.shape[0], bool)
    for d in range(depth):
        trials[:, d] = np.bincount(sequence[alive], minlength=trace.sequences)
        alive = alive & (truth[:, d] >= 0)
        np.add.at(hits[:, d], (sequence[alive], truth[alive, d]), 1.0)
    if leave_out:
        hits, trials = hits.sum(0) - hits, trials.sum(0) - trials
    else:
        hits, trials = hits.sum(0, keepdims=True), trials.sum(0, keepdims=True)
    profile = hits.sum(1) + 1.0 / (1.0 + np.arange(width))
    profile /= profile.sum(1, keepdims=True)
    return (hits + 0.5 * profile[:, None, :]) / (trials[:, :, None] + 1.0)


class Reliability(NamedTuple):
    """Predicted against observed probability of drafted tokens, by depth; float64 [D, bins], int64 counts."""

    predicted: np.ndarray
    observed: np.ndarray
    count: np.ndarray
    error: np.ndarray  # relative calibration error per depth, [D]


def reliability(trace: Trace, ranks: np.ndarray, bins: int = 10) -> Reliability:
    """Compare the drafter's probability of each kept token with how often it was the true one.

    Teacher-forced over uncensored positions that have a true token at that depth; bins of equal width in
    probability.  ``error`` is relative: abs(predicted - observed) hits, added over the bins, divided by the
    predicted hits; thousands of tail tokens near zero do not hide the head.
    """
    positions = np.flatnonzero(uncensored_positions(trace))
    depth, width = trace.depth, trace.width
    shape = (depth, bins)
    mass, hits, count = np.zeros(shape), np.zeros(shape), np.zeros(shape, np.int64)
    for d in range(depth):
        use = positions[ranks[positions, d] > -2]
        p = np.exp(trace.draft_logprobs[use, d].astype(np.float64))
        hit = ranks[use, d, None] == np.arange(width)
        cell = np.minimum((p * bins).astype(np.int64), bins - 1).ravel()
        count[d] = np.bincount(cell, minlength=bins)
        mass[d] = np.bincount(cell, weights=p.ravel(), minlength=bins)
        hits[d] = np.bincount(cell, weights=hit.ravel().astype(np.float64), minlength=bins)
    with np.errstate(invalid="ignore", divide="ignore"):
        predicted, observed = mass / count, hits / count
        error = np.abs(mass - hits).sum(1) / mass.sum(1)
    return Reliability(predicted, observed, count, error)
