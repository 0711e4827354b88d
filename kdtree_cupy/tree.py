"""The draft tree: a frozen record of primary data, one row per request."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from .limits import describe_status

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    Array = Any


@dataclass(frozen=True, repr=False, eq=False)
class DraftTree:
    """Draft trees of a batch, nodes in best-first order; the root is node 0.

    Only primary data is kept: masks, positions and linked lists are derived on request
    (:mod:`kdtree_cupy.masks`).  Arrays may live on the device; every method that reads them says so.

    Parameters
    ----------
    tokens : int32 [b, N]
        Token of each node; ``tokens[:, 0]`` is the root, the last committed token.
    parents : int32 [b, N]
        Index of the parent, ``parents[i] < i``; -1 for the root and for padding.
    depths : int32 [b, N]
        0 for the root, 1..D for drafted tokens.
    ranks : int32 [b, N]
        0-based index of the token in its position's row; -1 for the root and for padding.
    scores : float64 [b, N]
        Sum of the float32 log-probs from the root to the node; 0 for the root, -inf for padding.
    counts : int32 [b]
        Real nodes, root included; 0 marks an idle slot.
    status : int32 [b]
        Status word (:mod:`kdtree_cupy.limits`); 0 means no fault.

    Notes
    -----
    Slots ``counts[b]..N-1`` are padding: token 0, parent -1, depth 0, rank -1, score -inf.  Token 0 is a
    legal token, so padding is recognised by ``counts`` only.

    Examples
    --------
    >>> import numpy as np, kdtree_cupy as kd
    >>> lp = np.log(np.float32([[[.6, .3], [.5, .4]]]))
    >>> tree, mask, positions = kd.tree_build(np.int32([[[7, 8], [9, 5]]]), lp, [1], budget=3)
    >>> tree.parents[0].tolist(), tree.tokens[0].tolist()
    ([-1, 0, 1, 0], [1, 7, 9, 8])
    """

    tokens: Array
    parents: Array
    depths: Array
    ranks: Array
    scores: Array
    counts: Array
    status: Array

    @property
    def batch(self) -> int:
        """Number of requests b."""
        return int(self.tokens.shape[0])

    @property
    def num_nodes(self) -> int:
        """Number of slots N per request, padding included."""
        return int(self.tokens.shape[1])

    def to_numpy(self) -> DraftTree:
        """Return the same record with numpy arrays (waits for the device; no copy for numpy arrays)."""
        return DraftTree(**{f.name: _to_numpy(getattr(self, f.name)) for f in fields(self)})

    def __getitem__(self, request: int) -> DraftTree:
        """Return request ``request`` alone, as a batch of one (views, no copy)."""
        b = range(self.batch)[request]
        return DraftTree(**{f.name: getattr(self, f.name)[b : b + 1] for f in fields(self)})

    def __len__(self) -> int:
        return self.batch

    def __repr__(self) -> str:
        kind = type(self.tokens).__module__.split(".")[0]
        if kind != "numpy":
            return f"DraftTree(batch={self.batch}, num_nodes={self.num_nodes}, arrays on {kind})"
        counts = np.asarray(self.counts)
        shown = ", ".join(map(str, counts[:8])) + (", ..." if counts.size > 8 else "")
        deepest = int(np.max(self.depths, initial=0))
        faults = int(np.count_nonzero(self.status))
        note = f", {faults} with faults" if faults else ""
        size = f"batch={self.batch}, num_nodes={self.num_nodes}"
        return f"DraftTree({size}, counts=[{shown}], deepest={deepest}{note})"

    def _repr_html_(self) -> str:
        from .tree_svg import tree_html  # waits for the device

        return tree_html(self)

    def check(self) -> DraftTree:
        """Raise ``ValueError`` at the first broken invariant, naming array and index; return self.

        Waits for the device.  Checks shapes, dtypes, parents before children, depths, scores along
        edges, sibling ranks, root and padding conventions, and that no status word is set.
        """
        t = self.to_numpy()
        _check_shapes(t)
        for b in range(t.batch):
            if t.status[b]:
                raise ValueError(f"status[{b}] = {int(t.status[b])}: {describe_status(int(t.status[b]))}")
            _check_request(t, b)
        return self

    def paths(self, request: int = 0) -> list[tuple[int, ...]]:
        """Return the rank tuple of every real node (waits for the device); the root's is ``()``."""
        t = self.to_numpy()
        out: list[tuple[int, ...]] = []
        for i in range(int(t.counts[request])):
            parent = int(t.parents[request, i])
            out.append(() if parent < 0 else (*out[parent], int(t.ranks[request, i])))
        return out

    def draw(self, ax: Axes | None = None, request: int = 0, **options: Any) -> Axes:
        """Draw one request to a matplotlib Axes; options as :func:`kdtree_cupy.tree_draw.draw_tree`."""
        from .tree_draw import draw_tree

        return draw_tree(self, ax, request=request, **options)

    def to_text(self, request: int = 0, **options: Any) -> str:
        """Return a drawing for a terminal; options as :func:`kdtree_cupy.tree_draw.tree_text`."""
        from .tree_draw import tree_text

        return tree_text(self, request=request, **options)


