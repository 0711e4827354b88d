"""Rows of the study's tidy tables ``results.csv`` and ``speedup.csv``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from . import acceptance as stats
from . import html_parts
from .cost import CostTable, round_in_ar_steps, speedup
from .policies import POLICIES

if TYPE_CHECKING:
    from .study import StudyResult, TraceResult

COLUMNS = (
    "trace", "policy", "budget", "subset", "tau_mean", "tau_pooled", "tau_low", "tau_high", "rounds",
    "tokens", "certified_share", "backend", "sequences", "nodes_mean", "surrogate_tau", "depth", "width",
    "temperature",
)  # fmt: skip
"""Columns of ``results.csv``."""

SPEEDUP_COLUMNS = ("trace", "policy", "budget", "cost", "context", "nodes", "tau_pooled", "speedup")
"""Columns of ``speedup.csv``."""


def result_rows(
    result: TraceResult, names: Sequence[str], budgets: np.ndarray, seed: int
) -> list[dict[str, Any]]:
    """Return one row of ``results.csv`` per policy, budget and subset of one trace."""
    trace = result.trace
    keeps = {"all": np.ones(trace.sequences, bool), "no_loops": ~trace.looping()}
    rows = []
    for name in names:
        table, all_rounds = result.replays[name]
        for j, budget in enumerate(table.budgets):
            rounds = all_rounds[j]
            for subset, keep in keeps.items():
                tau = stats.tau(rounds, keep, seed=seed)
                roots = rounds.root[keep[rounds.sequence]]
                mean = _mean_at(roots)
                rows.append({
                    "trace": trace.name, "policy": name, "budget": int(budget), "subset": subset,
                    "tau_mean": tau.mean, "tau_pooled": tau.pooled, "tau_low": tau.low, "tau_high": tau.high,
                    "rounds": tau.rounds, "tokens": tau.tokens,
                    "certified_share": mean(table.certified[:, j]) if name == "ddtree" else None,
                    "backend": "numpy", "sequences": tau.sequences,
                    "nodes_mean": mean(table.nodes_by_depth[:, j, 1:].sum(1)),
                    "surrogate_tau": 1.0 + mean(table.surrogate[:, j]),
                    "depth": trace.depth, "width": trace.width,
                    "temperature": trace.header.get("temperature"),
                })  # fmt: skip
    return rows


def _mean_at(roots: np.ndarray) -> Callable[[np.ndarray], float]:
    return lambda values: float(values[roots].mean()) if roots.size else float("nan")


def speedup_rows(
    result: TraceResult, names: Sequence[str], budgets: np.ndarray, costs: Sequence[CostTable]
) -> list[dict[str, Any]]:
    """Return one row of ``speedup.csv`` per cost table, policy and budget of one trace."""
    rows = []
    for cost in costs:
        for name in names:
            for j, budget in enumerate(result.replays[name].acceptance.budgets):
                rounds = result.replays[name].rounds[j]
                pooled = stats.tau(rounds).pooled
                nodes: Any = min(int(budget), result.trace.depth) if name == "chain" else int(budget)
                gain = speedup(pooled, cost, nodes, chain=name == "chain")
                if getattr(POLICIES[name], "adaptive", False):  # rounds differ: ratio of sums
                    used = result.replays[name].acceptance.nodes_by_depth[rounds.root, j, 1:].sum(1)
                    nodes = float(used.mean())
                    gain = pooled / round_in_ar_steps(cost, used.astype(float)).mean()
                rows.append({
                    "trace": result.trace.name, "policy": name, "budget": int(budget), "cost": cost.name,
                    "context": cost.default_context, "nodes": nodes, "tau_pooled": pooled,
                    "speedup": float(gain),
                })  # fmt: skip
    return rows


def tree_policy(result: StudyResult) -> str:
    """Return the policy that single-policy figures and headlines are about: ddtree, or the last one.

    Policies that do not take all budgets are left aside.
    """
    replays = result.traces[0].replays
    full = [name for name in result.policies if replays[name].acceptance.budgets.size == result.budgets.size]
    return "ddtree" if "ddtree" in full else full[-1]


def tau_table(result: StudyResult) -> str:
    """Return pooled tau as an HTML table: a row per trace and policy, a column per budget."""
    head = ["trace", "policy", *(f"B = {b}" for b in result.budgets)]
    rows = []
    for part in result.traces:
        for name in result.policies:
            found = result.select(trace=part.trace.name, policy=name, subset="all")
            by_budget = {row["budget"]: row["tau_pooled"] for row in found}
            rows.append([part.trace.name, name, *(by_budget.get(int(b)) for b in result.budgets)])
    note = "tau = tokens per round, bonus counted, pooled; B = draft nodes, root excluded"
    return html_parts.table(head, rows, text=2, caption=note)
