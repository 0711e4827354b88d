"""Pictures of an explorer as SVG text: curves with a marker, ancestor masks."""

from __future__ import annotations

import html

import numpy as np

from .. import style
from ..tree import DraftTree
from ..tree_svg import INK, SOFT

_LEFT, _RIGHT, _TOP, _BOTTOM = 40.0, 12.0, 26.0, 34.0


def _svg(width: float, height: float, parts: list[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
        f'style="max-width:100%;height:auto;background:#fff" font-family="system-ui,sans-serif" font-size="11" '
        f'fill="{INK}">{"".join(parts)}</svg>'
    )


def nice_ticks(low: float, high: float, most: int = 5) -> np.ndarray:
    """Return round numbers from ``low`` to ``high``, ``most`` + 1 at most."""
    step = 10.0 ** np.floor(np.log10(max(high - low, 1e-9) / most))
    step *= next(f for f in (1, 2, 5, 10) if (high - low) / (step * f) <= most)
    return np.arange(np.ceil(low / step), np.floor(high / step + 1e-9) + 1) * step


def curve_svg(
    budgets: np.ndarray,
    values: np.ndarray,
    budget: int,
    *,
    title: str,
    colour: str = style.BLUE,
    low: float | None = None,
    width: float = 380.0,
    height: float = 220.0,
) -> str:
    """Return values against budgets (powers of two apart), with a marker and its value at ``budget``."""
    x = np.log2(np.maximum(budgets, 1).astype(float))
    bottom = float(np.floor(min(values.min(), low if low is not None else np.inf) * 5) / 5)
    top = float(np.ceil(values.max() * 5 + 0.5) / 5)
    across = (width - _LEFT - _RIGHT) / max(x[-1] - x[0], 1e-9)
    px = _LEFT + (x - x[0]) * across
    up = (height - _TOP - _BOTTOM) / max(top - bottom, 1e-9)
    py = height - _BOTTOM - (values - bottom) * up
    parts = [f'<text x="4" y="14" font-weight="600">{html.escape(title)}</text>']
    for tick in nice_ticks(bottom, top):
        y = height - _BOTTOM - (tick - bottom) * up
        parts.append(f'<path d="M{_LEFT} {y:.1f}H{width - _RIGHT}" stroke="{style.LIGHT}"/>'
                     f'<text x="{_LEFT - 6}" y="{y + 3.5:.1f}" text-anchor="end" fill="{SOFT}">{tick:.3g}</text>')  # fmt: skip
    for b, at in zip(budgets, px, strict=True):
        if b & (b - 1) == 0:
            parts.append(
                f'<text x="{at:.1f}" y="{height - _BOTTOM + 14}" text-anchor="middle" fill="{SOFT}">{b}</text>'
            )
    parts.append(f'<text x="{(_LEFT + width - _RIGHT) / 2:.0f}" y="{height - 4}" text-anchor="middle" '
                 f'fill="{SOFT}">{style.BUDGET_LABEL}</text>')  # fmt: skip
    line = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(px, py, strict=True))
    parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
    parts += [
        f'<circle cx="{a:.1f}" cy="{b:.1f}" r="2.5" fill="{colour}"/>' for a, b in zip(px, py, strict=True)
    ]
    k = min(int(np.searchsorted(budgets, budget)), budgets.size - 1)
    early = k < 3  # the curve rises: above on the left there is room
    parts.append(
        f'<path d="M{px[k]:.1f} {py[k]:.1f}V{height - _BOTTOM}" stroke="{style.ORANGE}" stroke-dasharray="3 3"/>'
        f'<circle cx="{px[k]:.1f}" cy="{py[k]:.1f}" r="6" fill="{style.ORANGE}"/>'
        f'<text x="{px[k] + (10 if early else -10):.1f}" y="{max(py[k] + (18 if early else -8), 24):.1f}" '
        f'font-weight="700" text-anchor="{"start" if early else "end"}" stroke="#fff" stroke-width="3" '
        f'paint-order="stroke" font-size="13">{values[k]:.2f}</text>'
    )
    return _svg(width, height, parts)


def ancestors(tree: DraftTree) -> np.ndarray:
    """Return who sees whom among the real nodes of request 0, bool [n, n]."""
    n = int(tree.counts[0])
    seen = np.zeros((n, n), bool)
    for i in range(n):
        parent = int(tree.parents[0, i])
        if 0 <= parent < i:
            seen[i] = seen[parent]
        seen[i, i] = True
    return seen


def mask_svg(tree: DraftTree, path: np.ndarray, *, size: float = 220.0, title: str = "ancestor mask") -> str:
    """Return the ancestor mask: row i shows the nodes that node i sees; rows of the accepted path in orange."""
    seen = ancestors(tree)
    n = len(seen)
    hot = {int(i) for i in path if 0 <= i < n}
    runs: dict[bool, list[str]] = {False: [], True: []}
    for i in range(n):
        columns = np.flatnonzero(seen[i])
        breaks = np.flatnonzero(np.diff(columns) > 1) + 1
        for run in np.split(columns, breaks):
            runs[i in hot].append(f"M{run[0]} {i}h{len(run)}v1h-{len(run)}z")
    scale = (size - 30) / max(n, 1)
    parts = [
        f'<text x="4" y="14" font-weight="600">{html.escape(title)}, {n} x {n}</text>'
        f'<g transform="translate(6 24) scale({scale:.4f})"><rect width="{n}" height="{n}" fill="#f4f6f8"/>'
        f'<path d="{"".join(runs[False])}" fill="{style.BLUE}"/>'
        f'<path d="{"".join(runs[True])}" fill="{style.ORANGE}"/></g>'
    ]
    return _svg(size - 18, size, parts)
