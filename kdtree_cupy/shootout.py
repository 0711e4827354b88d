"""All policies at equal budgets: intervals, paired differences, oracle gaps, prompt kinds."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import acceptance as stats
from .lab import Lab, lab
from .parallel import run_tasks
from .policies import POLICIES
from .replay import Rounds, check_budgets, jump
from .study import Replayed, replay_policy
from .trace import Trace

BUDGETS = (16, 64)
REFERENCE = "ddtree"
COLUMNS = (
    "trace", "kind", "temperature", "policy", "budget", "nodes_mean", "tau_mean", "tau_low", "tau_high",
    "tau_pooled", "difference", "difference_low", "difference_high", "better", "worse", "equal", "sign_p",
    "oracle_tau", "oracle_share", "sequences", "rounds", "backend",
)  # fmt: skip
"""Columns of ``shootout.csv``; differences are against ddtree, per sequence."""


def default_policies() -> tuple[str, ...]:
    """Return the policies that fill their budget: adaptive ones have a figure of their own."""
    return tuple(name for name, policy in POLICIES.items() if not getattr(policy, "adaptive", False))


@dataclass
class Shootout:
    """Result of :func:`run_shootout`.

    Parameters
    ----------
    traces : list of Trace
    budgets : int64 [n]
    policies : tuple of str
    rows : list of dict
        Contents of ``shootout.csv``; ``trace`` is "all of KIND, temperature T" where traces are pooled.
    labs : list of Lab
        Further effects, a record per trace (:mod:`kdtree_cupy.lab`).
    """

    traces: list[Trace]
    budgets: np.ndarray
    policies: tuple[str, ...]
    rows: list[dict[str, Any]]
    labs: list[Lab]

    def select(self, **wanted: Any) -> list[dict[str, Any]]:
        """Return the rows whose columns have the given values."""
        return [row for row in self.rows if all(row[key] == value for key, value in wanted.items())]


def run_shootout(
    traces: Sequence[Trace],
    *,
    budgets: Sequence[int] = BUDGETS,
    policies: Sequence[str] | None = None,
    jobs: int = 1,
    dask: str | None = None,
    seed: int = 0,
    progress: Callable[[int], object] | None = None,
) -> Shootout:
    """Replay ``policies`` at ``budgets`` on ``traces`` and compare them in pairs.

    Parameters
    ----------
    traces : sequence of Trace
    budgets : sequence of int
        Few: each gets a panel.
    policies : sequence of str, optional
        Default: :func:`default_policies`; chain and ddtree are always added.
    jobs, dask, seed, progress
        As :func:`kdtree_cupy.study.run_study`; ``progress`` is called with 1 per task.
    """
    wanted = check_budgets(budgets)
    names = tuple(dict.fromkeys(["chain", REFERENCE, *(policies or default_policies())]))
    unknown = [name for name in names if name not in POLICIES]
    if unknown:
        raise ValueError(f"policies: got {unknown[0]!r}, wanted some of {', '.join(POLICIES)}")
    names = tuple(n for n in names if getattr(POLICIES[n], "max_budget", 1024) >= wanted[0])
    ranks = [trace.true_ranks() for trace in traces]
    tasks = [(replay_policy, t, r, n, wanted) for t, r in zip(traces, ranks, strict=True) for n in names]
    tasks += [(lab, t, r) for t, r in zip(traces, ranks, strict=True)]

    def done(_: int) -> None:
        if progress is not None:
            progress(1)

    results = run_tasks(_call, tasks, jobs=jobs, dask=dask, done=done)
    replays = {
        (i, name): results[i * len(names) + j] for i in range(len(traces)) for j, name in enumerate(names)
    }
    rows: list[dict[str, Any]] = []
    for group in _groups(traces):
        for name in names:
            rows += _rows(traces, ranks, group, name, replays, seed)
    return Shootout(list(traces), wanted, names, rows, results[len(traces) * len(names) :])


def _call(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)


def kind_of(trace: Trace) -> str:
    """Return the prompt kind of a trace: its header's ``task``."""
    return str(trace.header.get("task") or "unknown")


