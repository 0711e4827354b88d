"""What the tests of the round share: buffers on a backend, and rounds on made-up logits that often agree."""

from __future__ import annotations

import numpy as np
from conftest import Backend, library_of

from kdtree_cupy.round import decode_round
from kdtree_cupy.round_buffers import RoundBuffers, round_buffers
from kdtree_cupy.round_graph import capture

D, N, K, V, ROW, LAYERS = 4, 9, 6, 40, 6, 2


def make(backend, batch, *, rows=400, temperature=0.0, cost=None, **sizes) -> RoundBuffers:
    """Return buffers on a backend, with byte rows as KV."""
    xp = __import__("cupy") if backend.name == "cuda" else np
    depth, nodes, width, vocab = (
        sizes.get(key, value) for key, value in zip("DNKV", (D, N, K, V), strict=True)
    )
    caches = xp.zeros((LAYERS, batch, rows, ROW), np.uint8)
    tree_kv = xp.zeros((LAYERS, batch, nodes, ROW), np.uint8)
    return round_buffers(
        batch, depth, nodes, width, vocab, caches,
        tree_kv=tree_kv, temperature=temperature, cost=cost, xp=xp,
    )  # fmt: skip


def references() -> Backend:
    """Return the backend of the references."""
    return Backend("numpy", library_of("numpy"))


def put(target, value):
    target[...] = value if isinstance(target, np.ndarray) else type(target).__module__ and _cupy(value)


def _cupy(value):
    import cupy

    return cupy.asarray(value)


def get(array):
    return array.get() if hasattr(array, "get") else np.asarray(array)


def rounds(backend, steps, seed, *, batch=3, run=decode_round, idle=False, disturb=()):
    """Run ``steps`` rounds on made-up logits that often agree; return the state after each."""
    buffers, rng, states = make(backend, batch), np.random.default_rng(seed), []
    put(buffers.roots, np.arange(batch, dtype=np.int32))
    for step in range(steps):
        draft = rng.normal(size=(batch, D, V)).astype(np.float32) * 3
        favourites = np.argsort(-draft, axis=-1)[:, :, 0]
        budgets = rng.integers(-1 if idle else 0, N, batch).astype(np.int32)
        target = rng.normal(size=(batch, N, V)).astype(np.float32)
        kv = rng.integers(1, 255, (LAYERS, batch, N, ROW)).astype(np.uint8)

        other = np.random.default_rng(1000 + step)
        for r in disturb:
            draft[r], target[r] = other.normal(size=(D, V)), other.normal(size=(N, V))
            budgets[r], kv[:, r] = other.integers(-1, N), other.integers(1, 255, (LAYERS, N, ROW))

        def model(b, target=target, favourites=favourites, kv=kv, step=step):
            logits = target.copy()
            for r in range(batch):  # agree with the drafter's first choices down to a depth
                for i, depth in enumerate(get(b.built.tree.depths)[r]):
                    if depth < D and (step + r) % 3:
                        logits[r, i, favourites[r, depth]] = 20
            put(b.target_logits, logits)
            put(b.tree_kv, kv)

        put(buffers.draft_logits, draft)
        put(buffers.budgets, budgets)
        run(buffers, model, library=backend.library)
        states.append({
            "roots": get(buffers.roots).copy(), "lengths": get(buffers.lengths).copy(),
            "path": get(buffers.accepted.path).copy(), "caches": get(buffers.caches).copy(),
            "tokens": get(buffers.built.tree.tokens).copy(), "mask": get(buffers.built.mask).copy(),
            "status": get(buffers.committed.status).copy(),
        })  # fmt: skip
    return states


def results(buffers: RoundBuffers) -> dict:
    """Return everything that a round leaves behind, on the host."""
    tree = buffers.built.tree
    found = {
        name: getattr(tree, name) for name in ("tokens", "parents", "depths", "ranks", "scores", "counts")
    }
    found |= {"mask": buffers.built.mask, "positions": buffers.built.positions, "caches": buffers.caches}
    found |= {"targets": buffers.targets.tokens, "path": buffers.accepted.path}
    found |= {"path_length": buffers.accepted.path_length, "roots": buffers.roots, "lengths": buffers.lengths}
    found |= {"status": buffers.committed.status}
    return {name: get(array).copy() for name, array in found.items()}


class Lockstep:
    """A round on a backend beside the same round of the references, fed the same numbers.

    The target model is the reference's: its logits are made from the reference's tree and written into both
    buffers before the round, so that on a device the round is one captured graph with nothing to call.
    """

    def __init__(self, backend, batch, *, seed=0, poison=False, agree=0.8, **options):
        reference = references()
        self.ours, self.wanted = (make(one, batch, **options) for one in (backend, reference))
        self.libraries = backend.library, reference.library
        self.rng, self.poison, self.agree = np.random.default_rng(seed), poison, agree
        self.batch, self.nodes = batch, self.ours.num_nodes
        self.depth, self.vocab = self.ours.draft_logits.shape[1:]
        on_device = backend.name == "cuda"
        self.graph = capture(self.ours, lambda b: None, library=backend.library) if on_device else None

    def set(self, name, value):
        """Write into an input of both."""
        for buffers in (self.ours, self.wanted):
            put(getattr(buffers, name), value)

    def step(self, budgets):
        """Run one round on both and assert that they agree in everything; return what they left."""
        self.set("draft_logits", (3 * self.rng.normal(size=self.ours.draft_logits.shape)).astype(np.float32))
        self.set("budgets", np.asarray(budgets, np.int32))
        kv = self.rng.integers(1, 255, get(self.ours.tree_kv).shape).astype(np.uint8)
        self.set("tree_kv", kv)
        decode_round(self.wanted, self._model, library=self.libraries[1])
        put(self.ours.target_logits, self.wanted.target_logits)
        if self.poison:
            for array in written(self.ours):
                array.fill(77)
        if self.graph is None:
            decode_round(self.ours, lambda b: None, library=self.libraries[0])
        else:
            self.graph.launch()
        got, want = results(self.ours), results(self.wanted)
        for name in want:
            if name == "scores":  # sums of each backend's own log-probs, which may differ in their last bits
                np.testing.assert_allclose(got[name], want[name], rtol=0, atol=2e-5, err_msg=name)
            else:
                np.testing.assert_array_equal(got[name], want[name], err_msg=name)
        return got

    def _model(self, b):
        logits = self.rng.normal(size=b.target_logits.shape).astype(np.float32)
        favourites = b.top.ids[:, :, 0]
        for r in range(self.batch):
            for i in range(max(0, int(b.built.tree.counts[r]))):
                depth = b.built.tree.depths[r, i]
                if depth < self.depth and self.rng.random() < self.agree:
                    logits[r, i, favourites[r, depth]] = 20
        put(b.target_logits, logits)


def written(buffers: RoundBuffers):
    """Return the arrays that a round writes and must not read before: all results but roots and lengths."""
    tree = buffers.built.tree
    arrays = [getattr(tree, name) for name in tree.__dataclass_fields__]
    arrays += [*buffers.top, buffers.built.mask, buffers.built.positions, *buffers.targets]
    return [*arrays, buffers.accepted.path, buffers.accepted.path_length, buffers.accepted.status,
            buffers.committed.status]  # fmt: skip
