"""Statistics of replayed rounds: tau and its spread, histograms, survival, acceptance by depth and rank.

Conventions, printed beside every number: tau counts the bonus token; budgets exclude the root.  Means are
given over sequences *and* pooled.  Censored rounds (the recording stopped before root + D) count in tau
only.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .replay import Acceptance, Rounds
from .trace import Trace

RESAMPLES = 2000


class Tau(NamedTuple):
    """Tokens per round: mean over sequences, pooled, 95% bootstrap interval of the mean, and the counts."""

    mean: float
    pooled: float
    low: float
    high: float
    rounds: int
    tokens: int
    sequences: int


def tau(rounds: Rounds, keep: np.ndarray | None = None, *, seed: int = 0) -> Tau:
    """Return tokens per round, bonus counted.

    Parameters
    ----------
    rounds : Rounds
    keep : bool [S], optional
        Sequences to use (default: all with a round).
    seed : int
        Seed of the bootstrap over sequences.

    Notes
    -----
    The interval is the 2.5% and 97.5% percentile of the mean over 2,000 resamples of the sequences.
    """
    used = np.ones(rounds.sequence.size, bool) if keep is None else keep[rounds.sequence]
    sequence, tokens = rounds.sequence[used], rounds.tokens[used]
    if sequence.size == 0:
        return Tau(np.nan, np.nan, np.nan, np.nan, 0, 0, 0)
    count = np.bincount(sequence)
    total = np.bincount(sequence, weights=tokens)
    per_sequence = total[count > 0] / count[count > 0]
    low, high = bootstrap(per_sequence, seed=seed)
    return Tau(
        mean=float(per_sequence.mean()),
        pooled=float(tokens.sum() / sequence.size),
        low=low,
        high=high,
        rounds=int(sequence.size),
        tokens=int(tokens.sum()),
        sequences=int(per_sequence.size),
    )


def bootstrap(values: np.ndarray, *, seed: int = 0, resamples: int = RESAMPLES) -> tuple[float, float]:
    """Return the 95% percentile interval of the mean of ``values`` under resampling."""
    rng = np.random.default_rng(seed)
    means = values[rng.integers(0, values.size, (resamples, values.size))].mean(1)
    low, high = np.percentile(means, [2.5, 97.5])
    return float(low), float(high)


def histogram(rounds: Rounds, depth: int, keep: np.ndarray | None = None) -> np.ndarray:
    """Return how many uncensored rounds commit 1 .. D + 1 tokens, int64 [D + 1]."""
    used = ~rounds.censored if keep is None else ~rounds.censored & keep[rounds.sequence]
    return np.bincount(rounds.accepted[used], minlength=depth + 1)


def survival(counts: np.ndarray) -> np.ndarray:
    """Return the share of rounds that accept at least d drafts, d = 0 .. D, from a histogram."""
    total = counts.sum()
    return np.cumsum(counts[::-1])[::-1] / total if total else np.full(counts.size, np.nan)


class DepthRank(NamedTuple):
    """Acceptance by (depth, rank), three definitions, each float64 [D, K].

    Attributes
    ----------
    recall : share of all positions whose true token at depth d has rank r (teacher-forced, no path).
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
        recall[d] = _shares(truth, width, max(1, int(open_ended.sum())))
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
    error: np.ndarray  # expected calibration error per depth, [D]


def reliability(trace: Trace, ranks: np.ndarray, bins: int = 10) -> Reliability:
    """Compare the drafter's probability of each kept token with how often it was the true one.

    Teacher-forced over uncensored positions; bins of equal width in probability.  ``error`` weighs
    |predicted - observed| by predicted mass, so that thousands of tail tokens near zero do not hide the head.
    """
    use = np.flatnonzero(uncensored_positions(trace))
    depth, width = trace.depth, trace.width
    shape = (depth, bins)
    mass, hits, count = np.zeros(shape), np.zeros(shape), np.zeros(shape, np.int64)
    for d in range(depth):
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


class Oracle(NamedTuple):
    """Drafts accepted by trees that know the text, int64 [T]: limited by D, or also by the K kept ranks."""

    unlimited: np.ndarray
    kept_ranks: np.ndarray


def oracle(ranks: np.ndarray) -> Oracle:
    """Return bounds that no policy on this trace can pass, from the true ranks [T, D]."""
    inside = ranks > -2
    kept = np.logical_and.accumulate(ranks >= 0, axis=1)
    return Oracle(inside.sum(1), kept.sum(1))


def surrogate_by_decile(
    acceptance: Acceptance, column: int, rounds: Rounds, bins: int = 10
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (expected, realised, standard error) tokens per round in bins of equal count of the expectation.

    Expected = 1 + sum exp(score) of the round's own tree; realised = accepted + 1; uncensored rounds.
    """
    use = ~rounds.censored
    expected = 1.0 + acceptance.surrogate[rounds.root[use], column]
    realised = rounds.accepted[use] + 1.0
    groups = [g for g in np.array_split(np.argsort(expected, kind="stable"), bins) if g.size]
    mean = np.array([expected[g].mean() for g in groups])
    real = np.array([realised[g].mean() for g in groups])
    error = np.array([realised[g].std() / np.sqrt(g.size) for g in groups])
    return mean, real, error
