"""Measured acceptance of other systems, drawn over the study's figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from . import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from .importers import Measured

_COLOURS = (style.BLACK, style.PURPLE, style.GREEN, style.AMBER)
_MARKERS = ("*", "P", "X", "D")


def short(text: str) -> str:
    """Return a name from a file as a legend can hold it."""
    clean = "".join(c if c.isprintable() else "?" for c in text).replace("$", r"\$")
    return clean if len(clean) <= 28 else clean[:27] + "…"


def overlay_tau(ax: Axes, overlays: Sequence[Measured]) -> None:
    """Draw measured tau (mean over responses, 95%): a marker at its budget, else a line across."""
    sized = [m for m in overlays if m.budget]
    for i, system in enumerate(dict.fromkeys(m.system for m in sized)):
        mine = sorted((m for m in sized if m.system == system), key=lambda m: m.budget or 0)
        mean = np.array([m.tau_mean for m in mine])
        low, high = np.array([m.interval for m in mine]).T
        colour = _COLOURS[i % len(_COLOURS)]
        look = {"fmt": _MARKERS[i % len(_MARKERS)] + ":", "color": colour, "markersize": 6, "linewidth": 1}
        label = f"{short(system)}, measured elsewhere"
        ax.errorbar([m.budget for m in mine], mean, yerr=[mean - low, high - mean], label=label, **look)
    for i, one in enumerate(m for m in overlays if not m.budget):
        colour = _COLOURS[i % len(_COLOURS)]
        label = f"{short(one.system)} {short(one.name)}, measured elsewhere"
        ax.axhline(one.tau_mean, color=colour, linewidth=1.2, linestyle=("-.", ":", "--")[i % 3], label=label)


def overlay_histogram(ax: Axes, overlays: Sequence[Measured]) -> int:
    """Draw the share of measured rounds by tokens committed as steps; return the most tokens shown."""
    shown = [m for m in overlays if m.counts is not None and m.counts.sum()]
    for i, one in enumerate(shown[: len(_COLOURS)]):
        counts = np.asarray(one.counts, float)
        t = np.arange(1, counts.size)
        label = f"{short(one.system)} {short(one.name)}, elsewhere"
        ax.step(
            t, 100 * counts[1:] / counts.sum(), where="mid", color=_COLOURS[i], linewidth=1.2,
            linestyle=("-", "--", "-.", ":")[i], label=label,
        )  # fmt: skip
    return max((m.counts.size - 1 for m in shown if m.counts is not None), default=0)
