"""The acceptance study: every policy and budget replayed on every trace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from . import acceptance as stats
from .cost import CostTable
from .importers import Measured
from .parallel import run_tasks
from .policies import POLICIES
from .policy_fit import fit
from .replay import Acceptance, Rounds, acceptance, check_budgets, jump
from .study_table import result_rows, speedup_rows, tau_table
from .trace import Trace

BUDGETS = (4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 512, 1024)
"""Budgets of a study without ``--budgets``: the 12 sizes people sweep."""

BASELINE = "chain"


class Replayed(NamedTuple):
    """One policy on one trace: what it accepts everywhere, and the rounds of each budget."""

    acceptance: Acceptance
    rounds: tuple[Rounds, ...]


@dataclass
class TraceResult:
    """Everything the figures and tables of one trace need.

    Parameters
    ----------
    trace : Trace
    ranks : int16 [T, D]
        Rank of the target's own tokens.
    replays : dict of str to Replayed
    """

    trace: Trace
    ranks: np.ndarray
    replays: dict[str, Replayed] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """The trace's name as figures may show it: short, printable, no mathematics."""
        name = "".join(c if c.isprintable() else "?" for c in self.trace.name)
        return (name if len(name) <= 48 else name[:47] + "…").replace("$", r"\$")

    def column(self, budget: int) -> int:
        """Return the index of ``budget`` in the replays of every policy that takes it."""
        budgets = self.replays[BASELINE].acceptance.budgets
        return int(np.searchsorted(budgets, budget))

    @cached_property
    def oracle_tau(self) -> tuple[float, float]:
        """Return pooled tau of the two oracles: knows the text; knows it, but picks among kept ranks only."""
        bound = stats.oracle(self.ranks)
        return tuple(stats.tau(jump(self.trace, part)).pooled for part in bound)  # type: ignore[return-value]

    @cached_property
    def position_average(self) -> dict[str, np.ndarray]:
        """Return tau averaged over all positions instead of rounds, [budgets]: biased, shown as a warning."""
        use = stats.uncensored_positions(self.trace)
        return {name: r.acceptance.accepted[use].mean(0) + 1.0 for name, r in self.replays.items()}


