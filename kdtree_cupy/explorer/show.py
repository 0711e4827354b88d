"""``explore``: widgets where they work, one figure where they do not."""

from __future__ import annotations

import importlib.util
import textwrap
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import checks, style
from ..limits import MAX_BUDGET
from ..plots import budget_axis
from ..policies import POLICIES
from ..progress import in_notebook
from .model import Explorer, Setting
from .pictures import ancestors

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def explore(traces: Any = None, *, widgets: bool | None = None, **choices: Any) -> Any:
    """Look at rounds of a trace: tree with its accepted path, mask, tau curve, predicted speedup.

    Parameters
    ----------
    traces : Trace, path, sequence of them, or Explorer, optional
        Default: the bundled traces.
    widgets : bool, optional
        True: ipywidgets, whatever this process is; False: one figure.  Default: widgets in a notebook that
        has them.
    **choices
        Where to begin: fields of :class:`kdtree_cupy.explorer.Setting`, and ``cost``, a name or a file.

    Returns
    -------
    ipywidgets.Widget or matplotlib Figure
        The figure shows the same round and curves, without the choices.

    Raises
    ------
    ValueError
        A choice that is out of range; nothing to show.
    TypeError
        An unknown choice, or one of another type.
    ModuleNotFoundError
        ``widgets=True`` without ipywidgets.
    """
    explorer = traces if isinstance(traces, Explorer) else Explorer(traces)
    cost = choices.pop("cost", None)
    setting = Setting(**choices)
    check_setting(explorer, setting)
    if cost is not None:
        explorer.costs = [load_first(cost), *(c for c in explorer.costs if c.name != cost)]
    if "position" not in choices:
        setting = replace(setting, position=interesting(explorer, setting))
    if widgets is None:
        widgets = in_notebook() and importlib.util.find_spec("ipywidgets") is not None
    if widgets:
        from .widgets import panel

        return panel(explorer, setting)
    return figure(explorer, setting)


def load_first(cost: Any) -> Any:
    """Return a cost table by name, file, or as it is."""
    from ..cost import CostTable, load_cost

    return cost if isinstance(cost, CostTable) else load_cost(cost)


def check_setting(explorer: Explorer, setting: Setting) -> None:
    """Raise ``ValueError`` for a choice that this explorer does not have, ``TypeError`` for what is none."""
    checks.integer(setting.trace, "trace", 0, len(explorer.traces) - 1)
    if setting.policy not in explorer.policies:
        raise ValueError(f"policy: got {setting.policy!r}, wanted one of {', '.join(explorer.policies)}")
    checks.integer(setting.budget, "budget", 0, MAX_BUDGET)
    have = explorer.budgets_of(setting.policy)
    if not have.size:
        most = POLICIES[setting.policy].max_budget
        raise ValueError(
            f"budget: got {setting.budget}, wanted {most} at most: {setting.policy} takes no more"
        )
    if setting.budget not in have:
        raise ValueError(f"budget: got {setting.budget}, wanted one of {', '.join(map(str, have))}")
    trace = explorer.traces[setting.trace]
    limits = {"max_rank": trace.width, "max_depth": trace.depth, "position": trace.tokens.size - 1}
    for name, most in limits.items():
        value, least = getattr(setting, name), int(name != "position")
        if value is not None or name == "position":
            checks.integer(value, name, least, most)
    checks.number(setting.temperature, "temperature", "0.001 to 1000", lambda t: 1e-3 <= t <= 1e3)


def interesting(explorer: Explorer, setting: Setting) -> int:
    """Return the first round that leaves the drafter's first choices and accepts three drafts or more."""
    roots = explorer.roots(setting)
    for root in roots[:200]:
        found = explorer.round(replace(setting, position=int(root)))
        nodes = found.path[found.path > 0]
        if found.accepted >= 3 and (found.tree.ranks[0, nodes] > 0).any():
            return int(root)
    return int(roots[0])


def figure(explorer: Explorer, setting: Setting) -> Figure:
    """Return one matplotlib figure of a setting: tree, mask, tau, predicted speedup."""
    import matplotlib.pyplot as plt

    trace, found, curve = explorer.traces[setting.trace], explorer.round(setting), explorer.curve(setting)
    with style.figure_style():
        fig, axes = plt.subplot_mosaic("TTTM;TTTC;TTTS", figsize=(12, 7.2), layout="constrained")
        title = f"{trace.name}, position {setting.position}, {setting.policy}, B = {setting.budget}: "
        title += f"{found.accepted} drafts accepted, {found.expected:.2f} tokens expected"
        found.tree.draw(axes["T"], text=trace.text, path=found.path, title=title.replace("$", r"\$"))
        axes["M"].imshow(ancestors(found.tree), cmap="Blues", interpolation="nearest")
        axes["M"].set(title="ancestor mask", xlabel="node seen", ylabel="node")
        axes["M"].grid(False)
        cost = explorer.costs[0] if explorer.costs else None
        lines = [("C", curve.tau, style.TAU_LABEL)]
        if cost is not None:
            lines.append(("S", explorer.speedup(setting, cost), "predicted speedup"))
            axes["S"].set_title(textwrap.fill(cost.label(), 52), fontsize=7)
        else:
            axes["S"].set_visible(False)
        at = int(np.searchsorted(curve.budgets, setting.budget))
        for key, values, label in lines:
            axes[key].plot(
                curve.budgets, values, "o-", color=style.policy_colour(setting.policy), markersize=3
            )
            axes[key].plot(curve.budgets[at], values[at], "o", color=style.ORANGE, markersize=8)
            budget_axis(axes[key], curve.budgets)
            axes[key].set_ylabel(label, fontsize=7)
    plt.close(fig)  # the caller shows it: a notebook would otherwise do so twice
    return fig
