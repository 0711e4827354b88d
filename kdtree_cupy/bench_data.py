"""Inputs of benchmarks, made where they are used: the same recipe with numpy and CuPy."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from .library.arrays import numpy_dtype

if TYPE_CHECKING:
    from .library import KernelLibrary

Array = Any
BOOSTED = 40
"""Likely tokens a position of the synthetic drafter."""


@dataclass(frozen=True)
class Place:
    """A backend's library, and where its arrays live."""

    library: KernelLibrary

    @property
    def backend(self) -> str:
        """Return "cuda", "host" or "numpy"."""
        return self.library.backend

    @cached_property
    def xp(self) -> Any:
        """The array module: CuPy on a device, else numpy."""
        if self.backend != "cuda":
            return np
        import cupy

        return cupy

    def normal(self, seed: int, shape: tuple[int, ...], dtype: str = "float32") -> Array:
        """Return N(0, 1) numbers, rounded to ``dtype``."""
        return self.rounded(self._random(seed).standard_normal(shape, dtype=np.float32), dtype)

    def _random(self, seed: int) -> Any:
        if self.backend == "cuda":
            return self.xp.random.Generator(self.xp.random.XORWOW(seed))
        return np.random.default_rng(seed)

    def peaked_logits(self, seed: int, batch: int, depth: int, vocab: int, dtype: str) -> Array:
        """Return draft logits [b, D, V] of a synthetic drafter that is surer of the near positions."""
        xp, boosted = self.xp, min(BOOSTED, vocab)
        random = self._random(seed)
        logits = random.standard_normal((batch, depth, vocab), dtype=np.float32)
        sharp = xp.linspace(10, 5, depth, dtype=np.float32)[:, None]
        logits[..., :boosted] += 6 + sharp * random.random((batch, depth, boosted), dtype=np.float32)
        return self.rounded(logits, dtype)

    def rounded(self, x: Array, dtype: str) -> Array:
        """Return float32 ``x`` in ``dtype``; bfloat16 by its bits, which needs no support by the library."""
        if dtype == "float32":
            return x
        if dtype != "bfloat16":
            return x.astype(numpy_dtype(dtype))
        bits = x.view(np.uint32)
        bits += np.uint32(0x8000)
        bits >>= np.uint32(16)
        return bits.astype(np.uint16).view(numpy_dtype("bfloat16"))

    def raw(self, x: Array) -> Array:
        """Return ``x``, bfloat16 as its bits: CuPy need not know that type."""
        return x.view(np.uint16) if x.dtype.name == "bfloat16" else x

    def wide(self, x: Array) -> Array:
        """Return ``x`` in float64."""
        if x.dtype.name == "bfloat16":
            bits = self.raw(x).astype(np.uint32) << np.uint32(16)
            x = bits.view(np.float32)
        return x.astype(np.float64)

    def bytes(self, seed: int, shape: tuple[int, ...]) -> Array:
        """Return bytes that look random, none of them 0: the top bits of multiples of a large odd number."""
        x = self.xp.arange(seed, seed + int(np.prod(shape)), dtype=np.uint32)
        x *= np.uint32(2_654_435_761)
        x >>= np.uint32(24)
        x |= np.uint32(1)
        return x.astype(np.uint8).reshape(shape)

    def array(self, host: np.ndarray) -> Array:
        """Return a host array where this place's arrays live."""
        return self.xp.asarray(host)

    def host(self, array: Array) -> np.ndarray:
        """Return an array on the host (waits for the device)."""
        return array.get() if hasattr(array, "get") else np.asarray(array)

    def wait(self) -> None:
        """Wait for the device."""
        if self.backend == "cuda":
            self.xp.cuda.get_current_stream().synchronize()

    def free(self) -> None:
        """Give unused device memory back, so that the next case has room."""
        if self.backend == "cuda":
            self.xp.get_default_memory_pool().free_all_blocks()


def random_trees(seed: int, batch: int, nodes: int) -> np.ndarray:
    """Return visible pairs bool [b, N, N] of random trees: every node's parent is any earlier node."""
    rng = np.random.default_rng(seed)
    visible = np.zeros((batch, nodes, nodes), bool)
    for b in range(batch):
        for i in range(nodes):
            if i:
                visible[b, i] = visible[b, rng.integers(i)]
            visible[b, i, i] = True
    return visible


def agreeing_targets(tree: Any, request: int, depth: int) -> dict[int, int]:
    """Return {node: token}: what the target must choose to walk to a node of about ``depth``, then leave.

    ``tree`` is a host :class:`~kdtree_cupy.tree.DraftTree`; the deepest node not beyond ``depth`` is taken.
    """
    depths = np.where(tree.depths[request] <= depth, tree.depths[request], -1)
    depths[int(tree.counts[request]) :] = -1
    node, wanted = int(depths.argmax()), {}
    while node > 0:
        parent = int(tree.parents[request, node])
        wanted[parent] = int(tree.tokens[request, node])
        node = parent
    return wanted


def checked_requests(batch: int) -> list[int]:
    """Return the requests that a check looks at: all of few, else first, middle and last."""
    return list(range(batch)) if batch <= 3 else [0, batch // 2, batch - 1]