@dataclass(repr=False)
class StudyResult:
    """A whole study.

    Parameters
    ----------
    traces : list of TraceResult
    budgets : int64 [n]
    policies : tuple of str
    costs : tuple of CostTable
    rows, speedups : list of dict
        Contents of ``results.csv`` and ``speedup.csv``.
    seed : int
    command : str
        How to run it again.
    overlays : tuple of Measured
        Acceptance measured elsewhere, drawn over the figures.
    """

    traces: list[TraceResult]
    budgets: np.ndarray
    policies: tuple[str, ...]
    costs: tuple[CostTable, ...]
    rows: list[dict[str, Any]]
    speedups: list[dict[str, Any]]
    seed: int
    command: str = ""
    overlays: tuple[Measured, ...] = ()

    @property
    def shown_budget(self) -> int:
        """The budget that single-budget figures use: 64, or the middle of the list."""
        return 64 if 64 in self.budgets else int(self.budgets[len(self.budgets) // 2])

    def select(self, **wanted: Any) -> list[dict[str, Any]]:
        """Return the rows whose columns have the given values."""
        return [row for row in self.rows if all(row[key] == value for key, value in wanted.items())]

    def __repr__(self) -> str:
        names = ", ".join(part.trace.name for part in self.traces)
        return f"StudyResult({names}; {', '.join(self.policies)}; B = {', '.join(map(str, self.budgets))})"

    def _repr_html_(self) -> str:
        return tau_table(self)


def run_study(
    traces: Sequence[Trace],
    *,
    budgets: Sequence[int] = BUDGETS,
    policies: Sequence[str] = ("chain", "ddtree", "static"),
    costs: Sequence[CostTable] = (),
    jobs: int = 1,
    dask: str | None = None,
    seed: int = 0,
    progress: Callable[[int], object] | None = None,
    command: str = "",
    overlays: Sequence[Measured] = (),
) -> StudyResult:
    """Replay ``policies`` at ``budgets`` on ``traces`` and tabulate.

    Parameters
    ----------
    traces : sequence of Trace
        Names must differ: the table is keyed by them.
    budgets : sequence of int
        Draft nodes, root excluded, 0..1024.
    policies : sequence of str
        Names of :data:`kdtree_cupy.policies.POLICIES`; the chain baseline is always added.
    costs : sequence of CostTable
        For predicted speedups.
    jobs : int
        Processes (joblib); results do not depend on it.
    dask : str, optional
        "local" or the address of a Dask scheduler (:func:`kdtree_cupy.parallel.run_tasks`).
    seed : int
        Seed of the bootstrap.
    progress : callable, optional
        Called with the number of positions replayed since the last call.
    command : str
        Shown in the report.
    overlays : sequence of Measured
        See :mod:`kdtree_cupy.importers`.

    Raises
    ------
    ValueError
        Unknown policy, budget out of range, repeated trace name, jobs < 1, or no trace.
    """
    wanted = check_budgets(budgets)
    names = _check_policies(policies)
    labels = [trace.name for trace in traces]
    if not labels:
        raise ValueError("traces: got none, wanted at least one")
    if len(set(labels)) < len(labels):
        twice = next(name for name in labels if labels.count(name) > 1)
        raise ValueError(
            f"traces: the name {twice!r} comes twice; set header field 'name' or rename the file"
        )
    for trace in traces:
        if not (trace.lengths >= 2).any():
            raise ValueError(
                f"{trace.path or trace.name}: no sequence has two tokens, so there is no round to replay"
            )
    if jobs < 1:
        raise ValueError(f"jobs: got {jobs}, wanted at least 1")
    results = [TraceResult(trace, trace.true_ranks()) for trace in traces]
    for name in names:
        possible_budgets(name, wanted)
    tasks = [(r.trace, r.ranks, name, wanted) for r in results for name in names]
    owners = [(r, name) for r in results for name in names]
    for (result, name), replayed in zip(owners, _run(tasks, jobs, dask, progress), strict=True):
        result.replays[name] = replayed
    rows = [row for r in results for row in result_rows(r, names, wanted, seed)]
    speedups = [row for r in results for row in speedup_rows(r, names, wanted, costs)]
    return StudyResult(results, wanted, names, tuple(costs), rows, speedups, seed, command, tuple(overlays))


def _check_policies(policies: Sequence[str]) -> tuple[str, ...]:
    names = list(dict.fromkeys(policies))
    for name in names:
        if name not in POLICIES:
            raise ValueError(f"policies: got {name!r}, wanted some of {', '.join(POLICIES)}")
    return tuple(names if BASELINE in names else [BASELINE, *names])


def possible_budgets(name: str, budgets: np.ndarray) -> np.ndarray:
    """Return the budgets that a policy takes.

    Raises
    ------
    ValueError
        It takes none of them.
    """
    most = getattr(POLICIES[name], "max_budget", None)
    kept = budgets if most is None else budgets[budgets <= most]
    if kept.size == 0:
        raise ValueError(f"budgets: got {budgets.tolist()}, wanted one of at most {most} for policy {name}")
    return kept


def _run(
    tasks: list[tuple[Any, ...]], jobs: int, dask: str | None, progress: Callable[[int], object] | None
) -> list[Replayed]:
    if jobs == 1 and dask is None:  # progress within a task
        return [replay_policy(*task, progress=progress) for task in tasks]

    def done(i: int) -> None:
        if progress is not None:
            progress(tasks[i][0].tokens.size)

    return run_tasks(replay_policy, tasks, jobs=jobs, dask=dask, done=done)


def replay_policy(
    trace: Trace,
    ranks: np.ndarray,
    name: str,
    budgets: np.ndarray,
    progress: Callable[[int], object] | None = None,
) -> Replayed:
    """Replay one policy on one trace; what must be fitted leaves each sequence out of its own fit."""
    options, per_position = fit(name, trace, ranks)
    budgets = possible_budgets(name, budgets)
    result = acceptance(
        trace, POLICIES[name], budgets, options=options, per_position=per_position, progress=progress
    )
    rounds = tuple(jump(trace, result.accepted[:, j]) for j in range(budgets.size))
    return Replayed(result, rounds)
