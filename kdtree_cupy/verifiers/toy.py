"""Toy models: a target and a drafter over a small vocabulary, known exactly at every prefix."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class ToyModel(NamedTuple):
    """Next-token tables of target and drafter.

    Attributes
    ----------
    target, drafter : tuple of float64 [V ** d, V]
        Entry d: the distribution after each prefix of d tokens, prefixes numbered in base V, first token
        first.
    """

    target: tuple[np.ndarray, ...]
    drafter: tuple[np.ndarray, ...]

    @property
    def vocab(self) -> int:
        """Vocabulary size V."""
        return self.target[0].shape[1]

    @property
    def depth(self) -> int:
        """Positions the tables cover."""
        return len(self.target)

    def joint(self, depth: int) -> np.ndarray:
        """Return the target's distribution of the first ``depth`` tokens, float64 [V ** depth]."""
        mass = np.ones(1)
        for table in self.target[:depth]:
            mass = (mass[:, None] * table).ravel()
        return mass


def random_model(seed: int, vocab: int = 3, depth: int = 3, likeness: float = 0.5) -> ToyModel:
    """Return a model drawn from Dirichlet distributions; the drafter is a mixture of target and noise.

    Parameters
    ----------
    seed : int
    vocab, depth : int
        At least 2 and 1.
    likeness : float
        Share of the target in the drafter, 0..1.
    """
    if vocab < 2 or depth < 1:
        raise ValueError(f"got vocab {vocab}, depth {depth}; wanted at least 2 and 1")
    if not 0 <= likeness <= 1:
        raise ValueError(f"likeness: got {likeness}, wanted 0..1")
    rng = np.random.default_rng(seed)
    target = tuple(rng.dirichlet(np.ones(vocab), vocab**d) for d in range(depth))
    noise = tuple(rng.dirichlet(np.ones(vocab), vocab**d) for d in range(depth))
    return ToyModel(
        target, tuple(likeness * t + (1 - likeness) * n for t, n in zip(target, noise, strict=True))
    )


def tempered(p: np.ndarray, temperature: float) -> np.ndarray:
    """Return distributions [..., V] at another temperature, p ** (1 / temperature) normalised.

    Temperature 0 puts all mass on the most probable token (the first one of equals).
    """
    if not temperature >= 0 or not np.isfinite(temperature):
        raise ValueError(f"temperature: got {temperature}, wanted a finite number >= 0")
    p = np.asarray(p, np.float64)
    if temperature == 0:
        return (np.arange(p.shape[-1]) == p.argmax(-1)[..., None]).astype(np.float64)
    with np.errstate(divide="ignore"):
        logs = np.log(p) / temperature
    logs -= logs.max(-1, keepdims=True)
    mass = np.exp(logs)
    return mass / mass.sum(-1, keepdims=True)


def check_pair(p: np.ndarray, q: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return target and drafter distributions as float64: same shape, >= 0, rows sum to 1; k >= 1."""
    p, q = np.asarray(p, np.float64), np.asarray(q, np.float64)
    if p.shape != q.shape or p.ndim < 1 or p.shape[-1] < 1:
        raise ValueError(f"p {p.shape} and q {q.shape}: wanted one shape [..., vocabulary]")
    for name, value in (("p", p), ("q", q)):
        if not (value >= 0).all() or not np.allclose(value.sum(-1), 1.0, rtol=0, atol=1e-6):
            raise ValueError(f"{name}: wanted distributions: values >= 0 that sum to 1")
    if isinstance(k, bool) or not isinstance(k, int | np.integer):
        raise TypeError(f"k: got {type(k).__name__}, wanted an int")
    if k < 1:
        raise ValueError(f"k: got {k}, wanted at least 1 draft")
    return p, q
