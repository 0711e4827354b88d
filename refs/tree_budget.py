"""Cut each draft tree where its tokens per time are best: argmax over n of (1 + Phi(n)) / cost(n).

Phi(n) is the summed probability of the first n drafted nodes, which is what they are expected to add to the
round's one certain token.  Nodes stand in best-first order, so any first n of them are a tree.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from . import masks


class Cut(NamedTuple):
    """The arrays of a cut tree batch, and its mask and positions, as from ``tree_build``."""

    tokens: np.ndarray
    parents: np.ndarray
    depths: np.ndarray
    ranks: np.ndarray
    scores: np.ndarray
    counts: np.ndarray
    mask: np.ndarray
    positions: np.ndarray


LOG2_E, LN2_HIGH, LN2_LOW = 1.4426950408889634, 0.6931471803691238, 1.9082149292705877e-10
TAYLOR = tuple(1.0 / np.cumprod([1.0, *range(1, 14)]))  # 1/0! .. 1/13!


def exact_exp(x: np.ndarray) -> np.ndarray:
    """Return exp(x) for x <= 0 by operations that every machine rounds alike; 0 below -700.

    Library functions differ in the last bit from one machine to the next, and here one bit can move the cut.
    The error stays below 2 units in the last place.
    """
    x = np.minimum(np.asarray(x, np.float64), 0.0)
    small = ~(x >= -700.0)
    x = np.where(small, 0.0, x)
    k = np.floor(x * LOG2_E + 0.5)
    r = (x - k * LN2_HIGH) - k * LN2_LOW
    value = np.full(x.shape, TAYLOR[13])
    for coefficient in TAYLOR[12::-1]:
        value = value * r + coefficient
    return np.where(small, 0.0, np.ldexp(value, k.astype(np.int32)))


def best_count(scores: np.ndarray, count: int, cost: np.ndarray) -> int:
    """Return how many of ``count`` nodes (root included) to keep: a full scan, the fewest nodes on ties.

    A node number whose cost is not a finite number above 0 is never chosen; if there is no other, all stay.
    """
    best, best_rate, expected = count, -np.inf, 1.0
    chance = exact_exp(scores)
    for n in range(count):
        if n:
            expected = expected + chance[n]
        if 0.0 < cost[n] < np.inf and expected / cost[n] > best_rate:
            best, best_rate = n + 1, expected / cost[n]
    return best


def cost_at(cost: np.ndarray, contexts: np.ndarray, prefix: int) -> np.ndarray:
    """Return the row of ``cost`` [C, N] at a prefix: linear between contexts, flat outside."""
    c = max(0, int(np.searchsorted(contexts, prefix, side="right")) - 1)
    if c + 1 == contexts.size or prefix <= contexts[c]:
        return cost[c]
    part = (prefix - contexts[c]) / (contexts[c + 1] - contexts[c])
    with np.errstate(invalid="ignore"):
        return cost[c] + (cost[c + 1] - cost[c]) * part


def tree_budget(
    tree: masks.AnyTree,
    mask: np.ndarray,
    positions: np.ndarray,
    cost: np.ndarray,
    contexts: np.ndarray | None = None,
) -> Cut:
    """Return the trees [b, N] cut by ``cost``, float64 [N] or [b, N]: what a round of n draft nodes costs.

    With ``contexts`` [C] it is a table [C, N], and the root's position says which row is a request's.
    """
    batch, slots = tree.tokens.shape
    if contexts is None:
        cost = np.broadcast_to(cost, (batch, slots))
    else:
        cost = np.stack([cost_at(cost, contexts, int(at)) for at in positions[:, 0]])
    names = ("tokens", "parents", "depths", "ranks", "scores", "counts")
    cut = Cut(*(getattr(tree, name).copy() for name in names), mask.copy(), positions.copy())
    for b in range(batch):
        count = min(int(tree.counts[b]), slots)
        if count <= 0:
            continue
        keep = best_count(tree.scores[b], count, cost[b])
        cut.counts[b] = keep
        cut.tokens[b, keep:] = 0
        cut.parents[b, keep:] = -1
        cut.depths[b, keep:] = 0
        cut.ranks[b, keep:] = -1
        cut.scores[b, keep:] = -np.inf
        cut.positions[b, keep:] = positions[b, 0]  # the root's: depth 0
        for i in range(keep, slots):
            cut.mask[b, i] = 0
            cut.mask[b, i, i >> 5] = 1 << (i & 31)
    return cut
