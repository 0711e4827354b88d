"""Figures of the study: functions from a result to a matplotlib Figure; no file is written here."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

import numpy as np

from . import acceptance as stats
from . import style
from .plots_overlay import overlay_histogram, overlay_tau
from .study import BASELINE, StudyResult, TraceResult
from .study_table import tree_policy

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANEL = (4.3, 3.3)  # inches


def panels(
    result: StudyResult, *, rows_per_trace: int = 1, columns: int = 3, share_y: bool = False
) -> tuple[Figure, np.ndarray]:
    """Return a figure with one panel per trace (three a row), unused panels hidden."""
    import matplotlib.pyplot as plt

    count = len(result.traces) * rows_per_trace
    across = min(columns, count)
    down = -(-count // across)
    size = (PANEL[0] * across + (1.6 if across == 1 else 0.0), PANEL[1] * down)
    figure, axes = plt.subplots(
        down, across, figsize=size, squeeze=False, sharey=share_y, layout="constrained"
    )
    flat = axes.ravel()
    for ax in flat[count:]:
        ax.set_visible(False)
    return figure, flat[:count]


def title(figure: Figure, text: str) -> None:
    """Set the figure's title, in as many lines as its width needs (about 15 characters an inch)."""
    figure.suptitle(textwrap.fill(text, int(15 * figure.get_figwidth())), fontsize=9)


def budget_axis(ax: Axes, budgets: np.ndarray) -> None:
    """Scale x by powers of two and label it with the budgets themselves."""
    shown = [int(b) for b in budgets if b > 0]
    ax.set_xscale("log", base=2)
    powers = [b for b in shown if b & (b - 1) == 0] or shown
    ax.set_xticks(powers, [str(b) for b in powers])
    ax.minorticks_off()
    ax.set_xlabel(style.BUDGET_LABEL)


def _tau_line(ax: Axes, rows: list[dict[str, Any]], name: str, i: int) -> None:
    """Draw one policy: band, mean, markers that are hollow where trees are not certified."""
    x, mean, low, high = (
        np.array([r[k] for r in rows]) for k in ("budget", "tau_mean", "tau_low", "tau_high")
    )
    colour = style.policy_colour(name, i)
    ax.fill_between(x, low, high, color=colour, alpha=0.13, linewidth=0)
    if x.size == 1:  # a band has no width there
        ax.vlines(x, low, high, color=colour, alpha=0.5)
    line = "--" if name == BASELINE else "-"
    ax.plot(x, mean, line, color=colour, label=style.policy_label(name))
    sure = np.array([r["certified_share"] is None or r["certified_share"] >= 0.95 for r in rows], bool)
    marker = style.policy_marker(name, i)
    ax.plot(x[sure], mean[sure], marker, color=colour, markersize=4.5)
    ax.plot(x[~sure], mean[~sure], marker, color=colour, markerfacecolor="white", markersize=4.5)


def plot_tau(result: StudyResult) -> Figure:
    """Tau against budget: mean over sequences with its 95% band, every policy, the chain as baseline."""
    figure, axes = panels(result)
    for ax, part in zip(axes, result.traces, strict=True):
        for i, name in enumerate(result.policies):
            rows = [
                r for r in result.select(trace=part.trace.name, policy=name, subset="all") if r["budget"] > 0
            ]
            _tau_line(ax, rows, name, i)
        text_oracle, kept_oracle = part.oracle_tau
        kept = f"oracle, K = {part.trace.width} kept ranks: {kept_oracle:.1f}"
        note = f"{kept}\noracle, all tokens: {text_oracle:.1f}"
        if not result.overlays:  # the space is theirs then; the numbers are in the table of traces
            corner = {"transform": ax.transAxes, "ha": "right", "va": "bottom"}
            ax.text(0.98, 0.03, note, fontsize=7, color=style.GREY, **corner)
        overlay_tau(ax, result.overlays)
        budget_axis(ax, result.budgets)
        ax.set_ylabel(style.TAU_LABEL)
        ax.set_ylim(bottom=1)
        ax.set_title(part.title)
        ax.legend(loc="center right" if result.overlays else "best")
    title(
        figure,
        "Tokens per round (mean over sequences, 95% bootstrap); hollow: < 95% of trees certified exact at K",
    )
    return figure


def shown_rounds(part: TraceResult, name: str, budget: int) -> stats.Rounds:
    """Return the rounds of one policy and budget."""
    return part.replays[name].rounds[part.column(budget)]


def plot_histogram(result: StudyResult) -> Figure:
    """Share of rounds by tokens committed, every policy side by side at the shown budget."""
    figure, axes = panels(result)
    budget = result.shown_budget
    for ax, part in zip(axes, result.traces, strict=True):
        depth = part.trace.depth
        x = np.arange(1, depth + 2)
        width = 0.84 / len(result.policies)
        heights = []
        for i, name in enumerate(result.policies):
            if budget not in part.replays[name].acceptance.budgets:
                continue
            counts = stats.histogram(shown_rounds(part, name, budget), depth)
            share = 100 * counts / max(1, counts.sum())
            heights.append(share > 0.05)
            place = x + (i - (len(result.policies) - 1) / 2) * width
            ax.bar(place, share, width, color=style.policy_colour(name, i), label=style.policy_label(name))
        longest = overlay_histogram(ax, result.overlays)
        last = max(3, longest, *(int(np.flatnonzero(h).max(initial=0)) + 2 for h in heights))
        ax.set_xlim(0.4, last + 0.6)
        ax.set_xticks(range(1, last + 1))
        ax.set_xlabel("tokens per round (bonus counted)")
        ax.set_ylabel("share of rounds (%)")
        ax.set_title(f"{part.title}, B = {budget}")
        ax.grid(axis="x", visible=False)
        ax.legend()
    return figure


