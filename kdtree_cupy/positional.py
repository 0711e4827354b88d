"""Trees from tables instead of from a drafter's numbers: expected tokens, greedy growth, Sequoia's program.

A *positional* table says how likely the child of rank r is the right one, given that its parent is: per depth
(Medusa: ``accuracy[D, K]``) or the same at every depth (Sequoia: ``vector[K]``).  Nothing here depends on the
text, so a shape is computed once.  Counts of nodes and levels in this module include the root, as Sequoia's
do; budgets elsewhere exclude it.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

Path = tuple[int, ...]


def expected_tokens(paths: Sequence[Path], accuracy: np.ndarray) -> float:
    """Return tokens per round, 1 + the sum over nodes of the product of their steps' accuracies.

    Parameters
    ----------
    paths : sequence of rank tuples
    accuracy : float [D, K] or [K]
        A vector counts for every depth; ranks and depths beyond the table count 0.
    """
    table = np.asarray(accuracy, np.float64)
    total = 1.0
    for path in paths:
        mass = 1.0
        for depth, rank in enumerate(path):
            row = table if table.ndim == 1 else table[depth] if depth < len(table) else table[:0, 0]
            mass *= float(row[rank]) if rank < row.size else 0.0
        total += mass
    return total


def grow_greedily(accuracy: np.ndarray, nodes: int) -> list[Path]:
    """Return ``nodes`` rank paths, added by the largest product of accuracies (Medusa's construction).

    Parameters
    ----------
    accuracy : float [D, K] or [K]
        In [0, 1]; a vector counts for every depth and any depth.
    nodes : int
        Nodes to add, root excluded.

    Notes
    -----
    A path opens its next sibling and its first child.  For tables that fall with the rank the result is the
    best tree of its size; a dip hides what lies behind it (:func:`depth_table` looks past it).
    """
    table = np.asarray(accuracy, np.float64)
    if table.ndim not in (1, 2) or table.size == 0 or not ((table >= 0) & (table <= 1)).all():
        raise ValueError(f"accuracy: got shape {table.shape}, wanted [D, K] or [K] of values in [0, 1]")
    if nodes < 0:
        raise ValueError(f"nodes: got {nodes}, wanted at least 0")
    width = table.shape[-1]

    def step(path: Path) -> float:
        return float(table[path[-1]] if table.ndim == 1 else table[len(path) - 1, path[-1]])

    frontier = [(-step((0,)), (0,), 1.0)]
    chosen: list[Path] = []
    while frontier and len(chosen) < nodes:
        cost, path, above = heapq.heappop(frontier)
        chosen.append(path)
        grown = [((*path[:-1], path[-1] + 1), above)] if path[-1] + 1 < width else []
        if table.ndim == 1 or len(path) < len(table):
            grown.append(((*path, 0), -cost))
        for candidate, mass in grown:
            heapq.heappush(frontier, (-mass * step(candidate), candidate, mass))
    return chosen


class DepthTable(NamedTuple):
    """Sequoia's program.

    Attributes
    ----------
    tokens : float64 [levels + 1, nodes + 1]
        ``tokens[l, n]``: most tokens per round from n nodes, root included, in at most l levels; -inf if n
        nodes do not fit.
    choice : int32 [levels + 1, K + 1, nodes + 1]
        Nodes given to the last of r children when r children share m nodes (for :func:`best_tree`).
    children : int32 [levels + 1, nodes + 1]
        Children of the root of the best tree.
    """

    tokens: np.ndarray
    choice: np.ndarray
    children: np.ndarray


def depth_table(vector: np.ndarray, nodes: int, levels: int) -> DepthTable:
    """Solve F(n, l) = 1 + max over child sizes a_1..a_r, sum n - 1, of sum p_i F(a_i, l - 1).

    Parameters
    ----------
    vector : float [K]
        ``vector[i]``: probability that the i-th child is the accepted one; need not fall with i.
    nodes, levels : int
        Largest sizes, root included.

    Notes
    -----
    Children take ranks 0..r-1 without gaps, as a drafter that is sampled without replacement offers them.
    Time O(levels * K * nodes^2).
    """
    p = np.asarray(vector, np.float64)
    if p.ndim != 1 or p.size == 0 or not ((p >= 0) & (p <= 1)).all():
        raise ValueError(f"vector: got shape {p.shape}, wanted [K] of values in [0, 1]")
    if nodes < 1 or levels < 1:
        raise ValueError(f"got nodes {nodes}, levels {levels}; wanted both at least 1")
    tokens = np.full((levels + 1, nodes + 1), -np.inf)
    choice = np.zeros((levels + 1, p.size + 1, nodes + 1), np.int32)
    children = np.zeros((levels + 1, nodes + 1), np.int32)
    tokens[1:, 1] = 1.0
    given = np.arange(nodes + 1)[:, None] - np.arange(nodes + 1)[None, :]  # to the last child: total - others
    for level in range(2, levels + 1):
        below = np.where(given >= 1, tokens[level - 1][np.maximum(given, 0)], -np.inf)
        forest = np.full(nodes + 1, -np.inf)
        forest[0] = 0.0
        best, used = forest.copy(), np.zeros(nodes + 1, np.int32)
        for r, chance in enumerate(p, 1):
            if chance == 0 and not np.isfinite(forest).any():
                break
            totals = forest[None, :] + (chance * below if chance > 0 else np.where(below > 0, 0.0, -np.inf))
            others = totals.argmax(1)
            forest = totals[np.arange(nodes + 1), others]
            choice[level, r] = np.arange(nodes + 1) - others
            better = forest > best
            best[better], used[better] = forest[better], r
        tokens[level, 1:] = 1.0 + best[:-1]
        children[level, 1:] = used[:-1]
    return DepthTable(tokens, choice, children)


def best_tree(table: DepthTable, nodes: int, levels: int) -> list[Path]:
    """Return the rank paths of the best tree of ``nodes`` nodes (root included), level by level."""
    if not np.isfinite(table.tokens[levels, nodes]):
        raise ValueError(f"nodes: {nodes} nodes do not fit in {levels} levels of this vector")
    paths: list[Path] = []
    todo: list[tuple[Path, int, int]] = [((), nodes, levels)]
    while todo:
        path, size, level = todo.pop()
        if path:
            paths.append(path)
        left = size - 1
        for r in range(int(table.children[level, size]), 0, -1):
            given = int(table.choice[level, r, left])
            todo.append(((*path, r - 1), given, level - 1))
            left -= given
    return sorted(paths, key=lambda path: (len(path), path))


class Optimum(NamedTuple):
    """Size and depth with the least time per token, root included; ``speedup`` over one-token steps."""

    nodes: int
    levels: int
    tokens: float
    time_per_token: float
    speedup: float


def hardware_optimum(
    table: DepthTable, target_time: Mapping[int, float], draft_time: float, max_levels: int | None = None
) -> Optimum:
    """Return the size with the least time per token, (levels * draft_time + target_time[nodes]) / F.

    Parameters
    ----------
    table : DepthTable
    target_time : mapping of nodes to time
        Time of a target pass over that many nodes; entry 1 is the plain decoding step.
    draft_time : float
        Time of a drafter pass; one per level, as for an autoregressive drafter.
    max_levels : int, optional
        Depth cap (default: the table's).
    """
    if 1 not in target_time:
        raise ValueError("target_time: wanted an entry for 1 node, the plain decoding step")
    deepest, largest = table.tokens.shape[0] - 1, table.tokens.shape[1] - 1
    options = []
    for nodes, time in sorted(target_time.items()):
        for level in range(1, min(max_levels or deepest, deepest) + 1):
            tokens = float(table.tokens[level, nodes]) if nodes <= largest else -np.inf
            if np.isfinite(tokens):
                options.append(((level * draft_time + time) / tokens, nodes, level, tokens))
    cost, nodes, level, tokens = min(options)
    return Optimum(nodes, level, tokens, cost, target_time[1] / cost)


def depth_histogram(paths: Sequence[Path]) -> list[int]:
    """Return how many nodes each depth has, from depth 1."""
    return np.bincount([len(path) for path in paths])[1:].tolist() if paths else []


def closed(paths: Sequence[Path]) -> bool:
    """Return whether each path comes after its parent and after its elder siblings."""
    seen: set[Path] = {()}
    for path in paths:
        if path in seen or path[:-1] not in seen or any((*path[:-1], r) not in seen for r in range(path[-1])):
            return False
        seen.add(path)
    return True
