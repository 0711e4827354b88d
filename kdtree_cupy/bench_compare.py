"""Two benchmark tables side by side: faster, slower or the same, with intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .bench_table import KEY

RESAMPLES = 2000
NOISE = 0.01
"""A ratio of medians closer to 1 than this counts as the same, however sure it is: clocks drift that much."""


@dataclass(frozen=True)
class Comparison:
    """One measurement in both tables; ``ratio`` is time B / time A, with a 95% interval.

    Parameters
    ----------
    key : dict
        What was measured.
    us_a, us_b : float
        Medians.
    ratio, low, high : float
    verdict : {"faster", "slower", "same"}
        Of B against A.
    bootstrap : bool
        Whether the interval comes from samples, or from the printed percentiles.
    """

    key: Mapping[str, Any]
    us_a: float
    us_b: float
    ratio: float
    low: float
    high: float
    verdict: str
    bootstrap: bool


def compare(
    a: Sequence[Mapping[str, Any]], b: Sequence[Mapping[str, Any]], *, seed: int = 0, across: bool = False
) -> list[Comparison]:
    """Compare rows of two tables (:func:`~kdtree_cupy.bench_table.read_bench`) that measured the same thing.

    Parameters
    ----------
    a, b : sequence of rows
        Before and after.
    seed : int
        Of the bootstrap.
    across : bool
        Also compare rows of different GPUs.  Rows of different backends are never compared.

    Returns
    -------
    list of Comparison
        In the order of ``b``; what only one table has is left out.
    """
    names = [name for name in KEY if not (across and name == "gpu")]
    known = {tuple(row[name] for name in names): row for row in a}
    rng, out = np.random.default_rng(seed), []
    for row in b:
        other = known.get(tuple(row[name] for name in names))
        if other is None:
            continue
        own = [_medians(one, rng) for one in (other, row)]
        low, high = (float(x) for x in np.percentile(own[1] / own[0], (2.5, 97.5)))
        ratio = row["us_median"] / other["us_median"]
        verdict = "faster" if high < 1 - NOISE else "slower" if low > 1 + NOISE else "same"
        key = {name: row[name] for name in names}
        sampled = bool(row.get("samples") and other.get("samples"))
        out.append(Comparison(key, other["us_median"], row["us_median"], ratio, low, high, verdict, sampled))
    return out


def _medians(row: Mapping[str, Any], rng: np.random.Generator) -> np.ndarray:
    """Return medians of resamples; without samples, normal ones with the width of the percentiles."""
    samples = row.get("samples")
    if samples:
        drawn = rng.integers(0, len(samples), (RESAMPLES, len(samples)))
        return np.median(np.asarray(samples)[drawn], axis=1)
    sigma = (row["us_p80"] - row["us_p20"]) / 1.683  # of a normal sample
    error = 1.2533 * sigma / max(row["n"], 1) ** 0.5  # of its median
    return np.maximum(row["us_median"] + error * rng.standard_normal(RESAMPLES), 1e-9)


def table(found: Sequence[Comparison]) -> str:
    """Return the comparison as text, one line a row and a summary."""
    lines = []
    for one in found:
        sizes = ", ".join(f"{k} {one.key[k]:g}" for k in ("batch", "budget", "heads", "prefix") if one.key[k])
        what = f"{one.key['stage']:13} {one.key['variant']:10} {'cold' if one.key['cold'] else 'warm'}"
        spread = f"x{one.ratio:.3f} [{one.low:.3f}, {one.high:.3f}]"
        mark = "" if one.bootstrap else " (from percentiles)"
        lines.append(
            f"{one.verdict:6} {what} {one.us_a:10.2f} -> {one.us_b:10.2f} us  {spread}{mark}  {sizes}"
        )
    counts = {v: sum(one.verdict == v for one in found) for v in ("faster", "slower", "same")}
    lines.append(", ".join(f"{n} {v}" for v, n in counts.items()) + f", of {len(found)} measured in both")
    return "\n".join(lines)