def _to_numpy(array: Array) -> np.ndarray:
    if isinstance(array, np.ndarray):
        return array
    if hasattr(array, "get"):  # CuPy
        return array.get()
    if hasattr(array, "detach"):  # torch
        return array.detach().cpu().numpy()
    return np.asarray(array)


_DTYPES = dict.fromkeys(("tokens", "parents", "depths", "ranks", "counts", "status"), np.int32)
_DTYPES["scores"] = np.float64


def _check_shapes(t: DraftTree) -> None:
    if t.tokens.ndim != 2:
        raise ValueError(f"tokens: got shape {t.tokens.shape}, wanted [batch, nodes]")
    for name, dtype in _DTYPES.items():
        array = getattr(t, name)
        wanted = (t.batch,) if name in ("counts", "status") else (t.batch, t.num_nodes)
        if array.shape != wanted:
            raise ValueError(f"{name}: got shape {array.shape}, wanted {wanted}")
        if array.dtype != dtype:
            raise ValueError(f"{name}: got dtype {array.dtype}, wanted {np.dtype(dtype)}")


def _first(bad: np.ndarray) -> int:
    return int(np.flatnonzero(bad)[0])


def _check_request(t: DraftTree, b: int) -> None:
    n = int(t.counts[b])
    if not 0 <= n <= t.num_nodes:
        raise ValueError(f"counts[{b}] = {n}, wanted 0..{t.num_nodes}")
    parents, depths, scores, ranks = t.parents[b], t.depths[b], t.scores[b], t.ranks[b]
    if n:
        root = (int(parents[0]), int(depths[0]), int(ranks[0]), float(scores[0]))
        if root != (-1, 0, -1, 0.0):
            raise ValueError(f"node [{b}, 0]: parent, depth, rank, score = {root}, wanted (-1, 0, -1, 0.0)")
        order = np.arange(1, n)
        p = parents[1:n]
        bad = (p < 0) | (p >= order)
        if bad.any():
            i = _first(bad) + 1
            raise ValueError(f"parents[{b}, {i}] = {int(parents[i])}, wanted 0..{i - 1}")
        bad = depths[1:n] != depths[p] + 1
        if bad.any():
            i = _first(bad) + 1
            raise ValueError(f"depths[{b}, {i}] = {int(depths[i])}, wanted {int(depths[parents[i]]) + 1}")
        bad = ~(np.isfinite(scores[1:n]) & (scores[1:n] <= scores[p]))
        if bad.any():
            i = _first(bad) + 1
            raise ValueError(
                f"scores[{b}, {i}] = {scores[i]}, wanted finite and <= its parent's {scores[parents[i]]}"
            )
        bad = ranks[1:n] < 0
        if bad.any():
            raise ValueError(f"ranks[{b}, {_first(bad) + 1}] < 0")
        keys = p.astype(np.int64) * (int(ranks.max()) + 1) + ranks[1:n]
        _, where = np.unique(keys, return_index=True)
        if where.size != n - 1:
            i = _first(~np.isin(np.arange(n - 1), where)) + 1
            raise ValueError(f"node [{b}, {i}] repeats rank {int(ranks[i])} under parent {int(parents[i])}")
    pad = slice(n, None)
    clean = (
        (t.tokens[b, pad] == 0)
        & (parents[pad] == -1)
        & (depths[pad] == 0)
        & (ranks[pad] == -1)
        & (scores[pad] == -np.inf)
    )
    if not clean.all():
        raise ValueError(
            f"padding slot [{b}, {n + _first(~clean)}] is not token 0, parent -1, depth 0, rank -1, -inf"
        )
