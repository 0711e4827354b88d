"""Pictures of a draft tree: for a matplotlib Axes and for a terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from . import style
from .tree import DraftTree

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TokenText = Sequence[str] | Callable[[int], str]
_EDGE_LABELS = 40  # nodes up to which log-probs on the edges stay readable
_LARGEST_FONT, _SMALLEST_FONT = 7.0, 4.0  # points; labels that would be smaller are left out


def _one(tree: DraftTree, request: int) -> DraftTree:
    if not -tree.batch <= request < tree.batch:
        raise ValueError(f"request: got {request}, wanted 0..{tree.batch - 1}")
    return tree[request].to_numpy()


def _namer(text: TokenText | None) -> Callable[[int], str]:
    if text is None:
        return str
    if callable(text):
        return text
    return lambda token: text[token] if 0 <= token < len(text) else str(token)


def _children(tree: DraftTree) -> list[list[int]]:
    """Return the children of every real node, best rank first; nodes with a bad parent are left out."""
    n = int(tree.counts[0])
    children: list[list[int]] = [[] for _ in range(n)]
    for i in range(1, n):
        parent = int(tree.parents[0, i])
        if 0 <= parent < i:
            children[parent].append(i)
    for siblings in children:
        siblings.sort(key=lambda i: int(tree.ranks[0, i]))
    return children


def _path_nodes(path: Any, n: int) -> set[int]:
    """Return the node indices of an accepted path ([D+1] padded with -1, root included)."""
    if path is None:
        return set()
    nodes = np.asarray(path).reshape(-1)
    bad = (nodes < -1) | (nodes >= n)
    if nodes.dtype.kind not in "iu" or bad.any():
        raise ValueError(f"path: wanted node indices 0..{n - 1} padded with -1")
    return {int(i) for i in nodes if i >= 0}


def _rows(children: list[list[int]]) -> np.ndarray:
    """Return the vertical place of every node: leaves one below the other, parents amid their children."""
    place = np.zeros(len(children))
    order: list[int] = []
    stack = [0] if children else []
    while stack:  # preorder, without recursion: chains may be deep
        node = stack.pop()
        order.append(node)
        stack.extend(reversed(children[node]))
    leaf = 0
    for node in order:
        if not children[node]:
            place[node], leaf = leaf, leaf + 1
    for node in reversed(order):
        if children[node]:
            place[node] = np.mean([place[c] for c in children[node]])
    return place


def draw_tree(
    tree: DraftTree,
    ax: Axes | None = None,
    *,
    request: int = 0,
    text: TokenText | None = None,
    path: Any = None,
    title: str | None = None,
) -> Axes:
    """Draw one request's tree, depth from left to right, best rank on top.

    Parameters
    ----------
    tree : DraftTree
        Waits for the device if it lives there.
    ax : matplotlib Axes, optional
        Default: a new figure of fitting size.
    request : int
        Which request of the batch.
    text : sequence of str or callable, optional
        Token texts by id, or a function id -> text (default: the ids).
    path : int [D + 1], optional
        Accepted path from :func:`kdtree_cupy.tree_accept`, drawn thick.
    title : str, optional

    Returns
    -------
    Axes

    Notes
    -----
    Beyond 40 nodes the log-probs on the edges are left out; token labels shrink with the space there is and
    are left out below 4 points (accepted nodes keep theirs).
    """
    one = _one(tree, request)
    n = int(one.counts[0])
    children = _children(one)
    rows, depths, name = _rows(children), one.depths[0], _namer(text)
    if ax is None:
        import matplotlib.pyplot as plt

        leaves = sum(not c for c in children)
        width = min(24.0, 1.5 * (int(depths[:n].max(initial=0)) + 2))
        _, ax = plt.subplots(figsize=(width, min(30.0, 0.6 + 0.26 * max(3, leaves))))
    accepted = _path_nodes(path, n)
    height = ax.get_position().height * ax.figure.get_size_inches()[1] * 72  # points
    font = min(_LARGEST_FONT, 0.85 * height / (rows.max(initial=0) + 1.6)) if n else _LARGEST_FONT
    for i in range(1, n):
        _draw_edge(ax, one, i, depths, rows, accepted)
    for i in range(n):
        hot = i in accepted
        colour = style.ORANGE if hot else style.BLACK if i == 0 else style.BLUE
        ax.plot(depths[i], rows[i], "o", markersize=6 if hot else 4, color=colour, zorder=3)
        if font >= _SMALLEST_FONT or hot:
            inner = bool(children[i])
            ax.annotate(
                _escape(name(int(one.tokens[0, i]))),
                (depths[i], rows[i]),
                xytext=(0, 4) if inner else (5, 0),
                textcoords="offset points",
                fontsize=max(font, _SMALLEST_FONT),
                ha="center" if inner else "left",
                va="bottom" if inner else "center",
                fontweight="bold" if hot else "normal",
                bbox={"boxstyle": "square,pad=0.05", "facecolor": "white", "edgecolor": "none", "alpha": 0.7},
                zorder=4,
            )
    _dress(ax, depths[:n], rows[:n], title or f"{n - 1} draft nodes" if n else "idle slot")
    return ax


def _draw_edge(
    ax: Axes, one: DraftTree, i: int, depths: np.ndarray, rows: np.ndarray, accepted: set[int]
) -> None:
    parent = int(one.parents[0, i])
    on_path = i in accepted and parent in accepted
    ax.plot(
        [depths[parent], depths[i]],
        [rows[parent], rows[i]],
        color=style.ORANGE if on_path else "#9a9a9a",
        linewidth=2.4 if on_path else 0.8,
        zorder=2 if on_path else 1,
    )
    if one.counts[0] <= _EDGE_LABELS:
        step = one.scores[0, i] - one.scores[0, parent]
        x, y = (
            0.38 * start + 0.62 * stop
            for start, stop in ((depths[parent], depths[i]), (rows[parent], rows[i]))
        )
        halo = {"boxstyle": "square,pad=0.05", "facecolor": "white", "edgecolor": "none", "alpha": 0.8}
        ax.text(x, y, f"{step:.2f}", fontsize=6, ha="center", va="center", color=style.GREY, bbox=halo)


def _dress(ax: Axes, depths: np.ndarray, rows: np.ndarray, title: str) -> None:
    deepest = int(depths.max(initial=0))
    ax.set_xlim(-0.3, deepest + 1.1)
    ax.set_ylim(float(rows.max(initial=0)) + 0.8, -0.8)
    ax.set_xticks(range(deepest + 1))
    ax.set_xlabel("depth (0 = root)")
    ax.set_yticks([])
    ax.grid(False)
    ax.spines["left"].set_visible(False)
    ax.set_title(title)


def _escape(text: str) -> str:
    """Keep matplotlib from reading a token as mathematics."""
    return text.replace("$", r"\$")


def tree_text(
    tree: DraftTree,
    *,
    request: int = 0,
    text: TokenText | None = None,
    path: Any = None,
    max_nodes: int = 200,
) -> str:
    """Return the tree as indented lines for a terminal: log-prob of the step, token, ``*`` if accepted.

    Parameters
    ----------
    tree, request, text, path
        As :func:`draw_tree`.
    max_nodes : int
        Further nodes are counted in a last line instead of drawn.
    """
    one = _one(tree, request)
    n = int(one.counts[0])
    if n == 0:
        return "(idle slot)"
    children, name, accepted = _children(one), _namer(text), _path_nodes(path, n)
    lines: list[str] = []
    stack: list[tuple[int, str, str]] = [(0, "", "")]
    while stack and len(lines) < max_nodes:
        node, lead, below = stack.pop()
        parent = int(one.parents[0, node])
        step = f"{one.scores[0, node] - one.scores[0, parent]:7.3f}  " if node else ""
        mark = " *" if node in accepted else ""
        lines.append(f"{lead}{step}{name(int(one.tokens[0, node]))}{mark}")
        last = len(children[node]) - 1
        for k in range(last, -1, -1):
            tee, bar = ("└─ ", "   ") if k == last else ("├─ ", "│  ")
            stack.append((children[node][k], below + tee, below + bar))
    if len(lines) < n:
        lines.append(f"... and {n - len(lines)} more nodes")
    return "\n".join(lines)
