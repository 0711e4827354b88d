"""Figures of a study under a cost table measured in parts: what a round costs, which budget pays where."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from .cost import CostTable
from .cost_study import Parts, fixed_and_per_round, has_parts, load_parts, tau_by_budget
from .plots_cost import plot_budget_rules, plot_ridge, plot_speedup_stack
from .study import StudyResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BATCHES = (1, 8, 64)
LEAST_CONTEXT = 2048
"""Shortest prefix (tokens) of the stage stack: below it attention is too small to be seen."""

STACK_TEXT = (
    "Above, predicted speedup of DDTree; below, what a round is made of. Attention and tree work are "
    "measured, the rest of the model and the drafter are bytes over bandwidth. Acceptance is that of "
    "{trace}, not of the table's own model: the shape of the curves carries over, their height does not."
)
RIDGE_TEXT = (
    "Each ridge is the speedup of DDTree against the budget at one prefix, scaled to its own peak; the "
    "orange line joins the peaks. A batch's attention and tree work are taken as that many times one "
    "request's; the weights are read once. Acceptance is that of {trace}."
)
RULES_TEXT = (
    "Fixed budgets of DDTree against two rules that choose a budget each round: each round's own ratio of "
    "expected tokens to time, and one price of time for all rounds. Bands: 95% bootstrap over the "
    "sequences of {trace}."
)


def cost_figures(result: StudyResult) -> list[tuple[Any, ...]]:
    """Return figures for :func:`kdtree_cupy.report_parts.draw_figures`: three for each table with parts."""
    return [entry for table in result.costs if has_parts(table) for entry in _figures_of(table)]


def _figures_of(table: CostTable) -> Iterator[tuple[Any, ...]]:
    parts = load_parts(table.path or table.name)
    for what, short, title, text, plot in (
        ("stack", "Stages", "What a round is made of", STACK_TEXT, _stack),
        ("ridge", "Best budget", "The best budget by prefix and batch", RIDGE_TEXT, _ridge),
        ("rules", "Per round", "One budget, or one for each round", RULES_TEXT, _rules),
    ):
        yield (
            f"cost_{what}_{table.name}", f"{short}: {table.name}", f"{title} ({table.name})",
            partial(plot, parts=parts), _filled(text),
        )  # fmt: skip


def _filled(text: str) -> Callable[[StudyResult], str]:
    return lambda result: text.format(trace=result.traces[0].title)


def _tau(result: StudyResult, parts: Parts) -> np.ndarray:
    return tau_by_budget(result.traces[0].trace, [int(n) for n in parts.table.nodes])


def _stack(result: StudyResult, parts: Parts) -> Figure:
    contexts = [int(c) for c in parts.table.contexts if c >= LEAST_CONTEXT][:3] or [
        int(parts.table.contexts[-1])
    ]
    return plot_speedup_stack(parts, _tau(result, parts), result.traces[0].title, contexts=contexts)


def _ridge(result: StudyResult, parts: Parts) -> Figure:
    return plot_ridge(parts, _tau(result, parts), result.traces[0].title, batches=BATCHES)


def _rules(result: StudyResult, parts: Parts) -> Figure:
    found = fixed_and_per_round(
        result.traces[0].trace, parts.table, [int(n) for n in parts.table.nodes], seed=result.seed
    )
    title = f"{parts.table.label()}\nacceptance: {result.traces[0].title}; 95% bootstrap over sequences"
    return plot_budget_rules(found, title)
