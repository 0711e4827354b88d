"""Figures of the shoot-out page: calibration, truncation, verifiers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from . import style
from .lab import DRAFTS, SHOWN
from .plots import PANEL
from .plots_shootout import blocks, short, title
from .shootout import Shootout

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RULE_LABELS = {
    "match": "match, best k (deterministic)", "match_iid": "match, iid drafts", "rrs": "rejection, iid",
    "rrs_without": "rejection, no replacement", "kseq": "K-SEQ, iid", "transport": "optimal transport, iid",
}  # fmt: skip


def plot_calibration(result: Shootout) -> Figure:
    """Draw the fitted temperature by depth, and the calibration error before and after."""
    figure, columns = blocks(len(result.labs), 2, (PANEL[0], 2.6))
    for (top, bottom), part in zip(columns, result.labs, strict=True):
        depth = np.arange(1, part.temperatures.shape[1] + 1)
        middle = np.median(part.temperatures, axis=0)
        low, high = part.temperatures.min(0), part.temperatures.max(0)
        top.fill_between(depth, low, high, color=style.BLUE, alpha=0.2, linewidth=0)
        top.plot(depth, middle, "o-", color=style.BLUE, markersize=3.5)
        top.axhline(1, color=style.GREY, linewidth=0.8)
        top.set_ylabel("fitted temperature")
        top.set_title(short(part.name), fontsize=9)
        bottom.plot(depth, part.error_before, "s--", color=style.ORANGE, markersize=3.5, label="as recorded")
        bottom.plot(
            depth, part.error_after, "o-", color=style.BLUE, markersize=3.5, label="fitted temperatures"
        )
        bottom.set_ylim(bottom=0)
        bottom.set_ylabel("calibration error")
        bottom.set_xlabel("depth")
        bottom.legend()
    title(figure, "Calibration per depth, leave one sequence out (above 1: overconfident; band: all fits)")
    return figure


def plot_truncation(result: Shootout) -> Figure:
    """Draw pooled tau with fewer kept ranks and with float16 log-probs."""
    figure, columns = blocks(len(result.labs), 1, (PANEL[0], 3.0))
    for (ax,), part in zip(columns, result.labs, strict=True):
        labels = [row["setting"] for row in part.truncation]
        tau = [row["tau_pooled"] for row in part.truncation]
        ax.bar(
            labels,
            tau,
            0.65,
            color=[style.ORANGE if "16" in t and "float" in t else style.BLUE for t in labels],
        )
        for x, row in enumerate(part.truncation):
            changed, sure = 100 * row["changed_share"], 100 * row["certified_share"]
            ax.text(
                x, row["tau_pooled"], f"{changed:.2g}%\n{sure:.0f}%", ha="center", va="bottom", fontsize=6.5
            )
        ax.set_ylim(1, 1 + max(0.1, max(tau) - 1) * 1.3)
        ax.set_ylabel("tau, pooled")
        ax.tick_params(axis="x", labelrotation=30)
        ax.grid(axis="x", visible=False)
        ax.set_title(f"{short(part.name)}, DDTree, B = {SHOWN}", fontsize=9)
    title(
        figure,
        "Fewer ranks, half precision (numbers: positions whose acceptance changes; rounds certified exact)",
    )
    return figure


def plot_verifiers(result: Shootout) -> Figure | None:
    """Draw the acceptance of every rule at the first node against temperature."""
    labs = [part for part in result.labs if part.verifiers]
    if not labs:
        return None
    figure, columns = blocks(len(labs), 1, (PANEL[0] + 0.4, 3.6), sharey=True)
    for (ax,), part in zip(columns, labs, strict=True):
        for i, (rule, label) in enumerate(RULE_LABELS.items()):
            points = [(v["temperature"], v["acceptance"]) for v in part.verifiers if v["rule"] == rule]
            x, y = np.array(points).T
            line = "-" if rule == "match" else "--"
            ax.plot(x, 100 * y, style.MARKERS[i] + line, color=style.CYCLE[i], markersize=4, label=label)
        ax.set_xlabel("temperature of target and drafter")
        ax.set_ylabel("acceptance at the first node (%)")
        ax.set_title(f"{short(part.name)}, k = {DRAFTS} drafts", fontsize=9)
    columns[0][0].legend(loc="lower left", fontsize=7)
    title(figure, "Verifiers at one node, exact on the recorded best tokens of both models, normalised")
    return figure