def _groups(traces: Sequence[Trace]) -> list[tuple[str, list[int]]]:
    """Return (label, members): each trace; those of a kind and temperature; those of a temperature."""
    groups = [(trace.name, [i]) for i, trace in enumerate(traces)]
    by: dict[str, list[int]] = {}
    for i, trace in enumerate(traces):
        heat = trace.header.get("temperature")
        by.setdefault(f"all of {kind_of(trace)}, temperature {heat}", []).append(i)
        by.setdefault(f"all at temperature {heat}", []).append(i)
    several = [(label, members) for label, members in by.items() if len(members) > 1]
    distinct = {tuple(members): label for label, members in reversed(several)}  # a kind's name goes first
    return groups + [(label, members) for label, members in several if distinct[tuple(members)] == label]


def per_sequence(rounds: Rounds, sequences: int) -> np.ndarray:
    """Return tokens per round of every sequence, float64 [S]; NaN without a round."""
    count = np.bincount(rounds.sequence, minlength=sequences)
    total = np.bincount(rounds.sequence, weights=rounds.tokens, minlength=sequences)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def sign_test(better: int, worse: int) -> float:
    """Return the two-sided exact sign test's p: chance of a split at least so uneven if both were equal.

    Examples
    --------
    >>> sign_test(10, 2)
    0.03857421875
    """
    n = better + worse
    tail = sum(math.comb(n, i) for i in range(min(better, worse) + 1))
    return min(1.0, 2.0 * tail / 2.0**n)


def _rows(
    traces: Sequence[Trace],
    ranks: Sequence[np.ndarray],
    group: tuple[str, list[int]],
    name: str,
    replays: dict[tuple[int, str], Replayed],
    seed: int,
) -> list[dict[str, Any]]:
    label, members = group
    out = []
    for j, budget in enumerate(replays[members[0], name].acceptance.budgets):
        mine, other, nodes, tokens, rounds, bound = [], [], [], 0, 0, []
        for i in members:
            one, base = replays[i, name], replays[i, REFERENCE]
            mine.append(per_sequence(one.rounds[j], traces[i].sequences))
            other.append(per_sequence(base.rounds[j], traces[i].sequences))
            nodes.append(one.acceptance.nodes_by_depth[one.rounds[j].root, j, 1:].sum(1))
            tokens, rounds = tokens + int(one.rounds[j].tokens.sum()), rounds + one.rounds[j].root.size
            kept = stats.oracle(ranks[i]).kept_ranks
            bound.append(per_sequence(jump(traces[i], kept), traces[i].sequences))
        own, theirs, most = (np.concatenate(x) for x in (mine, other, bound))
        use = np.isfinite(own)
        own, theirs, most = own[use], theirs[use], most[use]
        gap = own - theirs
        low, high = stats.bootstrap(own, seed=seed)
        gap_low, gap_high = stats.bootstrap(gap, seed=seed)
        better, worse = int((gap > 1e-12).sum()), int((gap < -1e-12).sum())
        first = traces[members[0]]
        kinds = {kind_of(traces[i]) for i in members}
        out.append({
            "trace": label, "kind": kinds.pop() if len(kinds) == 1 else "several",
            "temperature": first.header.get("temperature"), "policy": name, "budget": int(budget),
            "nodes_mean": float(np.concatenate(nodes).mean()), "tau_mean": float(own.mean()),
            "tau_low": low, "tau_high": high, "tau_pooled": tokens / rounds,
            "difference": float(gap.mean()), "difference_low": gap_low, "difference_high": gap_high,
            "better": better, "worse": worse, "equal": int(gap.size - better - worse),
            "sign_p": sign_test(better, worse), "oracle_tau": float(most.mean()),
            "oracle_share": float((own.mean() - 1) / max(most.mean() - 1, 1e-12)),
            "sequences": int(own.size), "rounds": rounds, "backend": "numpy",
        })  # fmt: skip
    return out
