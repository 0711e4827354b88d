"""A draft tree as SVG text: milliseconds, no plotting library, token texts escaped."""

from __future__ import annotations

import html
from collections.abc import Callable
from typing import Any

import numpy as np

from . import style
from .tree import DraftTree
from .tree_draw import TokenText, _children, _namer, _one, _path_nodes, _rows

INK, SOFT, EDGE = "#1b1f24", "#59636e", "#aab2bb"
_COLUMN, _ROW, _LEAST_ROW = 86.0, 19.0, 4.0  # pixels a depth, a leaf, a leaf of a crowded tree
_LABEL_ROW = 9.0  # labels need rows of at least this height
_ROOMY = 15.0  # labels of inner nodes stand above them in rows of at least this height
_LONGEST = 14  # characters of a label


def tree_svg(
    tree: DraftTree,
    *,
    request: int = 0,
    text: TokenText | None = None,
    path: Any = None,
    height: float = 520.0,
    max_nodes: int = 1025,
) -> str:
    """Return one request's tree as an ``<svg>`` element: depth from left to right, best rank on top.

    Parameters
    ----------
    tree, request, text, path
        As :func:`kdtree_cupy.tree_draw.draw_tree`.
    height : float
        Pixels at most: rows move together, and labels beside the accepted path go.
    max_nodes : int
        Draw the first nodes only (any first nodes of a tree are a tree).

    Notes
    -----
    A line is as thick as its step is likely; pointing at a node shows token, rank and log-probs.
    """
    one = _one(tree, request)
    n = min(int(one.counts[0]), max_nodes)
    if n == 0:
        return _frame(160, 30, [f'<text x="8" y="20" fill="{SOFT}">idle slot</text>'])
    one = DraftTree(*(getattr(one, f)[:, :n] for f in ("tokens", "parents", "depths", "ranks", "scores")),
                    np.array([n], np.int32), one.status)  # fmt: skip
    children, name = _children(one), _namer(text)
    hot = {i for i in _path_nodes(path, int(tree.to_numpy().counts[request])) if i < n}
    place = _rows(children)
    row = float(np.clip((height - 34.0) / (place.max(initial=0.0) + 1.0), _LEAST_ROW, _ROW))
    deepest = int(one.depths.max(initial=0))
    xs, ys = 14.0 + one.depths[0] * _COLUMN, 16.0 + (place + 0.5) * row
    width, tall = 14.0 + deepest * _COLUMN + 110.0, 16.0 + (place.max(initial=0.0) + 1.0) * row + 22.0
    parts = [_edge(one, i, xs, ys, hot) for i in range(1, n) if 0 <= one.parents[0, i] < i]
    for i in range(n):
        parts.append(_node(one, i, float(xs[i]), float(ys[i]), i in hot, bool(children[i]), row, name))
    for d in range(deepest + 1):
        parts.append(f'<text x="{14 + d * _COLUMN:.0f}" y="{tall - 5:.0f}" fill="{SOFT}" font-size="10"'
                     f' text-anchor="middle">{d}</text>')  # fmt: skip
    left = int(tree.to_numpy().counts[request]) - n
    if left:
        parts.append(f'<text x="{width - 4:.0f}" y="12" text-anchor="end" fill="{SOFT}">first {n} of {n + left}'
                     " nodes</text>")  # fmt: skip
    return _frame(width, tall, parts)


def _frame(width: float, height: float, parts: list[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
        f'style="max-width:100%;height:auto;background:#fff" font-family="system-ui,sans-serif" font-size="11">'
        f"{''.join(parts)}</svg>"
    )


def _edge(one: DraftTree, i: int, xs: np.ndarray, ys: np.ndarray, hot: set[int]) -> str:
    parent = int(one.parents[0, i])
    x0, y0, x1, y1 = (float(v) for v in (xs[parent], ys[parent], xs[i], ys[i]))
    middle = (x0 + x1) / 2
    likely = float(np.exp(min(0.0, one.scores[0, i] - one.scores[0, parent])))
    taken = i in hot and parent in hot
    colour, thick = (style.ORANGE, 3.0) if taken else (EDGE, 0.6 + 2.0 * likely)
    return (
        f'<path d="M{x0:.1f} {y0:.1f}C{middle:.1f} {y0:.1f} {middle:.1f} {y1:.1f} {x1:.1f} {y1:.1f}" fill="none" '
        f'stroke="{colour}" stroke-width="{thick:.1f}"/>'
    )


def _node(
    one: DraftTree, i: int, x: float, y: float, hot: bool, inner: bool, row: float, name: Callable[[int], str]
) -> str:
    token = int(one.tokens[0, i])
    label = name(token)
    colour = style.ORANGE if hot else style.BLACK if i == 0 else style.BLUE
    size = 4.5 if hot else min(3.5, 0.4 * row + 0.8)
    step = one.scores[0, i] - one.scores[0, max(int(one.parents[0, i]), 0)]
    about = f"root {label} (token {token})" if i == 0 else (
        f"{label} (token {token}), depth {one.depths[0, i]}, rank {one.ranks[0, i]}, node {i}\n"
        f"step {step:.3f}, path {one.scores[0, i]:.3f}: probability {np.exp(one.scores[0, i]):.3g}"
    )  # fmt: skip
    out = f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{size:.1f}" fill="{colour}"><title>{html.escape(about)}</title></circle>'
    if row < _LABEL_ROW and not hot:
        return out
    short = label if len(label) <= _LONGEST else label[: _LONGEST - 1] + "\u2026"
    above = inner and row >= _ROOMY  # else beside the node, over its lines
    dx, dy, anchor = (0.0, -5.5, "middle") if above and i else (7.0, 3.8, "start")
    if i == 0:
        dx, dy, anchor = -6.0, -7.0, "start"
    weight = ' font-weight="700"' if hot else ""
    return out + (
        f'<text x="{x + dx:.1f}" y="{y + dy:.1f}" text-anchor="{anchor}"{weight} fill="{INK}" stroke="#fff" '
        f'stroke-width="2.5" paint-order="stroke">{html.escape(short)}</text>'
    )


def tree_html(tree: DraftTree) -> str:
    """Return what a notebook shows for a tree: its text form and the drawing of the first request."""
    head = f'<div style="font:12px ui-monospace,monospace">{html.escape(repr(tree))}</div>'
    if tree.batch == 0:
        return head
    more = (
        f'<div style="color:{SOFT};font-size:12px">request 0 of {tree.batch}</div>' if tree.batch > 1 else ""
    )
    return head + more + tree_svg(tree, max_nodes=129)
