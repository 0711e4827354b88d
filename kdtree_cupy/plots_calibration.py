"""Figures of the study that ask whether the drafter's numbers can be trusted, and example trees."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from . import acceptance as stats
from . import style
from .plots import PANEL, panels, shown_rounds
from .policies import ddtree
from .replay import true_path
from .study import StudyResult, TraceResult
from .study_table import tree_policy

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

_TABLES = (
    ("recall", "teacher-forced recall"),
    ("conditional", "given the path above"),
    ("unconditional", "of all rounds"),
)
_RANKS = 10  # columns of the heat map: later ranks are rarely above 1%
_EXAMPLE_BUDGET = 24


def plot_depth_rank(result: StudyResult) -> Figure:
    """Draw acceptance by (depth, rank) under its three definitions, a row of heat maps per trace."""
    import matplotlib.pyplot as plt

    down = len(result.traces)
    size = (PANEL[0] * 2.4, 3.5 * down)
    figure, axes = plt.subplots(down, 3, figsize=size, squeeze=False, layout="constrained")
    name, budget = tree_policy(result), result.shown_budget
    for row, part in zip(axes, result.traces, strict=True):
        tables = stats.depth_rank(part.trace, part.ranks, shown_rounds(part, name, budget))
        for ax, (key, title) in zip(row, _TABLES, strict=True):
            image = _heat_map(ax, 100 * getattr(tables, key)[:, :_RANKS])
            ax.set_title(f"{part.title}\n{title}", fontsize=8)
        bar = figure.colorbar(image, ax=row, label="acceptance (%)", shrink=0.9, ticks=[0.1, 1, 10, 100])
        bar.ax.set_yticklabels(["0.1", "1", "10", "100"])
    what = f"{style.policy_label(name)}, B = {budget}"
    figure.suptitle(f"Acceptance by depth and rank in percent, {what} (white: under 0.1%)", fontsize=9)
    return figure


def _heat_map(ax: Axes, table: np.ndarray) -> AxesImage:
    from matplotlib.colors import LogNorm

    depth, ranks = table.shape
    extent = (-0.5, ranks - 0.5, depth + 0.5, 0.5)
    image = ax.imshow(np.ma.masked_less(table, 0.1), aspect="auto", norm=LogNorm(0.1, 100), extent=extent)
    for d, r in np.argwhere(table[:, :4] >= 0.95):
        colour = style.BLACK if table[d, r] > 12 else "white"
        ax.text(r, d + 1, f"{table[d, r]:.0f}", ha="center", va="center", fontsize=6, color=colour)
    ax.grid(False)
    ax.set_xticks(range(ranks))
    ax.set_xlabel("rank (0 = best)")
    ax.set_ylabel("depth")
    return image


def plot_surrogate(result: StudyResult) -> Figure:
    """Draw expected tokens per round (1 + sum exp(score)) against realised ones, in ten bins of rounds."""
    figure, axes = panels(result)
    name, budget = tree_policy(result), result.shown_budget
    for ax, part in zip(axes, result.traces, strict=True):
        rounds, table = shown_rounds(part, name, budget), part.replays[name].acceptance
        expected, realised, error = stats.surrogate_by_decile(table, part.column(budget), rounds)
        top = 1.05 * max([2.0, *expected, *(realised + 2 * error)])
        ax.plot([1, top], [1, top], color=style.GREY, linewidth=0.9, label="calibrated")
        if expected.size:
            bars = {"fmt": "o", "color": style.BLUE, "markersize": 4, "capsize": 2}
            ax.errorbar(expected, realised, yerr=1.96 * error, label="tenths of the rounds, 95%", **bars)
            x = 1 + table.surrogate[rounds.root[~rounds.censored], part.column(budget)].mean()
            y = 1 + rounds.accepted[~rounds.censored].mean()
            label = f"mean: {x:.2f} expected, {y:.2f} realised"
            ax.plot(x, y, "*", color=style.ORANGE, markersize=12, label=label)
        ax.set_xlim(1, top)
        ax.set_ylim(1, top)
        ax.set_xlabel("expected tokens per round, 1 + sum exp(score)")
        ax.set_ylabel("realised tokens per round")
        ax.set_title(f"{part.title}, {style.policy_label(name)}, B = {budget}", fontsize=9)
        ax.legend(loc="upper left")
    return figure


def plot_reliability(result: StudyResult) -> Figure:
    """Drafter probability against how often the token was right, lines by depth."""
    figure, axes = panels(result)
    for ax, part in zip(axes, result.traces, strict=True):
        table = stats.reliability(part.trace, part.ranks)
        depth = part.trace.depth
        shown = sorted({1, min(2, depth), min(4, depth), min(8, depth), depth})
        ax.plot([0, 1], [0, 1], color=style.GREY, linewidth=0.9)
        for i, d in enumerate(shown):
            keep = table.count[d - 1] >= 20
            ax.plot(
                table.predicted[d - 1][keep], table.observed[d - 1][keep], style.MARKERS[i % 7] + "-",
                color=style.CYCLE[i % 7], markersize=3.5, linewidth=1,
                label=f"depth {d}: error {table.error[d - 1]:.2f}",
            )  # fmt: skip
        ax.set_xlim(0, 1)
        ax.set_ylim(0, 1)
        ax.set_xlabel("drafter's probability of a token")
        ax.set_ylabel("share of positions where it came")
        ax.set_title(part.title)
        ax.legend(loc="upper left", title="bins of 20+ tokens", title_fontsize=7)
    return figure


def plot_examples(result: StudyResult, count: int = 2) -> Figure:
    """Draw trees of real rounds with the path the target accepted: a typical and a long one."""
    import matplotlib.pyplot as plt

    part = result.traces[0]
    roots = _example_roots(part, result, count)
    figure, axes = plt.subplots(
        1, len(roots), figsize=(5.6 * len(roots), 5.0), squeeze=False, layout="constrained"
    )
    trace = part.trace
    end = np.repeat(trace.sequence_offsets[1:].astype(np.int64), trace.lengths)
    for ax, root in zip(axes[0], roots, strict=True):
        at = slice(root, root + 1)
        rows = np.ascontiguousarray(trace.draft_logprobs[at])
        tree = ddtree(np.asarray(trace.draft_ids[at]), rows, trace.tokens[at], _EXAMPLE_BUDGET)
        path = true_path(tree, trace.tokens, np.array([root]), end[at], trace.depth)[0]
        accepted = int((path > 0).sum())
        text = getattr(trace, "text", None)
        title = f"{part.title}, position {root}: {accepted} of {_EXAMPLE_BUDGET} drafts accepted"
        tree.draw(ax, text=text, path=np.concatenate([[0], path]), title=title)
    figure.suptitle(
        "DDTree rounds; orange: the path the target agreed with; numbers: log-prob of the step", fontsize=9
    )
    return figure


def _example_roots(part: TraceResult, result: StudyResult, count: int) -> list[int]:
    """Pick rounds with a median and with a long accepted path, the earliest of each kind."""
    rounds = shown_rounds(part, tree_policy(result), result.shown_budget)
    if rounds.root.size == 0:
        return []
    use = ~rounds.censored if (~rounds.censored).any() else np.ones(rounds.root.size, bool)
    accepted, root = rounds.accepted[use], rounds.root[use]
    wanted = (max(2, int(np.median(accepted))), int(np.percentile(accepted, 95)))[:count]
    picked = [int(root[np.argmin(np.abs(accepted - w))]) for w in wanted]
    return list(dict.fromkeys(picked))
