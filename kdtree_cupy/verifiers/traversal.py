"""Traversal verification: leaves first, with a ratio of whole sequences (arXiv 2505.12398).

A node v is reached with a *right* a_v: the probability that it is accepted if nothing below it is.  The root
has 1.  A child x drawn from q gets min(1, a_v p(x) / q(x)), and its subtree is tried first.  If it is
rejected, what is left of v's mass is (a_v p - q)+ with sum R: p becomes that, normalised, and a_v becomes
R / (R + 1 - a_v).  Both are free of x, which makes the scheme lossless for any number of children and the
exact law cheap.
"""

from __future__ import annotations

import numpy as np

from .node import normalised
from .sampling import Walked, draw, pick
from .toy import ToyModel


def _check(model: ToyModel, k: int, depth: int | None) -> int:
    levels = model.depth - 1 if depth is None else depth
    if k < 1 or not 0 <= levels < model.depth:
        raise ValueError(f"got k {k}, depth {levels}; wanted k >= 1 and depth in 0..{model.depth - 1}")
    return levels


def _left(right: np.ndarray, p: np.ndarray, q: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return right and distribution of a node after one more of its children was rejected."""
    rest = np.maximum(right[..., None] * p - q, 0.0)
    mass = rest.sum(-1)
    return mass / np.where(mass + 1.0 - right > 0, mass + 1.0 - right, 1.0), normalised(rest)


def exact_traversal(model: ToyModel, k: int, *, depth: int | None = None) -> dict[tuple[int, ...], float]:
    """Return the probability of every emitted run of tokens: accepted drafts and one more token.

    Parameters
    ----------
    model : ToyModel
    k : int
        Iid children of every node.
    depth : int, optional
        Drafted levels (default: the model's depth - 1).
    """
    levels = _check(model, k, depth)

    def law(path: tuple[int, ...], prefix: int, right: float) -> dict[tuple[int, ...], float]:
        p, q = model.target[len(path)][prefix], np.zeros(0)
        out: dict[tuple[int, ...], float] = {}
        left = 1.0
        if len(path) < levels:
            q = model.drafter[len(path)][prefix]
            for _ in range(k):
                gone = 0.0
                for x in np.flatnonzero(q > 0):
                    child = law((*path, int(x)), prefix * model.vocab + int(x), min(1.0, right * p[x] / q[x]))
                    for run, mass in child.items():
                        out[run] = out.get(run, 0.0) + left * q[x] * mass
                        gone += q[x] * mass
                left *= 1.0 - gone
                new, p = _left(np.array(right), p, q)
                right = float(new)
        for x in np.flatnonzero(p > 0):
            run = (*path, int(x))
            out[run] = out.get(run, 0.0) + left * right * float(p[x])
        return out

    return law((), 0, 1.0)


def traverse(model: ToyModel, k: int, draws: int, *, depth: int | None = None, seed: int = 0) -> Walked:
    """Decode ``draws`` rounds by traversal of a k-ary tree of iid drafts (Monte Carlo, vectorised).

    Returns
    -------
    Walked
        As from :func:`kdtree_cupy.verifiers.walk`.
    """
    levels = _check(model, k, depth)
    if draws < 1:
        raise ValueError(f"draws: got {draws}, wanted at least 1")
    rng = np.random.default_rng(seed)

    def visit(level: int, prefix: np.ndarray, right: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return which requests accepted in this subtree, the prefix they reached and its length."""
        n = prefix.size
        done, at, length = np.zeros(n, bool), np.zeros(n, np.int64), np.zeros(n, np.int64)
        p = model.target[level][prefix]
        right = right.copy()
        if level < levels:
            q = model.drafter[level][prefix]
            for _ in range(k):
                x = draw(rng, q)
                claim = np.minimum(1.0, right * pick(p, x) / pick(q, x))
                open_ = np.flatnonzero(~done)
                won, reached, size = visit(level + 1, prefix[open_] * model.vocab + x[open_], claim[open_])
                new = open_[won]
                done[new], at[new], length[new] = True, reached[won], size[won]
                right, p = _left(right, p, q)
        accept = ~done & (rng.random(n) < right)
        bonus = draw(rng, p)
        at = np.where(accept, prefix * model.vocab + bonus, at)
        length = np.where(accept, level, length)
        return done | accept, at, length

    _, prefix, accepted = visit(0, np.zeros(draws, np.int64), np.ones(draws))
    tokens = np.zeros((draws, levels + 1), np.int64)
    emitted = accepted + 1
    for d in range(levels + 1):  # unpack base V, then go on with plain samples of the target
        known = d < emitted
        digit = prefix // model.vocab ** np.maximum(emitted - 1 - d, 0) % model.vocab
        above = np.zeros(draws, np.int64)
        for j in range(d):
            above = above * model.vocab + tokens[:, j]
        tokens[:, d] = np.where(known, digit, draw(rng, model.target[d][above]))
    return Walked(tokens, accepted)
