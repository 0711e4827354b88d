"""A block drafter: a small transformer that reads the target's hidden states and drafts D tokens in one pass.

Row 0 of a block is the root's embedding, rows 1..D are a learned mask vector, at places t .. t + D.  They
attend to the target's features at all places before the root and to each other.  Row d gives the
distribution of the token d places after the root, over the target's own embedding matrix.

Source of the idea: DFlash-style block drafting; shapes as ``kdtree train-drafter`` writes them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..safetensors_file import read_safetensors
from . import products
from .batch_head import BatchHead
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
        self.heads, self.layers = int(settings["heads"]), int(settings["layers"])
        size = self.width = int(settings["d"])
        if size != model.config.hidden_size or max(self.features) >= model.config.num_hidden_layers:
            got = f"hidden size {size}, features of layers {settings['feature_layers']}"
            raise ValueError(f"drafter: {got}: does not fit {model.config}")
        self.model, self._xp = model, model.xp
        names = ["fc.weight", "fn.weight", "inp.weight", "mask", "norm.weight", "out.weight"]
        parts = ("n1", "nc", "n2", "q", "k", "v", "o", "qn", "kn", "g", "u", "dn")
        names += [f"layers.{i}.{part}.weight" for i in range(self.layers) for part in parts]
        if missing := [name for name in names if name not in weights]:
            raise ValueError(f"drafter: tensor {missing[0]!r} is missing")
        self._w = {name: self._xp.asarray(weights[name].astype(np.float32)) for name in names}
        per_head = size // self.heads
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

    def for_batch(self, batch: int, room: int) -> BatchHead:
        """Return a drafter for the rounds of one batch, in texts of at most ``room`` tokens."""
        return BatchHead(self, batch, room)

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
        self.reserve(int(roots.max()) + self.depth + 1)
        known = self._context(features, int(roots.max()), {} if memory is None else memory)
        parts = []
        for start in range(0, len(roots), _ROOTS):
            at = roots[start : start + _ROOTS]
            unseen = xp.asarray(np.arange(len(known[0][0])) >= at[:, None])  # [m, context]

            def attend(i: int, q: Array, own: Rows, unseen: Array = unseen) -> Array:
                return self._attend(q, own, known[i], unseen)

            positions = xp.asarray(at[:, None] + np.arange(self.depth + 1))
            hidden = self.blocks(xp.asarray(tokens[at]), positions, attend)
            parts.append(best_tokens(self.model.logits(hidden), width, self.model.library))
        ids, logprobs = zip(*parts, strict=True)
        return np.concatenate(ids), np.concatenate(logprobs)

    def _context(
        self, features: Array | None, count: int, memory: dict[str, Any]
    ) -> list[tuple[Array, Array]]:
        """Return keys and values [count, heads, E] of each layer for the places before the last root."""
        xp, done = self._xp, memory.get("places", 0)
        nothing = xp.zeros((0, self.heads, len(self._w["mask"]) // self.heads), np.float32)
        empty = [(nothing, nothing)] * self.layers
        if done < count:
            self.reserve(count)
            new = self.context_rows(features[None, done:count], xp.arange(done, count)[None])
            old = memory.get("rows", empty)
            memory["rows"] = [
                (xp.concatenate([k, more[0][0]]), xp.concatenate([v, more[1][0]]))
                for (k, v), more in zip(old, new, strict=True)
            ]
            memory["places"] = count
        return [(k[:count], v[:count]) for k, v in memory.get("rows", empty)]

    def reserve(self, positions: int) -> tuple[Array, ...]:
        """Make positions below this one possible; return arrays that captured calls read, to be kept."""
        return self._rope.reserve(positions)

    def context_rows(self, features: Array, positions: Array) -> list[Rows]:
        """Return keys and values [m, n, heads, E] of each layer for features [m, n, F] at int [m, n]."""
        y = self._norm(self._linear(features, "fc"), "fn")
        normed = (self._norm(y, f"layers.{i}.nc") for i in range(self.layers))
        return [self._keys_values(i, one, positions) for i, one in enumerate(normed)]

    def _linear(self, x: Array, name: str) -> Array:
        return products.linear(x, self._w[f"{name}.weight"], self._xp)

    def _norm(self, x: Array, name: str) -> Array:
        return rms_norm(x, self._w[f"{name}.weight"], EPS, self._xp)

    def _keys_values(self, i: int, x: Array, positions: Array) -> Rows:
        k = self._norm(self._split(self._linear(x, f"layers.{i}.k")), f"layers.{i}.kn")
        return self._turn(k, positions), self._split(self._linear(x, f"layers.{i}.v"))

    def _split(self, x: Array) -> Array:
        return x.reshape(*x.shape[:-1], self.heads, -1)

    def _turn(self, x: Array, positions: Array) -> Array:
        return self._rope.rotate(x, positions, interleaved=False)

    def blocks(self, roots: Array, positions: Array, attend: Callable[[int, Array, Rows], Array]) -> Array:
        """Return hidden rows 1..D of each block, [m, D, d], ready for the target's embedding matrix.

        Parameters
        ----------
        roots : int [m]
            Tokens.
        positions : int [m, D + 1]
        attend : callable
            ``attend(layer, q, own)`` gives what queries [m, D + 1, heads, E] read from the context and from
            keys and values of their own block, [m, D + 1, d].
        """
        xp = self._xp
        x = xp.empty((len(roots), self.depth + 1, len(self._w["mask"])), np.float32)
        embedded = self.model.embedding[roots].astype(np.float32, copy=False)
        x[:, 0] = self._linear(embedded, "inp")
        x[:, 1:] = self._w["mask"]
        for i in range(self.layers):
            at = f"layers.{i}."
            y = self._norm(x, at + "n1")
            q = self._turn(self._norm(self._split(self._linear(y, at + "q")), at + "qn"), positions)
            read = attend(i, q, self._keys_values(i, y, positions))
            x = x + self._linear(read, at + "o")
            y = self._norm(x, at + "n2")
            x = x + self._linear(gated(self._linear(y, at + "g"), self._linear(y, at + "u"), xp), at + "dn")
        return self._linear(self._norm(x[:, 1:], "norm"), "out")

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
