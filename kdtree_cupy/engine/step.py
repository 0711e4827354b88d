"""The device's share of a round: build the trees, run the layers, choose tokens, accept and commit.

Four parts, each a CUDA graph where the model allows it: a round is one copy to the device, four launches and
one copy back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ..kv_commit import kv_commit
from ..target_token import target_token
from ..tree import DraftTree
from ..tree_accept import tree_accept
from ..tree_build import tree_build
from .cache import PagedCache
from .captured import Captured
from .model import Model
from .rounds import Settings

Array = Any
_TREE = ("scores", "tokens", "parents", "depths", "ranks", "counts", "status")
PARTS = ("build", "layers", "head", "accept_commit")


class Outcome(NamedTuple):
    """What a round decided, on the host: trees, paths [b, D+1], their lengths, and the next tokens [b]."""

    trees: DraftTree
    path: np.ndarray
    path_length: np.ndarray
    next_token: np.ndarray


class Step:
    """The device's share of the rounds of one batch.

    Parameters
    ----------
    model : Model
    cache : PagedCache
        Its arrays are used as they are.
    settings : Settings
    depth, width : int
        D and K of the drafter's rows.
    room : int
        Most positions of a request.
    features : tuple of int
        Layers whose outputs are wanted.

    Attributes
    ----------
    logits : float32 [b, N, V]
        Of the last round.
    features : float32 [b, N, F] or None
    """

    def __init__(
        self,
        model: Model,
        cache: PagedCache,
        settings: Settings,
        *,
        depth: int,
        width: int,
        room: int,
        features: tuple[int, ...],
    ) -> None:
        xp, batch = model.xp, len(cache.page_table)
        self._model, self._cache, self._settings, self._depth = model, cache, settings, depth
        self._layers, self._clock = features, None
        self._kept = model.reserve(room + depth + 2)
        shapes = ((batch, depth, width), (batch, depth, width), (batch,), (batch,))
        self._starts = np.cumsum([0, *(_aligned(shape) for shape in shapes)])
        self._input = xp.zeros(int(self._starts[-1]), np.int32)
        views = [
            self._input[at : at + int(np.prod(shape))].reshape(shape)
            for at, shape in zip(self._starts.tolist(), shapes, strict=False)
        ]
        self._ids, self._logprobs, self._roots, self._budgets = views
        self._logprobs = self._logprobs.view(np.float32)
        self._prompt = xp.zeros((batch, 1), np.int32)
        self._uniforms = xp.zeros((batch, settings.max_new + depth + 2), np.float32)
        parts = (self._build, self._run_layers, self._choose, self._accept)
        self._parts = [Captured(part, xp) if model.never_waits else part for part in parts]
        self.logits: Array | None = None
        self.features: Array | None = None

    def begin(self, prompt: np.ndarray, uniforms: np.ndarray, clock: Callable[[str], object] | None) -> None:
        """Begin with new texts.

        Parameters
        ----------
        prompt : int [b]
            Tokens of the prompts.
        uniforms : float32 [b, max_new + D + 2]
            Random numbers by place of the response; looked at above temperature 0.
        clock : callable or None
            Called with the name of each part when it has been launched.
        """
        xp, self._clock = self._model.xp, clock
        self._prompt[:] = xp.asarray(prompt.astype(np.int32))[:, None]
        self._uniforms[:] = xp.asarray(uniforms)

    def close(self) -> None:
        """Let go of the captured parts, which hold this object."""
        self._parts = []

    def __call__(
        self,
        ids: Array,
        logprobs: Array,
        roots: np.ndarray,
        budgets: np.ndarray,
        *,
        on_host: bool,
    ) -> Outcome:
        """Run a round and wait for it.

        Parameters
        ----------
        ids, logprobs : int32 and float32 [b, D, K]
        roots, budgets : int32 [b]
            On the host.
        on_host : bool
            The drafter's rows are on the host; False: they are where the model is.
        """
        packed, xp = np.zeros(int(self._starts[-1]), np.int32), self._model.xp
        given = {2: roots, 3: budgets} | ({0: ids, 1: logprobs} if on_host else {})
        for place, array in given.items():
            at = int(self._starts[place])
            packed[at : at + array.size] = array.ravel().view(np.int32)
        self._input[:] = xp.asarray(packed)
        if not on_host:
            self._ids[:], self._logprobs[:] = ids, logprobs
        for name, part in zip(PARTS, self._parts, strict=True):
            part()
            if self._clock:
                self._clock(name)
        return self._outcome(host(self._output))

    def _build(self) -> None:
        self._built = tree_build(
            self._ids, self._logprobs, self._roots, self._budgets, lengths=self._cache.lengths,
            num_nodes=self._settings.nodes + 1, max_rank=1 if self._settings.mode == "chain" else None,
            library=self._model.library,
        )  # fmt: skip

    def _run_layers(self) -> None:
        tree, mask, positions = self._built
        self._done = self._model.forward(
            tree.tokens, positions, mask, tree.counts, self._cache, features=self._layers
        )
        self.features = self._done.features

    def _choose(self) -> None:
        self.logits = self._model.logits(self._done.hidden)
        places = self._built.positions, self._prompt, self._uniforms
        self._targets = choose(self._model, self._settings, self.logits, *places)

    def _accept(self) -> None:
        tree, library = self._built.tree, self._model.library
        accepted = tree_accept(tree, self._targets, max_depth=self._depth, library=library)
        commit(self._model, self._cache, accepted.path, accepted.path_length, self._done.rows)
        # float64 scores come first: the host reads them where they lie
        result = [getattr(tree, name) for name in _TREE]
        result += [accepted.path, accepted.path_length, accepted.next_token]
        flat = [array.view(np.int32).ravel() for array in result]
        ends = np.cumsum([array.size for array in flat]).tolist()
        self._output = self._model.xp.empty(ends[-1], np.int32)
        for array, end in zip(flat, ends, strict=True):  # CuPy's concatenate may not be captured
            self._output[end - array.size : end] = array

    def _outcome(self, packed: np.ndarray) -> Outcome:
        batch, nodes = len(self._prompt), self._settings.nodes + 1
        columns = [2 * nodes, *[nodes] * 4, 1, 1, self._depth + 1, 1, 1]
        edges = np.cumsum([batch * count for count in columns])[:-1]
        parts = [part.reshape(batch, -1) for part in np.split(packed, edges)]
        parts[0] = parts[0].view(np.float64)
        flat = [part[:, 0] if count == 1 else part for part, count in zip(parts, columns, strict=True)]
        if nodes == 1:
            flat[1:5] = parts[1:5]
        return Outcome(DraftTree(**dict(zip(_TREE, flat[:7], strict=True))), *flat[7:])


def _aligned(shape: tuple[int, ...]) -> int:
    """Return the numbers of an array, rounded up so that the next one starts where vector loads may."""
    return -(-int(np.prod(shape)) // 64) * 64


def choose(
    model: Model, settings: Settings, logits: Array, positions: Array, prompt: Array, uniforms: Array
) -> Array:
    """Return the target's token after each node, int32 [b, n].

    Parameters
    ----------
    model, settings
    logits : float32 [b, n, V]
    positions : int32 [b, n]
    prompt : int32 [b, 1]
        Tokens of the prompts.
    uniforms : float32 [b, m]
        The draw for place j of a response uses number j, whatever tree the place is reached in.
    """
    drawn, xp = None, model.xp
    if settings.temperature > 0:
        place = xp.clip(positions + 1 - prompt, 0, uniforms.shape[1] - 1)
        drawn = xp.take_along_axis(uniforms, place, axis=1)
    return target_token(
        logits, temperature=settings.temperature, top_p=settings.top_p, uniforms=drawn, library=model.library
    ).tokens


def commit(model: Model, cache: PagedCache, path: Array, path_length: Array, rows: Array) -> None:
    """Move the nodes' rows of each path into the cache."""
    kv_commit(
        cache.layers, path, path_length, cache.lengths, tree_kv=rows, page_table=cache.page_table,
        out=(cache.lengths, model.xp.zeros(len(path), np.int32)), library=model.library,
    )  # fmt: skip


def host(array: Array) -> np.ndarray:
    """Return a numpy array; waits for the device."""
    return array.get() if hasattr(array, "get") else array
