"""A block drafter: a small transformer that reads the target's hidden states and drafts D tokens in one pass.

Row 0 of a block is the root's embedding, rows 1..D are a learned mask vector, at places t .. t + D.  They
attend to the target's features at all places before the root and to each other.  Row d gives the
distribution of the token d places after the root, over the target's own embedding matrix.

Source of the idea: DFlash-style block drafting; shapes as ``kdtree train-drafter`` writes them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..safetensors_file import read_safetensors
from .context import Context
from .fused import gated, rms_norm
from .model import Model
from .rope import RopeTable
from .topk import best_tokens

Array = Any
Rows = tuple[Array, Array]
"""Keys and values."""
EPS = float(np.finfo(np.float32).eps)
_ROOTS = 16
"""Blocks of one pass when a whole text is drafted for: bounds the logits, D * V floats a block."""


class BlockHead:
    """The drafter of :mod:`kdtree_cupy.engine.block_head`.

    Parameters
    ----------
    weights : mapping of str to array
        ``fc``, ``fn``, ``inp``, ``mask``, ``norm``, ``out`` and ``layers.N.*``.
    settings : mapping of str to str
        Metadata of the file: ``block`` (D + 1), ``d``, ``heads``, ``layers``, ``rope_base``,
        ``feature_layers``.
    model : Model
        The target, for its embedding matrix.

    Raises
    ------
    ValueError
        A tensor is missing, or the target has another hidden size or too few layers.
    """

    def __init__(self, weights: Mapping[str, np.ndarray], settings: Mapping[str, str], model: Model) -> None:
        self.depth = int(settings["block"]) - 1
        self.features = tuple(int(i) for i in settings["feature_layers"].split(","))
        self._heads, self._layers = int(settings["heads"]), int(settings["layers"])
        size = int(settings["d"])
        if size != model.config.hidden_size or max(self.features) >= model.config.num_hidden_layers:
            got = f"hidden size {size}, features of layers {settings['feature_layers']}"
            raise ValueError(f"drafter: {got}: does not fit {model.config}")
        self._model, self._xp = model, model.xp
        names = ["fc.weight", "fn.weight", "inp.weight", "mask", "norm.weight", "out.weight"]
        parts = ("n1", "nc", "n2", "q", "k", "v", "o", "qn", "kn", "g", "u", "dn")
        names += [f"layers.{i}.{part}.weight" for i in range(self._layers) for part in parts]
        if missing := [name for name in names if name not in weights]:
            raise ValueError(f"drafter: tensor {missing[0]!r} is missing")
        self._w = {name: self._xp.asarray(weights[name].astype(np.float32)) for name in names}
        per_head = size // self._heads
        angles = float(settings["rope_base"]) ** (-np.arange(0, per_head, 2) / per_head)
        self._rope = RopeTable(angles, 1.0, self._xp)

    def __call__(self, contexts: Sequence[Context], width: int) -> tuple[np.ndarray, np.ndarray]:
        """Return ids int32 and log-probs float32, both [b, D, width]."""
        found = []
        for context in contexts:
            root = np.array([len(context.tokens) - 1])
            found.append(self.draft(context.tokens, context.features, root, width, context.memory))
        ids, logprobs = zip(*found, strict=True)
        return np.concatenate(ids), np.concatenate(logprobs)

    def draft(
        self,
        tokens: np.ndarray,
        features: Array | None,
        roots: np.ndarray,
        width: int,
        memory: dict[str, Any] | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows of several roots of one text, ids and log-probs [roots, D, width].

        Parameters
        ----------
        tokens : int32 [n]
            The text.
        features : float32 [>= roots.max(), F]
            The target's features at each place; a root sees those before it.
        roots : int [m]
            Places of the roots.
        width : int
            Ranks.
        memory : dict, optional
            Keys and values of places seen before; extended.
        """
        xp = self._xp
        known = self._context(features, int(roots.max()), {} if memory is None else memory)
        parts = []
        for start in range(0, len(roots), _ROOTS):
            at = roots[start : start + _ROOTS]
            hidden = self._blocks(xp.asarray(tokens[at]), at, known)
            parts.append(best_tokens(self._model.logits(hidden), width, self._model.library))
        ids, logprobs = zip(*parts, strict=True)
        return np.concatenate(ids), np.concatenate(logprobs)

    def _context(
        self, features: Array | None, count: int, memory: dict[str, Any]
    ) -> list[tuple[Array, Array]]:
        """Return keys and values [count, heads, E] of each layer for the places before the last root."""
        xp, done = self._xp, memory.get("places", 0)
        nothing = xp.zeros((0, self._heads, len(self._w["mask"]) // self._heads), np.float32)
        empty = [(nothing, nothing)] * self._layers
        if done < count:
            y = rms_norm(features[done:count] @ self._w["fc.weight"].T, self._w["fn.weight"], EPS, xp)
            new = []
            for i in range(self._layers):
                normed = rms_norm(y, self._w[f"layers.{i}.nc.weight"], EPS, xp)
                new.append(self._keys_values(i, normed[None], np.arange(done, count)[None]))
            old = memory.get("rows", empty)
            memory["rows"] = [
                (xp.concatenate([k, more[0][0]]), xp.concatenate([v, more[1][0]]))
                for (k, v), more in zip(old, new, strict=True)
            ]
            memory["places"] = count
        return [(k[:count], v[:count]) for k, v in memory.get("rows", empty)]

    def _keys_values(self, i: int, x: Array, positions: np.ndarray) -> Rows:
        k = self._split(x @ self._w[f"layers.{i}.k.weight"].T)
        k = rms_norm(k, self._w[f"layers.{i}.kn.weight"], EPS, self._xp)
        return self._turn(k, positions), self._split(x @ self._w[f"layers.{i}.v.weight"].T)

    def _split(self, x: Array) -> Array:
        return x.reshape(*x.shape[:-1], self._heads, -1)

    def _turn(self, x: Array, positions: np.ndarray) -> Array:
        self._rope.reserve(int(positions.max(initial=0)) + 1)
        return self._rope.rotate(x, self._xp.asarray(positions), interleaved=False)

    def _blocks(self, roots: Array, places: np.ndarray, known: list[Rows]) -> Array:
        """Return hidden rows 1..D of each block, [m, D, d], ready for the target's embedding matrix."""
        xp, w = self._xp, self._w
        x = xp.empty((len(places), self.depth + 1, len(w["mask"])), np.float32)
        x[:, 0] = self._model.embedding[roots].astype(np.float32) @ w["inp.weight"].T
        x[:, 1:] = w["mask"]
        positions = places[:, None] + np.arange(self.depth + 1)
        hidden = xp.asarray(
            np.arange(len(known[0][0])) >= places[:, None]
        )  # [m, context]: not before the root
        for i in range(self._layers):
            y = rms_norm(x, w[f"layers.{i}.n1.weight"], EPS, xp)
            q = self._split(y @ w[f"layers.{i}.q.weight"].T)
            q = self._turn(rms_norm(q, w[f"layers.{i}.qn.weight"], EPS, xp), positions)
            own = self._keys_values(i, y, positions)
            read = self._attend(q, own, known[i], hidden)
            x = x + read @ w[f"layers.{i}.o.weight"].T
            y = rms_norm(x, w[f"layers.{i}.n2.weight"], EPS, xp)
            inner = gated(y @ w[f"layers.{i}.g.weight"].T, y @ w[f"layers.{i}.u.weight"].T, xp)
            x = x + inner @ w[f"layers.{i}.dn.weight"].T
        return rms_norm(x[:, 1:], w["norm.weight"], EPS, xp) @ w["out.weight"].T

    def _attend(self, q: Array, own: Rows, known: Rows, hidden: Array) -> Array:
        """Return what queries [m, D + 1, heads, E] read from the context and from their own block."""
        xp, scale = self._xp, np.float32(q.shape[-1] ** -0.5)
        q = q.transpose(0, 2, 1, 3) * scale  # [m, heads, D + 1, E]
        outside = q @ known[0].transpose(1, 2, 0)
        outside = xp.where(hidden[:, None, None], np.float32(-np.inf), outside)
        inside = q @ own[0].transpose(0, 2, 3, 1)
        scores = xp.concatenate([outside, inside], axis=-1)
        weights = xp.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        places = outside.shape[-1]
        out = weights[..., :places] @ known[1].transpose(1, 0, 2) + weights[..., places:] @ own[1].transpose(
            0, 2, 1, 3
        )
        return out.transpose(0, 2, 1, 3).reshape(len(q), q.shape[2], -1)


def load_block_head(path: str | Path, model: Model) -> BlockHead:
    """Return the block drafter in a ``.safetensors`` file.

    Raises
    ------
    KdtrError
        The file is damaged.
    ValueError
        It is none of this shape, or of another target.
    """
    settings, weights = read_safetensors(path)
    wanted = ("block", "d", "heads", "layers", "rope_base", "feature_layers")
    if missing := [name for name in wanted if name not in settings]:
        raise ValueError(f"{path}: metadata {missing[0]!r} is missing: not a block drafter")
    return BlockHead(weights, settings, model)
