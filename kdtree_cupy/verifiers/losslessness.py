"""Does a verifier emit the target's distribution?  A chi-square test over whole runs of tokens."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from .sampling import Verify, Walked, walk
from .toy import ToyModel
from .traversal import traverse

_CHUNK = 200_000  # draws at once: bounds memory


class ChiSquare(NamedTuple):
    """Statistic, degrees of freedom and the probability of so large a statistic if the law is right."""

    statistic: float
    freedom: int
    p_value: float


def chi_square(counts: np.ndarray, expected: np.ndarray) -> ChiSquare:
    """Compare counts with a law.

    Parameters
    ----------
    counts : int [cells]
    expected : float [cells]
        Probabilities; cells with expectation below 5 are merged into one.

    Notes
    -----
    A count in a cell of probability 0 gives p_value 0: that cell can never be hit.
    """
    counts, expected = np.asarray(counts, np.float64), np.asarray(expected, np.float64)
    if counts.shape != expected.shape or counts.ndim != 1 or counts.sum() <= 0:
        raise ValueError(f"counts {counts.shape}, expected {expected.shape}: wanted one shape and draws")
    if (counts[expected <= 0] > 0).any():
        return ChiSquare(math.inf, 0, 0.0)
    wanted = expected / expected.sum() * counts.sum()
    small = wanted < 5
    observed = np.append(counts[~small], counts[small].sum())
    wanted = np.append(wanted[~small], wanted[small].sum())
    used = wanted > 0
    statistic = float(((observed[used] - wanted[used]) ** 2 / wanted[used]).sum())
    freedom = int(used.sum()) - 1
    return ChiSquare(statistic, freedom, upper_gamma(freedom / 2, statistic / 2) if freedom > 0 else 1.0)


def upper_gamma(a: float, x: float) -> float:
    """Return the regularised upper incomplete gamma function Q(a, x): a chi-square's tail is Q(k/2, x/2)."""
    if x <= 0:
        return 1.0
    scale = math.exp(-x + a * math.log(x) - math.lgamma(a))
    if x < a + 1:  # series of the lower function
        term = total = 1.0 / a
        n = a
        while abs(term) > 1e-16 * abs(total):
            n += 1
            term *= x / n
            total += term
        return max(0.0, 1.0 - scale * total)
    b, c, d = x + 1 - a, math.inf, 1.0 / (x + 1 - a)  # continued fraction (modified Lentz)
    h = d
    for i in range(1, 1000):
        an = -i * (i - a)
        b += 2
        d = 1.0 / (an * d + b)
        c = b + an / c
        h *= d * c
        if abs(d * c - 1) < 1e-16:
            break
    return scale * h


def losslessness(
    rule: str | Verify,
    model: ToyModel,
    k: int,
    *,
    draws: int = 1_000_000,
    depth: int | None = None,
    seed: int = 0,
) -> ChiSquare:
    """Decode ``draws`` rounds and compare the runs of tokens with the target's law.

    Parameters
    ----------
    rule : str or callable
        "traversal", or what :func:`kdtree_cupy.verifiers.walk` takes.
    model : ToyModel
    k : int
        Drafts per node.
    draws, depth, seed : int

    Examples
    --------
    >>> from kdtree_cupy.verifiers import random_model
    >>> losslessness("rrs", random_model(0), 2, draws=20_000).p_value > 1e-6
    True
    """
    if draws < 1:
        raise ValueError(f"draws: got {draws}, wanted at least 1")
    counts = np.zeros(0, np.int64)
    for number, start in enumerate(range(0, draws, _CHUNK)):
        n = min(_CHUNK, draws - start)
        one = seed * 1_000_003 + number
        if rule == "traversal":
            run: Walked = traverse(model, k, n, depth=depth, seed=one)
        else:
            run = walk(rule, model, k, n, depth=depth, seed=one)
        cells = np.zeros(n, np.int64)
        for column in run.tokens.T:
            cells = cells * model.vocab + column
        size = model.vocab ** run.tokens.shape[1]
        counts = np.bincount(cells, minlength=size) + (counts if counts.size else 0)
    levels = round(math.log(counts.size, model.vocab))
    return chi_square(counts, model.joint(levels))
