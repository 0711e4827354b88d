"""Best-first trees of many positions at once, in numpy: the fast path of replay.

The reference (:mod:`kdtree_cupy.refs.tree_build`) pops a heap, node by node.  The same tree is the first B
entries of the whole rank trie sorted by (-score, rank tuple), so it can also be selected level by level:
guess a score that about B nodes reach, walk only nodes at or above it, sort, cut at B.  A wrong guess costs
time, never a different tree: too few nodes lower the guess, too many are cut to the B best of their level.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

_BINS, _BIN_WIDTH, _TILT = 64, 0.25, 2.0  # histogram of log-probs: range 16 nats
_OVERSHOOT = 1.2  # aim at 20% more nodes than the budget: misses are then rare
_BLOCK_NODES = 1 << 16  # nodes built at once: what stays in the cache
_LOWEST = np.finfo(np.float64).min  # a guess that every node but those of -inf reaches
_LOWER = 1.0  # nats by which a guess that found too few nodes is lowered, doubled each time


class BestFirst(NamedTuple):
    """Nodes in best-first order, the root in column 0; slots from ``counts`` on are padding.

    Attributes
    ----------
    parents, depths, ranks : int32 [P, N]
        As in :class:`kdtree_cupy.DraftTree`.
    scores : float64 [P, N]
        Sum of log-probs, added root to node; -inf in padding.
    counts : int32 [P]
        Real nodes, root included.
    """

    parents: np.ndarray
    depths: np.ndarray
    ranks: np.ndarray
    scores: np.ndarray
    counts: np.ndarray


class _Level(NamedTuple):
    """Nodes of one depth that reach the guess, sorted by position, then by rank tuple."""

    position: np.ndarray
    score: np.ndarray
    parent: np.ndarray  # index into the level above
    rank: np.ndarray


def best_first(logprobs: np.ndarray, budgets: np.ndarray, num_nodes: int) -> BestFirst:
    """Select the best-first tree of every position.

    Parameters
    ----------
    logprobs : float32 [P, D, K]
        Rows descending and <= 0 without NaN (not checked here); -inf never becomes a node.
    budgets : int32 [P]
        Draft nodes wanted, >= 0.
    num_nodes : int
        Slots N of the result, > max(budgets).

    Returns
    -------
    BestFirst
        Bit for bit the tree of :func:`kdtree_cupy.refs.tree_build.tree_build`.
    """
    out = _empty(logprobs.shape[0], num_nodes)
    wanted = budgets.astype(np.int64)
    out.counts[:] = 1
    block = max(1, _BLOCK_NODES // (int(wanted.max(initial=0)) + 64))
    active = np.flatnonzero(wanted > 0)
    for start in range(0, active.size, block):
        _build_block(out, active[start : start + block], logprobs, wanted)
    return out


def _build_block(out: BestFirst, todo: np.ndarray, logprobs: np.ndarray, wanted: np.ndarray) -> None:
    """Build the trees of the positions ``todo``, all at once."""
    guess = _guess(logprobs[todo], wanted[todo])
    lower = _LOWER
    while todo.size:
        levels, count = _walk(logprobs[todo], wanted[todo], guess)
        enough = (count >= wanted[todo]) | (guess == _LOWEST)
        if enough.any():
            _store(out, todo, enough, levels, count, wanted, logprobs.shape[1:])
        todo, guess = todo[~enough], guess[~enough] - lower
        lower *= 2
        if lower > 64:  # rows with less mass than any guess covers: walk everything that is reachable
            guess[:] = _LOWEST


def _empty(positions: int, num_nodes: int) -> BestFirst:
    shape = (positions, num_nodes)
    out = BestFirst(
        parents=np.full(shape, -1, np.int32),
        depths=np.zeros(shape, np.int32),
        ranks=np.full(shape, -1, np.int32),
        scores=np.full(shape, -np.inf),
        counts=np.zeros(positions, np.int32),
    )
    out.scores[:, 0] = 0.0
    return out


def _guess(logprobs: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Return a score per position that about ``wanted`` nodes reach.

    The number of nodes per score bin and depth is the convolution of the rows' histograms.  Weights
    ``exp(-_TILT * cost)`` keep the FFT from drowning the near bins in the huge far ones.
    """
    positions, depth, _ = logprobs.shape
    bins = 2 * _BINS
    by_depth = np.ascontiguousarray(logprobs.transpose(1, 0, 2))
    cost = (np.minimum(-by_depth, (bins - 1) * _BIN_WIDTH) / _BIN_WIDTH + 0.5).astype(np.int32)
    row = np.arange(depth * positions, dtype=np.int32).reshape(depth, positions, 1) * bins
    histogram = np.bincount((row + cost).ravel(), minlength=depth * positions * bins)
    tilt = np.exp(-_TILT * _BIN_WIDTH * np.arange(bins)) * (np.arange(bins) < _BINS)  # the rest would wrap
    spectrum = np.fft.rfft(histogram.reshape(depth, positions, bins) * tilt, axis=2)
    total = spectrum[-1]
    for level in spectrum[-2::-1]:  # s1 + s1 s2 + ... = s1 (1 + s2 (1 + ...))
        total = level + level * total
    mass = np.fft.irfft(total, n=bins, axis=1)[:, :_BINS]
    reached = np.cumsum(mass / tilt[:_BINS], axis=1) >= (_OVERSHOOT * wanted)[:, None]
    first = np.where(reached.any(1), reached.argmax(1), _BINS)
    return -(first + 0.5) * _BIN_WIDTH


