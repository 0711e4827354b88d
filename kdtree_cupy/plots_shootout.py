"""Figures of the shoot-out page: policies in pairs, adaptive budgets, prompt kinds."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

import numpy as np

from . import style
from .lab import COST, WIDE
from .plots import PANEL, budget_axis
from .shootout import REFERENCE, Shootout

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def short(label: str) -> str:
    """Return a trace's name as titles can hold it."""
    text = "".join(c if c.isprintable() else "?" for c in label)
    return (text if len(text) <= 44 else text[:43] + "…").replace("$", r"\$")


def grid(down: int, across: int, size: tuple[float, float] = PANEL, **options: bool) -> tuple:
    """Return a figure and its axes [down, across]."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(
        down,
        across,
        figsize=(size[0] * across, size[1] * down),
        squeeze=False,
        layout="constrained",
        **options,
    )
    return figure, axes


def blocks(
    count: int, rows: int, size: tuple[float, float] = PANEL, **options: bool
) -> tuple[Figure, list[np.ndarray]]:
    """Return a figure and, for each of ``count`` traces, its column of ``rows`` axes; three traces a row."""
    across = min(3, count)
    down = -(-count // across)
    figure, axes = grid(down * rows, across, size, **options)
    columns = [
        axes[rows * (i // across) : rows * (i // across + 1), i % across] for i in range(down * across)
    ]
    for column in columns[count:]:
        for ax in column:
            ax.set_visible(False)
    return figure, columns[:count]


def title(figure: Figure, text: str) -> None:
    """Put a title over a figure, in as many lines as its width wants."""
    figure.suptitle(textwrap.fill(text, int(figure.get_figwidth() / 0.068)), fontsize=9)


def _order(result: Shootout) -> list[str]:
    """Return policies from worst to best mean rank at the largest budget they all take."""
    budget = shown_budget(result)
    rows = [r for r in result.rows if r["budget"] == budget]
    mean = {n: np.mean([r["difference"] for r in rows if r["policy"] == n]) for n in result.policies}
    return sorted(result.policies, key=lambda n: (mean[n], n))


def shown_budget(result: Shootout) -> int:
    """Return the largest budget that every policy of the shoot-out took."""
    taken = [{r["budget"] for r in result.rows if r["policy"] == name} for name in result.policies]
    return max(set.intersection(*taken))


def plot_contest(result: Shootout) -> Figure:
    """Draw tau of every policy with its 95% interval, a panel per trace, a marker per budget."""
    names, budgets = _order(result), [int(b) for b in result.budgets]
    labels = [trace.name for trace in result.traces]
    across = min(3, len(labels))
    height = 0.8 + 0.27 * len(names)
    figure, axes = grid(-(-len(labels) // across), across, (PANEL[0], height), sharey=True)
    for ax in axes.ravel()[len(labels) :]:
        ax.set_visible(False)
    for ax, label in zip(axes.ravel(), labels, strict=False):
        for i, budget in enumerate(budgets):
            shift = 0.16 * (i - (len(budgets) - 1) / 2)
            rows = {r["policy"]: r for r in result.select(trace=label, budget=budget)}
            y = [names.index(n) - shift for n in rows]
            mean, low, high = (
                np.array([r[k] for r in rows.values()]) for k in ("tau_mean", "tau_low", "tau_high")
            )
            ax.errorbar(
                mean, y, xerr=[mean - low, high - mean], fmt=style.MARKERS[i], color=style.CYCLE[i],
                markersize=4, linewidth=1, label=f"B = {budget}",
            )  # fmt: skip
        best = result.select(trace=label, policy=REFERENCE)
        for i, row in enumerate(best):
            ax.axvline(row["tau_mean"], color=style.CYCLE[i], linewidth=0.7, linestyle=":")
        ax.set_yticks(range(len(names)), [style.policy_label(n) for n in names])
        ax.set_xlabel("tau (bonus counted), mean over sequences")
        ax.set_title(f"{short(label)}\noracle on the kept ranks: {best[0]['oracle_tau']:.2f}", fontsize=9)
        ax.legend(loc="lower right")
    title(figure, "Policies at equal budgets, 95% bootstrap over sequences (dotted: DDTree)")
    return figure


def plot_differences(result: Shootout) -> Figure:
    """Draw paired differences to ddtree with intervals and sign tests."""
    names = [n for n in _order(result) if n != REFERENCE]
    budget = shown_budget(result)
    labels = list(dict.fromkeys(r["trace"] for r in result.rows))
    across = min(3, len(labels))
    figure, axes = grid(-(-len(labels) // across), across, (PANEL[0], 0.8 + 0.27 * len(names)), sharey=True)
    for ax in axes.ravel()[len(labels) :]:
        ax.set_visible(False)
    for ax, label in zip(axes.ravel(), labels, strict=False):
        for y, name in enumerate(names):
            row = result.select(trace=label, budget=budget, policy=name)[0]
            gap, low, high = (row[k] for k in ("difference", "difference_low", "difference_high"))
            sure = row["sign_p"] < 0.05
            colour = style.BLUE if gap >= 0 else style.ORANGE
            face = colour if sure else "white"
            ax.errorbar(
                gap, y, xerr=[[gap - low], [high - gap]], fmt="o" if gap >= 0 else "s", color=colour,
                markerfacecolor=face, markersize=4.5, linewidth=1,
            )  # fmt: skip
            text = f"{row['better']}:{row['worse']}  p {_p(row['sign_p'])}"
            ax.text(
                1.02, y, text, transform=ax.get_yaxis_transform(), va="center", fontsize=6.5, color=style.GREY
            )
        ax.axvline(0, color=style.BLACK, linewidth=0.8)
        ax.set_yticks(range(len(names)), [style.policy_label(n) for n in names])
        ax.set_xlabel("difference in tau to DDTree, per sequence")
        ax.set_title(f"{short(label)}, B = {budget}", fontsize=9)
    title(
        figure,
        "Paired differences, 95% bootstrap; right: sequences better:worse and sign test (filled: p < 0.05)",
    )
    return figure


def _p(value: float) -> str:
    return "< .001" if value < 0.001 else f"{value:.2g}" if value < 1 else "1"


def plot_kinds(result: Shootout) -> Figure:
    """Draw tau by prompt kind and target temperature."""
    budget = shown_budget(result)
    labels = [trace.name for trace in result.traces]
    names = [n for n in ("chain", "static", REFERENCE, "calibrated") if n in result.policies]
    figure, axes = grid(1, 1, (max(5.0, 1.7 * len(labels) + 2), 3.3))
    ax = axes[0, 0]
    width = 0.8 / len(names)
    groups = []
    for i, name in enumerate(names):
        rows = [result.select(trace=label, policy=name, budget=budget)[0] for label in labels]
        groups = [f"{short(r['kind'])}\ntemperature {r['temperature']}" for r in rows]
        mean, low, high = (np.array([r[k] for r in rows]) for k in ("tau_mean", "tau_low", "tau_high"))
        x = np.arange(len(labels)) + (i - (len(names) - 1) / 2) * width
        ax.bar(
            x, mean, width, color=style.policy_colour(name, i), label=style.policy_label(name),
            yerr=[mean - low, high - mean], error_kw={"linewidth": 0.9, "ecolor": style.BLACK, "capsize": 2},
        )  # fmt: skip
    ax.set_xticks(range(len(labels)), groups)
    ax.set_ylim(1, ax.get_ylim()[1] * 1.15)
    ax.set_ylabel(style.TAU_LABEL)
    ax.set_title(f"Prompt kind and target temperature, B = {budget}")
    ax.legend(ncols=len(names), loc="upper center")
    ax.grid(axis="x", visible=False)
    return figure


def plot_adaptive(result: Shootout) -> Figure:
    """Draw how many nodes the rounds of adaptive policies used."""
    contexts = sorted({use["context"] for part in result.labs for use in part.adaptive})
    figure, columns = blocks(len(result.labs), len(contexts), (PANEL[0], 2.5))
    bins = np.linspace(0, WIDE, 33)
    for column, part in zip(columns, result.labs, strict=True):
        for row, context in enumerate(contexts):
            ax: Axes = column[row]
            for use in part.adaptive:
                if use["context"] != context:
                    continue
                label = f"{use['policy']}: mean {use['nodes'].mean():.0f}, {use['speedup']:.2f}x"
                colour = style.policy_colour(use["policy"])
                weights = np.full(use["nodes"].size, 100 / max(1, use["nodes"].size))
                ax.hist(
                    use["nodes"],
                    bins,
                    weights=weights,
                    histtype="step",
                    linewidth=1.5,
                    color=colour,
                    label=label,
                )
            ax.set_title(f"{short(part.name)}, context {context}", fontsize=9)
            ax.set_ylabel("rounds (%)")
            ax.legend(loc="best")
            if row == len(contexts) - 1:
                ax.set_xlabel(f"nodes used (cap {WIDE})")
    title(figure, f"Adaptive budgets under the published costs {COST}; x: predicted speedup")
    return figure


def plot_wide(result: Shootout) -> Figure:
    """Draw tau and predicted speedup at every budget, read from one wide build."""
    figure, columns = blocks(len(result.labs), 2, (PANEL[0], 2.9))
    budgets = np.arange(1, WIDE + 1)
    for (top, bottom), part in zip(columns, result.labs, strict=True):
        top.plot(budgets, part.wide_tau, color=style.BLUE, label="by rounds (what decoding gets)")
        top.plot(budgets, part.wide_position_tau, "--", color=style.ORANGE, label="by positions (biased)")
        top.set_ylabel("tau, pooled")
        top.set_ylim(bottom=1)
        top.set_title(short(part.name), fontsize=9)
        top.legend(loc="lower right")
        for i, (context, gain) in enumerate(part.wide_speedup.items()):
            colour = (style.BLUE, style.GREEN)[i % 2]
            best = int(gain.argmax())
            line = "-" if i == 0 else "--"
            bottom.plot(budgets, gain, line, color=colour, label=f"context {context}: best B = {best + 1}")
            bottom.plot(best + 1, gain[best], "*", color=colour, markersize=11, markeredgecolor="white")
            for use in part.adaptive:
                if use["context"] == context:
                    marker = style.policy_marker(use["policy"])
                    label = use["policy"] if i == 0 else None
                    bottom.plot(
                        use["nodes"].mean(),
                        use["speedup"],
                        marker,
                        color=style.BLACK,
                        markersize=8,
                        label=label,
                    )
        for ax in (top, bottom):
            budget_axis(ax, budgets)
        bottom.set_ylabel("predicted speedup (x)")
        bottom.legend(loc="lower right")
    title(figure, f"Every budget from one build of {WIDE} nodes (costs: {COST}, published)")
    return figure
