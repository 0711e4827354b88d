"""The parts of an explorer's picture as HTML text, everything that a trace says escaped."""

from __future__ import annotations

import html

from .. import style
from ..cost import CostTable
from ..tree_svg import INK, SOFT, tree_svg
from .model import Explorer, Setting
from .pictures import curve_svg, mask_svg


def headline(explorer: Explorer, setting: Setting) -> str:
    """Return what a round is worth, in one line."""
    found, trace = explorer.round(setting), explorer.traces[setting.trace]
    s = int(trace.sequence_of()[setting.position])
    place = f"sequence {s}, token {setting.position - int(trace.sequence_offsets[s])}"
    nodes = int(found.tree.counts[0]) - 1
    return (
        f'<div style="font:14px system-ui,sans-serif"><b style="color:{style.ORANGE}">'
        f"{found.accepted} drafts accepted</b> of {nodes}; the tree expected {found.expected:.2f} tokens, this round "
        f'commits {found.accepted + 1} <span style="color:{SOFT}">({html.escape(trace.name)}, {place})</span></div>'
    )


def passage(explorer: Explorer, setting: Setting, before: int = 48, after: int = 12) -> str:
    """Return the recorded text around a round: before, root, what is accepted (orange), what comes then."""
    trace, found = explorer.traces[setting.trace], explorer.round(setting)
    s = int(trace.sequence_of()[setting.position])
    start, stop = int(trace.sequence_offsets[s]), int(trace.sequence_offsets[s + 1])
    at, taken = setting.position, setting.position + 1 + found.accepted
    spans = (
        (max(start, at - before), at, f"color:{SOFT}"),
        (at, at + 1, f"color:{INK};font-weight:700;text-decoration:underline"),
        (at + 1, taken, f"color:#fff;background:{style.ORANGE};border-radius:2px"),
        (taken, min(stop, taken + 1), f"color:{INK};font-weight:700"),
        (taken + 1, min(stop, taken + after), f"color:{SOFT}"),
    )
    text = "".join(
        f'<span style="{look}">{html.escape(trace.decode(trace.tokens[a:b]))}</span>'
        for a, b, look in spans
        if a < b
    )
    return (
        f'<div style="font:12px/1.5 ui-monospace,monospace;white-space:pre-wrap;background:#f4f6f8;color:{INK};'
        f'border-radius:6px;padding:6px 10px;max-height:9em;overflow:auto">{text}</div>'
    )


def tree(explorer: Explorer, setting: Setting, height: float = 560.0) -> str:
    """Return the tree of a round with its accepted path."""
    found = explorer.round(setting)
    return tree_svg(found.tree, text=explorer.traces[setting.trace].text, path=found.path, height=height)


def mask(explorer: Explorer, setting: Setting) -> str:
    """Return the ancestor mask of a round."""
    found = explorer.round(setting)
    return mask_svg(found.tree, found.path)


def curves(explorer: Explorer, setting: Setting, cost: CostTable | None, context: float | None) -> str:
    """Return the tau curve and the predicted speedup, each with a marker at the budget."""
    curve = explorer.curve(setting)
    colour = style.policy_colour(setting.policy)
    out = curve_svg(
        curve.budgets,
        curve.tau,
        setting.budget,
        title="tau: tokens per round, pooled",
        colour=colour,
        low=1.0,
    )
    if cost is None:
        return out
    gain = explorer.speedup(setting, cost, context)
    note = f'<div style="font:11px system-ui,sans-serif;color:{SOFT};max-width:380px">{html.escape(cost.label(context))}</div>'
    return (
        out
        + curve_svg(
            curve.budgets,
            gain,
            setting.budget,
            title="predicted speedup over one-token steps",
            colour=colour,
            low=1.0,
        )
        + note
    )