def plot_survival(result: StudyResult) -> Figure:
    """Share of rounds that accept at least d drafts: the chain, and ddtree at several budgets."""
    figure, axes = panels(result, share_y=True)
    best = tree_policy(result)
    budgets = sorted({int(result.budgets[0]), result.shown_budget, int(result.budgets[-1])})
    shades = np.linspace(0.35, 1.0, len(budgets))
    for ax, part in zip(axes, result.traces, strict=True):
        d = np.arange(part.trace.depth + 1)
        chain = stats.histogram(shown_rounds(part, BASELINE, int(result.budgets[-1])), part.trace.depth)
        ax.plot(d, 100 * stats.survival(chain), "x--", color=style.GREY, markersize=4, label="chain")
        for i, (budget, shade) in enumerate(zip(budgets, shades, strict=True)):
            counts = stats.histogram(shown_rounds(part, best, budget), part.trace.depth)
            reach = int(np.flatnonzero(counts).max(initial=0)) + 1
            label = f"{style.policy_label(best)}, B = {budget}"
            marker = style.MARKERS[i % len(style.MARKERS)]
            ax.plot(
                d,
                100 * stats.survival(counts),
                marker + "-",
                color=style.BLUE,
                alpha=shade,
                markersize=3.5,
                label=label,
            )
        ax.set_xlabel("depth d")
        ax.set_ylabel("rounds accepting at least d drafts (%)")
        ax.set_ylim(0, 103)
        ax.set_xlim(-0.3, max(4, reach) + 0.5)
        ax.set_title(part.title)
        ax.legend()
    return figure


def plot_nodes(result: StudyResult) -> Figure:
    """Nodes per depth of the trees that rounds really used, a line per budget."""
    figure, axes = panels(result)
    best = tree_policy(result)
    budgets = [int(b) for b in result.budgets if b > 0]
    budgets = [b for b in budgets if b & (b - 1) == 0][-5:] or budgets[-5:]
    import matplotlib as mpl

    colours = mpl.colormaps["viridis"](np.linspace(0.0, 0.85, len(budgets)))
    for ax, part in zip(axes, result.traces, strict=True):
        table = part.replays[best].acceptance.nodes_by_depth
        for budget, colour in zip(budgets, colours, strict=True):
            roots = shown_rounds(part, best, budget).root
            mean = table[roots, part.column(budget), 1:].mean(0) if roots.size else np.zeros(part.trace.depth)
            mean = np.where(mean > 0, mean, np.nan)
            ax.plot(
                np.arange(1, mean.size + 1), mean, "o-", color=colour, markersize=3, label=f"B = {budget}"
            )
        ax.set_yscale("log")
        ax.yaxis.set_major_formatter("{x:g}")
        ax.set_xlabel("depth")
        ax.set_ylabel("mean nodes per round")
        ax.set_title(f"{part.title}, {style.policy_label(best)}")
        if budgets:
            ax.legend()
    return figure


def plot_speedup(result: StudyResult) -> Figure:
    """Predicted speedup against budget: a row of panels per trace, a column per cost table."""
    import matplotlib.pyplot as plt

    down, across = len(result.traces), max(1, len(result.costs))
    figure, axes = plt.subplots(
        down, across, figsize=(PANEL[0] * across, PANEL[1] * down), squeeze=False, layout="constrained"
    )
    for row, part in zip(axes, result.traces, strict=True):
        for ax, cost in zip(row, result.costs, strict=False):
            for i, name in enumerate(result.policies):
                points = [
                    (r["budget"], r["speedup"])
                    for r in result.speedups
                    if r["trace"] == part.trace.name
                    and r["policy"] == name
                    and r["cost"] == cost.name
                    and r["budget"] > 0
                ]
                x, y = np.array(points, float).reshape(-1, 2).T
                colour, marker = style.policy_colour(name, i), style.policy_marker(name, i)
                line = "--" if name == BASELINE else "-"
                ax.plot(x, y, marker + line, color=colour, markersize=4, label=style.policy_label(name))
                if name != BASELINE and y.size:
                    top = int(np.argmax(y))
                    ax.plot(x[top], y[top], "*", color=colour, markersize=11, markeredgecolor="white")
            ax.axhline(1.0, color=style.BLACK, linewidth=0.8)
            ax.text(
                0.98,
                1.0,
                "autoregressive",
                transform=ax.get_yaxis_transform(),
                ha="right",
                va="bottom",
                fontsize=7,
                bbox={"boxstyle": "square,pad=0.1", "facecolor": "white", "edgecolor": "none", "alpha": 0.85},
                zorder=5,
            )
            budget_axis(ax, result.budgets)
            ax.set_ylabel("predicted speedup (x)")
            ax.set_title(f"{part.title}\n{textwrap.fill(cost.label(), 52)}", fontsize=8)
            ax.legend()
    title(
        figure,
        "Predicted: acceptance of this trace, round costs of another machine and model (star: best budget)",
    )
    return figure
