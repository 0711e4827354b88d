"""The block drafter for the rounds of one batch: all requests at once, captured like the rest of a round."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from . import products
from .captured import Captured
from .topk import best_rows

if TYPE_CHECKING:
    from .block_head import BlockHead, Rows

Array = Any
_CHUNK = 256
"""Places of a prompt whose features are read at once."""


class BatchHead:
    """Draft for every request of a batch; keys and values of what was read before are kept.

    Parameters
    ----------
    head : BlockHead
    batch : int
        Requests b.
    room : int
        Most tokens of a text, D + 2 more than can be committed.
    """

    def __init__(self, head: BlockHead, batch: int, room: int) -> None:
        self._head, self._xp, self._room = head, head.model.xp, room
        self._kept = head.reserve(room + head.depth + 2)
        shape = (head.layers, batch, head.heads, room, head.width // head.heads)
        self._keys, self._values = (self._xp.zeros(shape, np.float32) for _ in range(2))
        self._read = np.zeros(batch, np.int64)  # places whose features have been read
        self._input = self._xp.zeros((3, batch), np.int32)
        self._features: Array = None
        self._width = 1
        self._step: Captured | None = Captured(self._draft, self._xp)

    def forget(self) -> None:
        """Begin with new texts."""
        self._read[:] = 0

    def close(self) -> None:
        """Let go of the captured call, which holds this object."""
        self._step = None

    def __call__(
        self, tokens: np.ndarray, sizes: np.ndarray, features: Array, live: np.ndarray, width: int
    ) -> tuple[Array, Array]:
        """Return ids int32 and log-probs float32 [b, D, width], where the model is.

        Parameters
        ----------
        tokens : int32 [b, room]
            The texts.
        sizes : int [b]
            Their tokens, roots included.
        features : float32 [b, room, F]
            The target's features at each place but the root; the same array at every call.
        live : int [m]
            Requests to draft for; rows of the others mean nothing.
        width : int
            Ranks K, the same at every call.
        """
        self._features, self._width = features, width
        roots = sizes[live] - 1
        for b, root in zip(live.tolist(), roots.tolist(), strict=True):
            while root - self._read[b] > self._head.depth + 1:
                self._read_features(b, int(self._read[b]), min(int(self._read[b]) + _CHUNK, root))
        given = np.zeros((3, len(tokens)), np.int32)
        given[:, live] = tokens[live, roots], self._read[live], roots
        self._input[:] = self._xp.asarray(given)
        self._read[live] = roots
        self._step()
        return self._best

    def _read_features(self, b: int, start: int, stop: int) -> None:
        """Keep keys and values of places ``start..stop`` of one request."""
        positions = self._xp.arange(start, stop)[None]
        for i, (k, v) in enumerate(self._head.context_rows(self._features[b : b + 1, start:stop], positions)):
            self._keys[i, b, :, start:stop] = k[0].transpose(1, 0, 2)
            self._values[i, b, :, start:stop] = v[0].transpose(1, 0, 2)
        self._read[b] = stop

    def _draft(self) -> None:
        """Read the features of the last round's tokens, then run the blocks.

        D + 1 places are read for every request.  Those that the round did not commit lie at the root or
        behind it: they are hidden, and written again before they are not.
        """
        xp, head = self._xp, self._head
        tokens, starts, places = self._input
        row, steps = xp.arange(len(tokens))[:, None], xp.arange(head.depth + 1)
        at = starts[:, None] + steps
        for i, (k, v) in enumerate(head.context_rows(self._features[row, at], at)):
            self._keys[i][row, :, at] = k
            self._values[i][row, :, at] = v
        self._hidden = xp.arange(self._room) >= places[:, None]
        hidden = head.blocks(tokens, places[:, None] + steps, self._attend)
        self._best = best_rows(head.model.logits(hidden), self._width, head.model.library)

    def _attend(self, i: int, q: Array, own: Rows) -> Array:
        """Return what queries [b, D + 1, heads, E] read from the context and from their own block."""
        xp, room = self._xp, self._room
        batch, n, heads, size = q.shape
        q, k, v = (x.transpose(0, 2, 1, 3).reshape(-1, n, size) for x in (q, *own))
        q = q * np.float32(size**-0.5)
        keys, values = (x[i].reshape(-1, room, size) for x in (self._keys, self._values))
        scores = xp.empty((batch * heads, n, room + n), np.float32)
        products.product(q, keys, xp, transposed=True, out=scores[..., :room])
        products.product(q, k, xp, transposed=True, out=scores[..., room:])
        outside = scores.reshape(batch, heads, n, room + n)[..., :room]
        outside[...] = xp.where(self._hidden[:, None, None], np.float32(-np.inf), outside)
        weights = xp.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        read = products.product(weights[..., :room], values, xp)
        read += products.product(weights[..., room:], v, xp)
        return read.reshape(batch, heads, n, size).transpose(0, 2, 1, 3).reshape(batch, n, -1)
