"""Acceptance measured elsewhere, in this package's convention."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ..acceptance import bootstrap
from ..errors import KdtrError


@dataclass(frozen=True)
class Measured:
    """One measured run; tau counts the bonus token, budgets exclude the root.

    Parameters
    ----------
    name : str
        Short, for legends.
    system : str
        Where it came from: "DDTree", "SGLang", ...
    convention : str
        What the file counts and what was done to it.
    tokens, rounds : float64 [n], float64 [n]
        Per response or request.
    counts : int64 [m] or None
        Rounds by tokens committed: ``counts[t]`` rounds committed t tokens.
    budget : int or None
        Draft nodes, root excluded, where the file tells.
    """

    name: str
    system: str
    convention: str
    tokens: np.ndarray
    rounds: np.ndarray
    counts: np.ndarray | None = None
    budget: int | None = None
    facts: dict[str, object] = field(default_factory=dict)

    @property
    def tau_pooled(self) -> float:
        """Tokens / rounds."""
        return float(self.tokens.sum() / self.rounds.sum())

    @property
    def tau_mean(self) -> float:
        """Mean over responses of their own tokens / rounds."""
        return float((self.tokens / self.rounds).mean())

    @property
    def interval(self) -> tuple[float, float]:
        """95% bootstrap of the mean over responses."""
        return bootstrap(self.tokens / self.rounds)

    def describe(self) -> str:
        """Return one line: system, name, tau both ways, sizes, convention."""
        both = f"tau {self.tau_mean:.3f} (mean of {self.rounds.size}), {self.tau_pooled:.3f} (pooled"
        return f"{self.system} {self.name}: {both}, {int(self.rounds.sum())} rounds). {self.convention}"


def from_histograms(
    path: object, name: str, system: str, convention: str, histograms: list[np.ndarray]
) -> Measured:
    """Return the record of requests whose ``histograms[i][n]`` counts rounds of n tokens, bonus counted."""
    width = max(h.size for h in histograms)
    table = np.array([np.pad(h, (0, width - h.size)) for h in histograms], np.int64)
    used = table[table.sum(1) > 0]
    if used.size == 0:
        raise KdtrError(f"{path}: no request with a verify step")
    return Measured(
        name,
        system,
        convention,
        (used * np.arange(width)).sum(1).astype(float),
        used.sum(1).astype(float),
        used.sum(0),
    )
