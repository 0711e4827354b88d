"""The state of a batch while it is decoded, and one round of it: draft, build, verify, accept, commit."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..kv_commit import kv_commit
from ..limits import MAX_WIDTH
from ..masks import pack_mask
from ..target_token import target_token
from ..tree import DraftTree
from ..tree_accept import tree_accept
from ..tree_build import tree_build
from .context import Context, Drafter, check_rows, depth_of
from .model import Model
from .rounds import Round, Settings

Array = Any
CHUNK = 256
"""Most prompt tokens of one pass."""


class Session:
    """A batch of requests under way.

    Parameters
    ----------
    model : Model
    prompts : list of int32 arrays
    settings : Settings
    drafter : callable or None
        None: every tree is the root alone.
    """

    def __init__(
        self, model: Model, prompts: list[np.ndarray], settings: Settings, drafter: Drafter | None
    ) -> None:
        self.model, self.settings, self.drafter = model, settings, drafter
        self.depth = depth_of(drafter) if drafter else 1
        self.layers = tuple(getattr(drafter, "features", ()))
        batch = len(prompts)
        self._prompt = np.array([prompt.size for prompt in prompts])
        room = int(self._prompt.max()) + settings.max_new + self.depth + 2
        self.tokens = np.zeros((batch, room), np.int32)
        for b, prompt in enumerate(prompts):
            self.tokens[b, : prompt.size] = prompt
        self.sizes = self._prompt.copy()  # committed tokens, roots included
        self.lengths = np.zeros(batch, np.int32)  # rows in the cache: one less, once the prompt is in
        self.cache = model.new_cache(batch, room, page_size=settings.page_size)
        self._features: Array | None = None
        self._memory: list[dict[str, Any]] = [{} for _ in prompts]
        self.ended = np.zeros(batch, bool)
        self.uniforms = np.zeros((batch, settings.max_new + self.depth + 2), np.float32)
        if settings.temperature > 0:
            for b in range(batch):
                generator = np.random.default_rng(settings.seeds[b])
                self.uniforms[b] = generator.random(self.uniforms.shape[1], dtype=np.float32)
        self.rounds = 0

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
            chosen = self._choose(hidden[:, -1:], np.full((1, 1), size - 1), slice(b, b + 1))
            token = int(_host(chosen)[0, 0])
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
            self.lengths[b : b + 1],
            features=self.layers,
        )
        path = xp.arange(n, dtype=np.int32)[None]
        self._commit(view, path, counts, done.rows)
        self._keep_features(b, start, done.features, np.arange(n), 0)
        self.lengths[b] = stop
        return done.hidden

    def round(self) -> list[Round]:
        """Run one round of all live requests and return what each added."""
        self.rounds += 1
        model, xp, live = self.model, self.model.xp, np.flatnonzero(~self.ended)
        ids, logprobs = self._draft(live)
        budgets = np.where(self.ended, -1, self.settings.nodes).astype(np.int32)
        roots = self.tokens[np.arange(len(self.sizes)), self.sizes - 1]
        tree, mask, positions = tree_build(
            xp.asarray(ids), xp.asarray(logprobs), xp.asarray(roots), xp.asarray(budgets),
            lengths=self.cache.lengths, num_nodes=self.settings.nodes + 1,
            max_rank=1 if self.settings.mode == "chain" else None, library=model.library,
        )  # fmt: skip
        done = model.forward(
            tree.tokens, positions, mask, tree.counts, self.cache, self.lengths, features=self.layers
        )
        targets = self._choose(done.hidden, positions, slice(None))
        accepted = tree_accept(tree, targets, max_depth=self.depth, library=model.library)
        for b in live:
            self.cache.reserve(b, int(self.lengths[b]) + self.depth + 1)
        self._commit(self.cache, accepted.path, accepted.path_length, done.rows)
        path, size, following = map(_host, (accepted.path, accepted.path_length, accepted.next_token))
        trees = tree.to_numpy()
        return [
            self._finish(int(b), trees, path[b, : size[b]], int(following[b]), done.features) for b in live
        ]

    def _draft(self, live: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return ids and log-probs [b, D, K]; rows of ended requests are not looked at."""
        width = max(1, min(self.settings.nodes, self.model.vocab_size, MAX_WIDTH))
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
        return self._features

    def context(self, b: int) -> Context:
        """Return what the drafter may know of request ``b``."""
        known = None if self._features is None else self._features[b, : self.sizes[b] - 1]
        return Context(self.tokens[b, : self.sizes[b]], known, self._memory[b])

    def _choose(self, hidden: Array, positions: Array, rows: slice) -> Array:
        """Return the target's token after each node, int32 [b, n]."""
        settings, uniforms, xp = self.settings, None, self.model.xp
        if settings.temperature > 0:  # the draw for response place j uses uniform j, whatever tree it is in
            place = _host(positions) + 1 - self._prompt[rows, None]
            place = np.clip(place, 0, self.uniforms.shape[1] - 1)
            uniforms = xp.asarray(np.take_along_axis(self.uniforms[rows], place, axis=1))
        return target_token(
            self.model.logits(hidden), temperature=settings.temperature, top_p=settings.top_p,
            uniforms=uniforms, library=self.model.library,
        ).tokens  # fmt: skip

    def _commit(self, cache: Any, path: Array, path_length: Array, rows: list[Array]) -> None:
        kv_commit(
            cache.layers, path, path_length, cache.lengths, tree_kv=rows, page_table=cache.page_table,
            out=(cache.lengths, self.model.xp.zeros(len(path), np.int32)), library=self.model.library,
        )  # fmt: skip

    def _keep_features(self, b: int, start: int, found: Array | None, path: np.ndarray, row: int) -> None:
        if found is None:
            return
        if self._features is None:
            shape = (*self.tokens.shape, found.shape[-1])
            self._features = self.model.xp.zeros(shape, np.float32)
        self._features[b, start : start + path.size] = found[row, self.model.xp.asarray(path)]

    def _finish(
        self, b: int, trees: DraftTree, path: np.ndarray, following: int, features: Array | None
    ) -> Round:
        """Add a round's tokens to request ``b`` and return its record."""
        if following < 0:
            raise ValueError(f"request {b}: logits are not finite at response token {self._written(b)}")
        self._keep_features(b, int(self.lengths[b]), features, path, b)
        self.lengths[b] += path.size
        root = self._written(b) - 1
        drafts = trees.tokens[b, path[1:]].tolist()
        added = self._add(b, [*drafts, following])
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


def _host(array: Array) -> np.ndarray:
    return array.get() if hasattr(array, "get") else array