def _walk(logprobs: np.ndarray, wanted: np.ndarray, guess: np.ndarray) -> tuple[list[_Level], np.ndarray]:
    """Return the levels of all nodes that reach ``guess``, and how many each position has."""
    positions, depth, width = logprobs.shape
    flat = logprobs.reshape(-1)
    count = np.zeros(positions, np.int64)
    levels: list[_Level] = []
    position, score = np.arange(positions), np.zeros(positions)
    for d in range(depth):
        row = (position * depth + d) * width  # where the row of each node's children starts
        children = _reaching(flat, row, width, score, guess[position])
        parent = np.repeat(np.arange(position.size), children)
        if parent.size == 0:
            break
        first = np.cumsum(children) - children
        rank = np.arange(parent.size) - first[parent]
        score = flat[row[parent] + rank] + score[parent]  # float32 + float64 -> float64
        position = position[parent]
        size = np.bincount(position, minlength=positions)
        if (size > 4 * wanted).any():  # the guess was far too low: only the B best of a level can matter
            keep_best = _best_of_level(position, score, size, wanted)
            parent, rank = parent[keep_best], rank[keep_best]
            score, position = score[keep_best], position[keep_best]
            size = np.bincount(position, minlength=positions)
        count += size
        levels.append(_Level(position, score, parent, rank))
    return levels, count


def _reaching(
    flat: np.ndarray, row: np.ndarray, width: int, score: np.ndarray, guess: np.ndarray
) -> np.ndarray:
    """Return how many children of each node reach its guess; a binary search, because rows descend."""
    low = np.zeros(row.size, np.int64)
    for step in (1 << bit for bit in reversed(range(width.bit_length()))):
        probe = np.minimum(low + step, width)
        low = np.where(flat[row + probe - 1] + score >= guess, probe, low)
    return low


def _best_of_level(
    position: np.ndarray, score: np.ndarray, size: np.ndarray, wanted: np.ndarray
) -> np.ndarray:
    """Return the mask of the ``wanted`` best entries of each position; ties go to the smaller rank tuple."""
    order = np.lexsort((-score, position))  # stable: entries of a position are stored by rank tuple
    place = np.empty(position.size, np.int64)
    place[order] = np.arange(position.size) - (np.cumsum(size) - size)[position[order]]
    return place < wanted[position]


def _store(
    out: BestFirst,
    todo: np.ndarray,
    enough: np.ndarray,
    levels: list[_Level],
    count: np.ndarray,
    wanted: np.ndarray,
    shape: tuple[int, int],
) -> None:
    """Sort the nodes of the finished positions and write the first ``wanted`` of each."""
    rows = np.flatnonzero(enough)
    width = int(count[rows].max()) + 1
    scores = np.full(rows.size * width, -np.inf)
    parents, ranks, depths = (np.zeros(rows.size * width, np.int32) for _ in range(3))
    start = np.zeros(todo.size, np.int64)  # cell of each position's root
    start[rows] = np.arange(rows.size) * width
    scores[start[rows]] = np.inf  # the root, before everything
    above, free = start, start + 1  # cell of each node of the level above; of the next node
    for d, level in enumerate(levels, 1):
        size = np.bincount(level.position, minlength=todo.size)
        cell = (free - np.cumsum(size) + size)[level.position] + np.arange(level.position.size)
        use = slice(None) if rows.size == todo.size else enough[level.position]
        at = cell[use]
        scores[at], ranks[at], depths[at] = level.score[use], level.rank[use], d
        parents[at] = (above[level.parent] - start[level.position])[use]
        above = cell
        free += size
    shaped = (array.reshape(rows.size, width) for array in (scores, parents, ranks, depths))
    order = _order(*shaped, shape)
    new_index = np.empty_like(order)
    np.put_along_axis(new_index, order, np.arange(width)[None, :], axis=1)
    keep = min(width, out.scores.shape[1])
    base = start[rows, None]
    source = base + order[:, :keep]
    cut = np.minimum(count[rows], wanted[todo[rows]]) + 1
    real = np.arange(keep) < cut[:, None]
    real[:, 0] = False  # the root is there already
    at = todo[rows]
    out.scores[at, 1:keep] = np.where(real, scores[source], -np.inf)[:, 1:]
    out.ranks[at, :keep] = np.where(real, ranks[source], -1)
    out.depths[at, :keep] = np.where(real, depths[source], 0)
    out.parents[at, :keep] = np.where(real, new_index.reshape(-1)[base + parents[source]], -1)
    out.counts[at] = cut


def _order(
    scores: np.ndarray, parents: np.ndarray, ranks: np.ndarray, depths: np.ndarray, shape: tuple[int, int]
) -> np.ndarray:
    """Return, per row, the columns sorted by (-score, rank tuple)."""
    order = np.argsort(-scores, axis=1)  # not stable, but rows with equal scores are sorted again
    ordered = np.take_along_axis(scores, order, axis=1)
    tied = (ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] > -np.inf)
    for i in np.flatnonzero(tied.any(1)):
        words = _rank_words(parents[i], ranks[i], depths[i], shape)
        order[i] = np.lexsort((*words[::-1], -scores[i]))
    return order


def _rank_words(
    parents: np.ndarray, ranks: np.ndarray, depths: np.ndarray, shape: tuple[int, int]
) -> list[np.ndarray]:
    """Return rank tuples packed into integers that compare as tuples do (0 = ended: a prefix is first)."""
    depth, width = shape
    bits = int(width).bit_length()  # rank + 1 <= width
    per_word = 63 // bits
    words = [np.zeros(parents.size, np.int64) for _ in range(-(-depth // per_word))]
    for d in range(1, depth + 1):
        at = np.flatnonzero(depths == d)
        for word in words:
            word[at] = word[parents[at]]
        slot = (d - 1) % per_word
        words[(d - 1) // per_word][at] |= (ranks[at].astype(np.int64) + 1) << (bits * (per_word - 1 - slot))
    return words
