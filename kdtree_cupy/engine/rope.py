"""Rotary positions: frequencies with their scalings, tables of cosines and sines, rotation."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .config import ModelConfig
from .fused import rotate

Array = Any


def yarn_growth(factor: float, m: float) -> float:
    """Return how much YaRN enlarges attention logits for a context stretched by ``factor``."""
    return 0.1 * m * math.log(factor) + 1.0 if factor > 1 else 1.0


def attention_scale(config: ModelConfig) -> float:
    """Return the factor on q.k, YaRN's growth included where the family puts it there."""
    if not config.is_mla:
        return config.head_dim**-0.5
    scale = (config.qk_nope_head_dim + config.qk_rope_head_dim) ** -0.5
    rope = config.rope
    if rope["rope_type"] != "default" and rope.get("mscale_all_dim"):
        scale *= yarn_growth(float(rope["factor"]), rope["mscale_all_dim"]) ** 2
    return scale


def frequencies(config: ModelConfig, size: int) -> tuple[np.ndarray, float]:
    """Return float64 [size/2] angles per position, and the factor on cosines and sines.

    Raises
    ------
    ValueError
        A scaling that the engine lacks.
    """
    rope = config.rope
    kind, base = rope["rope_type"], float(rope["rope_theta"])
    plain = base ** (-np.arange(0, size, 2) / size)
    if kind == "default":
        return plain, 1.0
    factor = float(rope["factor"])
    if kind == "linear":
        return plain / factor, 1.0
    original = rope.get("original_max_position_embeddings") or config.max_position_embeddings
    if kind == "llama3":
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        share = np.clip((original * plain / (2 * np.pi) - low) / (high - low), 0, 1)
        return plain * share + plain / factor * (1 - share), 1.0
    if kind != "yarn":
        raise ValueError(f"rope_type: got {kind!r}, wanted default, linear, llama3 or yarn")
    edges = [
        size * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base))
        for turns in (rope.get("beta_fast") or 32, rope.get("beta_slow") or 1)
    ]
    first, last = max(math.floor(edges[0]), 0), min(math.ceil(edges[1]), size - 1)
    ramp = np.clip((np.arange(size // 2) - first) / max(last - first, 1e-3), 0, 1)
    growth = yarn_growth(factor, 1.0)
    if rope.get("mscale") and rope.get("mscale_all_dim"):
        growth = yarn_growth(factor, rope["mscale"]) / yarn_growth(factor, rope["mscale_all_dim"])
    return plain * (1 - ramp) + plain / factor * ramp, growth


class RopeTable:
    """Cosines and sines of every position so far needed, float32 on the model's side.

    Parameters
    ----------
    angles : float64 [size/2]
        Angle per position.
    factor : float
        On cosines and sines.
    xp : module
        ``numpy`` or ``cupy``.
    """

    def __init__(self, angles: np.ndarray, factor: float, xp: Any) -> None:
        self._angles, self._factor, self._xp = angles, factor, xp
        self._cos = self._sin = xp.zeros((0, angles.size), np.float32)

    def reserve(self, positions: int) -> tuple[Array, Array]:
        """Make the tables hold at least ``positions`` rows, and return them."""
        if positions > len(self._cos):
            rows = np.arange(max(positions, 2 * len(self._cos)))[:, None] * self._angles
            self._cos = self._xp.asarray((np.cos(rows) * self._factor).astype(np.float32))
            self._sin = self._xp.asarray((np.sin(rows) * self._factor).astype(np.float32))
        return self._cos, self._sin

    def rotate(self, x: Array, positions: Array, *, interleaved: bool) -> Array:
        """Return ``x`` [b, n, heads, size] rotated; ``positions`` is int [b, n].

        Pairs are (2i, 2i+1) if ``interleaved``, else (i, i + size/2).
        """
        tables = {"cos": self._cos, "sin": self._sin}
        return rotate(x, positions, **tables, interleaved=interleaved, xp=self._xp)
