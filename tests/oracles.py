"""Second opinions: other ways to compute what the references compute."""

from __future__ import annotations

import itertools

import numpy as np


def all_paths(logprobs: np.ndarray) -> list[tuple[float, tuple[int, ...]]]:
    """Return (-score, ranks) of every node of the whole trie of [D, K] log-probs, best first."""
    depth, width = logprobs.shape
    nodes = []
    for d in range(1, depth + 1):
        for ranks in itertools.product(range(width), repeat=d):
            score = 0.0
            for level, rank in enumerate(ranks):
                score += float(logprobs[level, rank])
            if score > -np.inf:
                nodes.append((-score, ranks))
    return sorted(nodes)


def level_by_level(logprobs: np.ndarray, budget: int) -> list[tuple[int, ...]]:
    """Return the best-first rank tuples without a heap: the B best of each depth, then the B best of all.

    A node among the B best of the trie is among the B best of its depth, and so is its parent.  Rank r under
    the i-th best parent is beaten by the lower ranks of better parents: at least (i + 1) * (r + 1) - 1 nodes.
    """
    chosen: list[tuple[float, tuple[int, ...]]] = []
    level: list[tuple[float, tuple[int, ...]]] = [(-0.0, ())]
    for row in logprobs.astype(np.float64).tolist():
        grown = [
            (cost - lp, (*ranks, r))
            for i, (cost, ranks) in enumerate(level)
            for r, lp in enumerate(row[: budget // (i + 1)])
            if lp > -np.inf
        ]
        level = sorted(grown)[:budget]
        chosen = sorted(chosen + level)[:budget]
    return [ranks for _, ranks in chosen]


def float32_tree(table: np.ndarray, budget: int) -> list[tuple[int, ...]]:
    """Return the best paths with scores rounded to float32 after every addition."""
    level, chosen = [(np.float32(0), ())], []
    for row in table:
        level = sorted((c - lp, (*ranks, r)) for c, ranks in level for r, lp in enumerate(row))[:budget]
        chosen = sorted(chosen + level)[:budget]
    return [ranks for _, ranks in chosen]


def closure(parents: np.ndarray, count: int) -> np.ndarray:
    """Return bool [N, N]: the reflexive transitive closure of the parent relation, by matrix powers."""
    slots = len(parents)
    step = np.eye(slots, dtype=np.int64)
    for i in range(1, count):
        step[i, parents[i]] = 1
    reach = np.eye(slots, dtype=np.int64)
    for _ in range(slots):
        reach = np.minimum(reach @ step, 1)
    return reach.astype(bool)


def longest_match(tokens: np.ndarray, parents: np.ndarray, count: int, targets: np.ndarray) -> list[int]:
    """Return the deepest node chain that the target agrees with; for trees without equal siblings."""
    chains: dict[int, list[int]] = {0: [0]}
    for i in range(1, count):
        p = int(parents[i])
        if p in chains and tokens[i] == targets[p]:
            chains[i] = [*chains[p], i]
    return max(chains.values(), key=len)


def rounded(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Return ``x`` as float32 after a trip through ``dtype``."""
    return np.asarray(x, np.float32).astype(dtype).astype(np.float32)


def naive_attention(
    q: np.ndarray, rows: np.ndarray, visible: np.ndarray, scale: float, values: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return textbook attention of one request with every intermediate stored in q's number type.

    ``q`` is [N, H, 576], ``rows`` [n, 576] and ``visible`` bool [N, n]; out is [N, H, 512], lse float32.
    ``values`` [n, D] instead of the first 512 numbers of the rows, which then are keys of any size.
    """
    dtype = q.dtype
    keys = rows.astype(np.float32)
    scores = rounded(np.einsum("nhe,me->nhm", q.astype(np.float32), keys), dtype) * np.float32(scale)
    scores = np.where(visible[:, None], rounded(scores, dtype), -np.inf)
    peak = scores.max(-1, keepdims=True)
    weights = rounded(np.exp(scores - peak), dtype)
    total = weights.sum(-1, keepdims=True, dtype=np.float32)
    values = (rows[:, :512] if values is None else values).astype(np.float32)
    out = np.einsum("nhm,me->nhe", rounded(weights / total, dtype), values)
    return rounded(out, dtype), (peak + np.log(total))[..., 0]


def dense_attention(
    q: np.ndarray, rows: np.ndarray, visible: np.ndarray, scale: float, values: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return the same in float64 with a dense additive mask; rows that see nothing give 0 and -inf."""
    scores = scale * np.einsum("nhe,me->nhm", q.astype(np.float64), rows.astype(np.float64))
    scores = np.where(visible[:, None], scores, -np.inf)
    lse = np.logaddexp.reduce(scores, axis=-1) if rows.size else np.full(q.shape[:2], -np.inf)
    weights = np.exp(scores - np.where(np.isfinite(lse), lse, 0.0)[..., None])
    values = (rows[:, :512] if values is None else values).astype(np.float64)
    return np.einsum("nhm,me->nhe", weights, values), lse
