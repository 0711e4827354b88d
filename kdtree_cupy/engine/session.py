"""The state of a batch while it is decoded, and one round of it: draft, build, verify, accept, commit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..limits import MAX_WIDTH
from ..masks import pack_mask
from ..tree import DraftTree
from .context import Context, Drafter, check_rows, depth_of
from .model import Model
from .place import Place
from .rounds import Round, Settings
from .step import Step, choose, commit, host

Array = Any
CHUNK = 256
"""Most prompt tokens of one pass."""
ROOM = 64
"""Texts get room in units of this many tokens, so that batches can take each other's places."""


class Session:
    """A batch of requests under way.

    Parameters
    ----------
    model : Model
    prompts : list of int32 arrays
    settings : Settings
    drafter : callable or None
        None: every tree is the root alone.
    clock : callable, optional
        Called with the name of each part of a round as it ends (``draft``, those of
        :data:`kdtree_cupy.engine.step.PARTS`, ``host``); it may wait for the device and read the time.

    Attributes
    ----------
    keep_logits : callable or None
        Called with a request and the logits [n, V] that chose the tokens a round adds to it.
    """

    def __init__(
        self,
        model: Model,
        prompts: list[np.ndarray],
        settings: Settings,
        drafter: Drafter | None,
        *,
        clock: Callable[[str], object] | None = None,
    ) -> None:
        self.model, self.settings, self.drafter = model, settings, drafter
        self.depth = depth_of(drafter) if drafter else 1
        self.layers = tuple(getattr(drafter, "features", ()))
        batch = len(prompts)
        self._prompt = np.array([prompt.size for prompt in prompts])
        room = -(-(int(self._prompt.max()) + settings.max_new + self.depth + 2) // ROOM) * ROOM
        self.tokens = np.zeros((batch, room), np.int32)
        for b, prompt in enumerate(prompts):
            self.tokens[b, : prompt.size] = prompt
        self.sizes = self._prompt.copy()  # committed tokens, roots included
        self.lengths = np.zeros(batch, np.int32)  # rows in the cache: one less, once the prompt is in
        self._memory: list[dict[str, Any]] = [{} for _ in prompts]
        self.ended = np.zeros(batch, bool)
        self.uniforms = np.zeros((batch, settings.max_new + self.depth + 2), np.float32)
        if settings.temperature > 0:
            for b in range(batch):
                generator = np.random.default_rng(settings.seeds[b])
                self.uniforms[b] = generator.random(self.uniforms.shape[1], dtype=np.float32)
        self.rounds = 0
        self.keep_logits: Callable[[int, Array], object] | None = None
        self._clock = clock or (lambda _: None)
        self._width = max(1, min(settings.nodes, model.vocab_size, MAX_WIDTH))
        model.reserve(room + CHUNK)
        self._key = (batch, room, id(drafter), *settings.shape)
        self._place = model.places.take(self._key) or Place(
            drafter,
            model.new_cache(batch, room, page_size=settings.page_size),
            batched=drafter.for_batch(batch, room) if hasattr(drafter, "for_batch") else None,
        )
        self.cache = self._place.cache
        if self._place.batched:
            self._place.batched.forget()
        if self._place.step:
            self._place.step.begin(self._prompt, self.uniforms, self._clock)

    @property
    def live(self) -> bool:
        """Whether a request goes on."""
        return not self.ended.all()

    def responses(self) -> list[np.ndarray]:
        """Return what was written so far, without the prompts."""
        sizes = zip(self.tokens, self._prompt, self.sizes, strict=True)
        return [row[start:stop].copy() for row, start, stop in sizes]

    def prefill(self) -> list[Round]:
        """Run every prompt, choose the first tokens and return them as rounds of index 0."""
        out = []
        for b, size in enumerate(self._prompt.tolist()):
            for start in range(0, size, CHUNK):
                hidden = self.prompt_pass(b, start, min(start + CHUNK, size))
            logits = self.model.logits(hidden[:, -1:])
            xp = self.model.xp
            places = (np.full((1, 1), value, np.int32) for value in (size - 1, size))
            chosen = choose(
                self.model,
                self.settings,
                logits,
                *map(xp.asarray, places),
                xp.asarray(self.uniforms[b : b + 1]),
            )
            token = int(host(chosen)[0, 0])
            if self.keep_logits:
                self.keep_logits(b, logits[0])
            self._add(b, [token])
            out.append(Round(0, b, -1, None, [], [token]))
        return out

    def prompt_pass(self, b: int, start: int, stop: int) -> Array:
        """Put prompt tokens ``start..stop`` of request ``b`` into the cache; return hidden [1, n, C]."""
        xp, n = self.model.xp, stop - start
        view = self.cache.view(b)
        self.cache.reserve(b, stop)
        mask = pack_mask(np.tri(n, dtype=bool)[None])
        counts = xp.full(1, n, np.int32)
        done = self.model.forward(
            xp.asarray(self.tokens[b : b + 1, start:stop]),
            xp.arange(start, stop, dtype=np.int32)[None],
            xp.asarray(mask),
            counts,
            view,
            features=self.layers,
        )
        path = xp.arange(n, dtype=np.int32)[None]
        commit(self.model, view, path, counts, done.rows)
        self._keep_features(done.features, [(b, start, 0, np.arange(n))])
        self.lengths[b] = stop
        return done.hidden

    def round(self) -> list[Round]:
        """Run one round of all live requests and return what each added."""
        self.rounds += 1
        live = np.flatnonzero(~self.ended)
        drafted = self._draft(live)
        self._clock("draft")
        budgets = np.where(self.ended, -1, self.settings.nodes).astype(np.int32)
        roots = self.tokens[np.arange(len(self.sizes)), self.sizes - 1]
        for b in live:
            self.cache.reserve(b, int(self.lengths[b]) + self.depth + 1)
        step = self._prepared()
        found = step(*drafted, roots, budgets, on_host=self._place.batched is None or not self.settings.nodes)
        paths = {int(b): found.path[b, : found.path_length[b]] for b in live}
        moved = [(b, int(self.lengths[b]), b, path) for b, path in paths.items()]
        self._keep_features(step.features, moved)
        out = [self._finish(b, found.trees, path, int(found.next_token[b])) for b, path in paths.items()]
        if not self.live:
            self.model.places.leave(self._key, self._place)
        self._clock("host")
        return out

    def _prepared(self) -> Step:
        """Return the device's share of a round, made when the first one runs."""
        place = self._place
        if place.step is None:
            place.step = Step(
                self.model, self.cache, self.settings, depth=self.depth, width=self._width,
                room=self.tokens.shape[1], features=self.layers,
            )  # fmt: skip
            place.step.begin(self._prompt, self.uniforms, self._clock)
        return place.step

    def _draft(self, live: np.ndarray) -> tuple[Array, Array]:
        """Return ids and log-probs [b, D, K]; rows of ended requests are not looked at."""
        width = self._width
        if self._place.batched and self.settings.nodes:
            return self._place.batched(self.tokens, self.sizes, self.features, live, width)
        shape = (len(self.sizes), self.depth, width)
        ids, logprobs = np.zeros(shape, np.int32), np.zeros(shape, np.float32)
        if self.drafter and self.settings.nodes:
            contexts = [self.context(int(b)) for b in live]
            drafted = self.drafter(contexts, width)
            ids[live], logprobs[live] = check_rows(*drafted, live.size, self.depth, width)
        return ids, logprobs

    @property
    def features(self) -> Array | None:
        """Features [b, n, F] of all tokens that went through the model, None if the drafter wants none."""
        return self._place.features

    def context(self, b: int) -> Context:
        """Return what the drafter may know of request ``b``."""
        known = None if self.features is None else self.features[b, : self.sizes[b] - 1]
        return Context(self.tokens[b, : self.sizes[b]], known, self._memory[b])

    def _keep_features(self, found: Array | None, moved: list[tuple[int, int, int, np.ndarray]]) -> None:
        """Keep features of accepted nodes: (request, first place, row of ``found``, nodes) each."""
        if found is None:
            return
        xp = self.model.xp
        if self.features is None:
            self._place.features = xp.zeros((*self.tokens.shape, found.shape[-1]), np.float32)
        index = [
            (np.full(nodes.size, b), start + np.arange(nodes.size), np.full(nodes.size, row), nodes)
            for b, start, row, nodes in moved
        ]
        b, place, row, node = xp.asarray(np.concatenate(index, axis=1, dtype=np.int64))
        self.features[b, place] = found[row, node]

    def _finish(self, b: int, trees: DraftTree, path: np.ndarray, following: int) -> Round:
        """Add a round's tokens to request ``b`` and return its record."""
        if following < 0:
            raise ValueError(f"request {b}: logits are not finite at response token {self._written(b)}")
        self.lengths[b] += path.size
        root = self._written(b) - 1
        drafts = trees.tokens[b, path[1:]].tolist()
        added = self._add(b, [*drafts, following])
        if self.keep_logits:
            self.keep_logits(b, self._prepared().logits[b, self.model.xp.asarray(path[: len(added)])])
        return Round(self.rounds, b, root, trees[b], path.tolist(), added)

    def _written(self, b: int) -> int:
        return int(self.sizes[b] - self._prompt[b])

    def _add(self, b: int, tokens: list[int]) -> list[int]:
        """Append tokens up to a stop token or ``max_new``; return those appended."""
        if -1 in tokens:
            raise ValueError(f"request {b}: logits are not finite")
        kept = tokens[: self.settings.max_new - self._written(b)]
        stops = [i for i, token in enumerate(kept) if token in self.settings.stop_tokens]
        if stops:
            kept = kept[: stops[0] + 1]
        self.tokens[b, self.sizes[b] : self.sizes[b] + len(kept)] = kept
        self.sizes[b] += len(kept)
        if stops or self._written(b) >= self.settings.max_new:
            self.ended[b] = True
            self.cache.release(b)
            self.lengths[b] = 0
        return kept
