"""Inputs: hypothesis strategies for small cases, seeded generators for large ones."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from kdtree_cupy.tree import DraftTree


@st.composite
def tables(draw: st.DrawFn, max_depth: int = 4, max_width: int = 4) -> np.ndarray:
    """Return float32 [D, K] log-probs: descending rows <= 0 with many ties, -0.0 and -inf among them."""
    depth, width = draw(st.integers(1, max_depth)), draw(st.integers(1, max_width))
    value = st.one_of(
        st.sampled_from([0.0, -0.0, -0.5, -1.0, -1.5, -2.0, -np.inf]),  # sums of these tie exactly
        st.floats(-30, 0, width=32),
    )
    rows = [sorted(draw(st.lists(value, min_size=width, max_size=width)), reverse=True) for _ in range(depth)]
    return np.array(rows, np.float32)


def ids_for(logprobs: np.ndarray) -> np.ndarray:
    """Return int32 ids that name depth and rank: 1000 * depth + rank (depth 0 holds token 0)."""
    depth, width = logprobs.shape[-2:]
    ids = 1000 * np.arange(depth)[:, None] + np.arange(width)
    return np.ascontiguousarray(np.broadcast_to(ids, logprobs.shape), np.int32)


def random_table(seed: int, batch: int, depth: int, width: int, step: float = 0.0) -> np.ndarray:
    """Return float32 [b, D, K] log-probs of peaked rows; ``step`` > 0 rounds logits, which makes ties."""
    rng = np.random.default_rng(seed)
    logits = 3.0 * rng.standard_normal((batch, depth, width + 7))
    logits = np.round(logits / step) * step if step else logits
    logits = -np.sort(-logits, axis=-1)
    logprobs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    return np.minimum(logprobs[..., :width], 0).astype(np.float32)


@st.composite
def draft_trees(draw: st.DrawFn, max_nodes: int = 12, broken: bool = False) -> DraftTree:
    """Return a batch of one tree with tokens from a small alphabet, so that siblings often share a token.

    ``broken`` trees have arbitrary parents and a count that may be 0 or exceed the slots.
    """
    slots = draw(st.integers(1, max_nodes))
    count = draw(st.integers(0, slots + 2)) if broken else draw(st.integers(1, slots))
    parent = (lambda i: st.integers(-3, slots + 3)) if broken else (lambda i: st.integers(0, i - 1))
    parents = [-1] + [draw(parent(i)) if i < count else -1 for i in range(1, slots)]
    tokens = [draw(st.integers(0, 3)) if i < count else 0 for i in range(slots)]
    return tree_from(parents, tokens, count)


def tree_from(parents: list[int], tokens: list[int], count: int | None = None) -> DraftTree:
    """Return a batch of one DraftTree; depths, ranks and scores are filled in for good parents."""
    slots = len(parents)
    count = slots if count is None else count
    depths, ranks = np.zeros(slots, np.int32), np.full(slots, -1, np.int32)
    scores = np.full(slots, -np.inf)
    scores[: min(count, 1)] = 0.0
    children = dict.fromkeys(range(slots), 0)
    for i in range(1, min(count, slots)):
        if 0 <= parents[i] < i:
            depths[i], ranks[i] = depths[parents[i]] + 1, children[parents[i]]
            scores[i] = scores[parents[i]] - 1.0
            children[parents[i]] += 1
    return DraftTree(
        tokens=np.array([tokens], np.int32),
        parents=np.array([parents], np.int32),
        depths=depths[None],
        ranks=ranks[None],
        scores=scores[None],
        counts=np.array([count], np.int32),
        status=np.zeros(1, np.int32),
    )


def with_distinct_siblings(tree: DraftTree) -> DraftTree:
    """Return a batch of one tree with tokens raised until no two siblings are equal."""
    seen: set[tuple[int, int]] = set()
    parents, tokens = tree.parents[0].tolist(), tree.tokens[0].tolist()
    for i in range(1, int(tree.counts[0])):
        while (parents[i], tokens[i]) in seen:
            tokens[i] += 1
        seen.add((parents[i], tokens[i]))
    return tree_from(parents, tokens, int(tree.counts[0]))


def random_parents(rng: np.random.Generator, slots: int, shape: str) -> list[int]:
    """Return parents of a chain, a star, a binary tree or a random tree."""
    of = {
        "chain": lambda i: i - 1,
        "star": lambda i: 0,
        "binary": lambda i: (i - 1) // 2,
        "random": lambda i: int(rng.integers(0, i)),
    }[shape]
    return [-1] + [of(i) for i in range(1, slots)]


def stack(trees: list[DraftTree]) -> DraftTree:
    """Return one batch of trees that have the same number of slots."""
    names = ("tokens", "parents", "depths", "ranks", "scores", "counts", "status")
    return DraftTree(**{n: np.concatenate([getattr(t, n) for t in trees]) for n in names})
