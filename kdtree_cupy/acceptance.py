"""Statistics of replayed rounds: tau and its spread, histograms, survival, bounds, expected against realised.

Conventions, printed beside every number: tau counts the bonus token; budgets exclude the root.  Means are
given over sequences *and* pooled.  Censored rounds (the recording stopped before root + D) count in tau
only.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .rank_tables import (
    DepthRank,
    Reliability,
    depth_rank,
    path_conditional_table,
    reliability,
    uncensored_positions,
)
from .replay import Acceptance, Rounds

__all__ = [
    "Tau", "tau", "tau_pooled",
    "bootstrap", "histogram", "survival", "Oracle", "oracle", "surrogate_by_decile",
    "expected_tokens",
    # by depth and rank (kdtree_cupy.rank_tables)
    "DepthRank", "depth_rank", "path_conditional_table", "Reliability", "reliability",
    "uncensored_positions",
]  # fmt: skip

RESAMPLES = 2000
_DRAWS = 1 << 22  # drawn at once by the bootstrap


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


def tau_pooled(rounds: Rounds) -> float:
    """Return tokens / rounds; NaN without a round."""
    return float(rounds.tokens.sum() / rounds.tokens.size) if rounds.tokens.size else float("nan")


def bootstrap(values: np.ndarray, *, seed: int = 0, resamples: int = RESAMPLES) -> tuple[float, float]:
    """Return the 95% percentile interval of the mean of ``values`` under resampling."""
    rng = np.random.default_rng(seed)
    step = max(1, _DRAWS // values.size)  # in blocks: a large trace has many sequences
    blocks = (min(step, resamples - done) for done in range(0, resamples, step))
    means = np.concatenate([values[rng.integers(0, values.size, (n, values.size))].mean(1) for n in blocks])
    low, high = np.percentile(means, [2.5, 97.5])
    return float(low), float(high)


def histogram(rounds: Rounds, depth: int, keep: np.ndarray | None = None) -> np.ndarray:
    """Return how many uncensored rounds accept 0 .. D drafts (so give 1 .. D + 1 tokens), int64 [D + 1].

    A round that accepts a sequence's stop token counts its drafts, although no bonus token follows.
    """
    used = ~rounds.censored if keep is None else ~rounds.censored & keep[rounds.sequence]
    return np.bincount(rounds.accepted[used], minlength=depth + 1)


def survival(counts: np.ndarray) -> np.ndarray:
    """Return the share of rounds that accept at least d drafts, d = 0 .. D, from a histogram."""
    total = counts.sum()
    return np.cumsum(counts[::-1])[::-1] / total if total else np.full(counts.size, np.nan)


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


def expected_tokens(acceptance_rate: float, drafts: int) -> float:
    """Return tokens per round of a chain whose drafts are each accepted with the same probability.

    (1 - a^(g + 1)) / (1 - a) for rate a and g drafts (Leviathan et al., arXiv 2211.17192): a yardstick for
    measured chains.

    Examples
    --------
    >>> round(expected_tokens(0.8, 4), 4)
    3.3616
    """
    if not 0 <= acceptance_rate <= 1 or drafts < 0:
        raise ValueError(
            f"got rate {acceptance_rate}, drafts {drafts}; wanted a rate in 0..1 and drafts >= 0"
        )
    return float((float(acceptance_rate) ** np.arange(drafts + 1)).sum())
