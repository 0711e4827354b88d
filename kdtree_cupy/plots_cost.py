"""Figures of measured cost tables: speedup with what a round is made of, best budgets, budgets per round."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from . import style
from .cost_study import Parts, Policy

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LABELS = {
    "attention_ms": "attention (measured)",
    "tree_ms": "tree work (measured)",
    "model_ms": "rest of the model (bytes / bandwidth)",
    "draft": "drafter (bytes / bandwidth)",
}
COLOURS = dict(zip(LABELS, (style.BLUE, style.ORANGE, style.LIGHT, style.GREY), strict=True))


def plot_speedup_stack(parts: Parts, tau: np.ndarray, trace_name: str, *, contexts: Sequence[int]) -> Figure:
    """Speedup against budget above, milliseconds of a round by part below; a column a prefix.

    ``tau`` holds pooled tokens per round at the table's node counts.
    """
    import matplotlib.pyplot as plt

    nodes = parts.table.nodes
    size = (3.6 * len(contexts), 5.2)
    figure, axes = plt.subplots(
        2, len(contexts), figsize=size, squeeze=False, sharex=True, layout="constrained"
    )
    place = np.arange(nodes.size)
    for column, context in enumerate(contexts):
        c = int(np.searchsorted(parts.table.contexts, context))
        above, below = axes[0][column], axes[1][column]
        gain = parts.speedup(tau, context, 1)
        best = int(gain.argmax())
        above.plot(place, gain, "o-", color=style.BLUE, markersize=4)
        above.plot(best, gain[best], "o", color=style.ORANGE, markersize=7)
        above.annotate(f"B = {nodes[best]:g}: {gain[best]:.2f}x", (best, gain[best]), xytext=(0, 7),
                       textcoords="offset points", ha="center" if best else "left", fontsize=8)  # fmt: skip
        above.set_ylim(0, 1.2 * gain.max())
        above.set_title(f"prefix {context:,}", fontsize=9)
        rows = {"draft": np.full(nodes.size, parts.table.draft_ms), "model_ms": parts.model_ms}
        rows |= {"attention_ms": parts.attention_ms[c], "tree_ms": parts.tree_ms}
        bottom = np.zeros(nodes.size)
        for name, height in rows.items():
            below.bar(place, height, 0.7, bottom=bottom, color=COLOURS[name], label=LABELS[name])
            bottom += height
        below.axhline(parts.table.ar_ms[c], color=style.BLACK, linewidth=0.8, linestyle="--")
        below.set_xticks(place, [f"{n:g}" for n in nodes])
        below.set_xlabel(style.BUDGET_LABEL)
        below.grid(axis="x", visible=False)
    axes[0][0].set_ylabel("predicted speedup over AR")
    axes[1][0].set_ylabel("ms per round (dashed: AR step)")
    axes[1][0].legend(fontsize=7, loc="upper left")
    figure.suptitle(
        f"{parts.table.label(contexts[0]).split(', context')[0]}\nacceptance: {trace_name}", fontsize=8
    )
    return figure


def plot_ridge(parts: Parts, tau: np.ndarray, trace_name: str, *, batches: Sequence[int]) -> Figure:
    """Relative speedup against budget, one ridge a prefix, a panel a batch; the best budgets joined.

    Each ridge is scaled to its own peak, so that its place, not its height, is what is seen.
    """
    import matplotlib.pyplot as plt

    contexts, nodes = parts.table.contexts.astype(int), parts.table.nodes
    figure, axes = plt.subplots(
        1, len(batches), figsize=(2.7 * len(batches) + 0.8, 0.75 * len(contexts) + 1.6), squeeze=False,
        sharey=True, layout="constrained",
    )  # fmt: skip
    place = np.arange(nodes.size)
    for ax, batch in zip(axes[0], batches, strict=True):
        peaks = []
        for i, context in enumerate(contexts):
            gain = parts.speedup(tau, int(context), batch)
            height = 0.9 * (gain - gain.min()) / max(float(np.ptp(gain)), 1e-9)
            ax.fill_between(
                place, i, i + height, color=style.BLUE, alpha=0.35, linewidth=0, zorder=3 - i / 100
            )
            ax.plot(place, i + height, color=style.BLUE, linewidth=1)
            best = int(gain.argmax())
            peaks.append((best, i + height[best]))
            ax.text(place[-1] + 0.25, i + 0.1, f"{gain[best]:.2f}x", fontsize=7, va="bottom")
        ax.plot(*np.array(peaks).T, "o-", color=style.ORANGE, markersize=4, linewidth=1, zorder=5)
        ax.set_xticks(place, [f"{n:g}" for n in nodes], fontsize=7)
        ax.set_yticks(range(len(contexts)), [f"{c:,}" for c in contexts])
        ax.set_title(f"batch {batch}", fontsize=9)
        ax.set_xlabel("budget B", fontsize=8)
        ax.grid(visible=False)
    axes[0][0].set_ylabel("prefix (tokens)")
    text = "Best budget (orange) by prefix and batch; at the right the speedup there"
    label = parts.table.label().split(", context")[0]
    figure.suptitle(f"{text}\n{label}; acceptance: {trace_name}", fontsize=8)
    return figure


def plot_budget_rules(found: Sequence[Policy], title: str) -> Figure:
    """Throughput of fixed budgets with 95% bands, and of rules that choose per round as lines."""
    import matplotlib.pyplot as plt

    figure, ax = plt.subplots(figsize=(5.6, 3.6), layout="constrained")
    fixed = [one for one in found if one.budget is not None]
    place = np.arange(len(fixed))
    mean, low, high = (np.array([getattr(one, k) for one in fixed]) for k in ("speedup", "low", "high"))
    ax.fill_between(place, low, high, color=style.BLUE, alpha=0.15, linewidth=0)
    ax.plot(place, mean, "o-", color=style.BLUE, markersize=4, label="fixed budget")
    rules = [one for one in found if one.budget is None]
    for one, colour, line in zip(rules, (style.ORANGE, style.GREEN), ("--", "-."), strict=False):
        label = f"{one.name}: {one.speedup:.2f}x, {one.mean_nodes:.0f} nodes a round"
        ax.axhspan(one.low, one.high, color=colour, alpha=0.08, linewidth=0)
        ax.axhline(one.speedup, color=colour, linestyle=line, label=label)
    ax.set_xticks(place, [str(one.budget) for one in fixed])
    ax.set_xlabel(style.BUDGET_LABEL)
    ax.set_ylabel("tokens per AR step's time")
    ax.set_title(title, fontsize=8)
    ax.legend(fontsize=7)
    return figure
