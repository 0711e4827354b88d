"""Train a block drafter with torch: next-token losses at D places after random roots of texts.

The target's embedding matrix is its output head and stays frozen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..safetensors_file import write_safetensors
from .model import Model
from .torch_head import Recipe, forward

Tensor = Any
_CACHE_BYTES = 2 << 30
"""Features kept between steps; those of further texts are computed again."""


class Trained(NamedTuple):
    """``weights`` by name, float32; ``settings``, the metadata of the file; ``losses``, one a step."""

    weights: dict[str, np.ndarray]
    settings: dict[str, str]
    losses: list[float]


def shapes(recipe: Recipe, hidden: int) -> dict[str, tuple[int, ...]]:
    """Return the shape of every weight."""
    d, wide = hidden, 3 * hidden
    out: dict[str, tuple[int, ...]] = {
        "fc": (d, d * len(recipe.features)), "fn": (d,), "inp": (d, d), "norm": (d,), "out": (d, d),
    }  # fmt: skip
    one = {
        "q": (d, d),
        "k": (d, d),
        "v": (d, d),
        "o": (d, d),
        "g": (wide, d),
        "u": (wide, d),
        "dn": (d, wide),
    }
    one |= {"n1": (d,), "nc": (d,), "n2": (d,), "qn": (d // recipe.heads,), "kn": (d // recipe.heads,)}
    for i in range(recipe.layers):
        out |= {f"layers.{i}.{name}": shape for name, shape in one.items()}
    return {f"{name}.weight": shape for name, shape in out.items()} | {"mask": (d,)}


def train(
    model: Model,
    texts: Sequence[tuple[np.ndarray, int]],
    recipe: Recipe,
    *,
    device: str = "cpu",
    progress: Callable[[float], object] | None = None,
) -> Trained:
    """Train a drafter for ``model``.

    Parameters
    ----------
    model : Model
        The target.
    texts : sequence of (int32 [n], int)
        Texts, and the place of the first response token: roots are drawn from there on.
    recipe : Recipe
    device : str
        torch device, such as ``"cuda"``.
    progress : callable, optional
        Called with the loss of each step.

    Raises
    ------
    ValueError
        No text is long enough, or the recipe does not fit the model.
    ModuleNotFoundError
        torch is missing.
    """
    import torch

    hidden = model.config.hidden_size
    if hidden % recipe.heads or (hidden // recipe.heads) % 2:
        raise ValueError(f"heads: got {recipe.heads}, wanted a divisor of {hidden} that leaves an even size")
    usable = [(text, first) for text, first in texts if len(text) - first >= 2]
    if not usable:
        raise ValueError("texts: none has two response tokens")
    rng = np.random.default_rng(recipe.seed)
    weights = _start(recipe, hidden, rng, device)
    head = torch.as_tensor(_host(model.embedding).astype(np.float32), device=device)
    optimizer = torch.optim.AdamW(weights.values(), lr=recipe.learning_rate, weight_decay=0.01)
    rate = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, recipe.learning_rate, total_steps=recipe.steps + 1, pct_start=0.1
    )
    source = _Features(model, recipe.features)
    losses = []
    for _ in range(recipe.steps):
        index = int(rng.integers(len(usable)))
        text, first = usable[index]
        roots = rng.integers(first, len(text) - 1, recipe.roots)
        features = torch.as_tensor(source(index, text), device=device)
        loss = _loss(weights, recipe, head, features, torch.as_tensor(text, device=device).long(), roots)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights.values(), 1.0)
        optimizer.step()
        rate.step()
        losses.append(float(loss.detach()))
        if progress is not None:
            progress(losses[-1])
    settings = {
        "block": recipe.depth + 1, "d": hidden, "heads": recipe.heads, "layers": recipe.layers,
        "rope_base": 10000, "feature_layers": ",".join(map(str, recipe.features)),
    }  # fmt: skip
    found = {name: weight.detach().cpu().numpy() for name, weight in weights.items()}
    return Trained(found, {name: str(value) for name, value in settings.items()}, losses)


def save_head(path: str | Path, done: Trained) -> None:
    """Write a drafter as bfloat16, for :func:`kdtree_cupy.engine.block_head.load_block_head`."""
    import ml_dtypes

    arrays = {name: array.astype(ml_dtypes.bfloat16) for name, array in done.weights.items()}
    write_safetensors(path, arrays, done.settings)


class _Features:
    """The target's features of each text, kept as long as they fit."""

    def __init__(self, model: Model, layers: tuple[int, ...]) -> None:
        self._model, self._kept, self._bytes = model, {}, 0
        self.features = layers
        self.depth = 1

    def __call__(self, index: int, text: np.ndarray) -> np.ndarray:
        from ..record.engine import read_text

        if index in self._kept:
            return self._kept[index]
        _, found = read_text(self._model, np.asarray(text, np.int32), self)
        host = _host(found)[: len(text)]
        if self._bytes + host.nbytes <= _CACHE_BYTES:
            self._kept[index] = host
            self._bytes += host.nbytes
        return host


def _host(array: Any) -> np.ndarray:
    return array.get() if hasattr(array, "get") else array


def _start(recipe: Recipe, hidden: int, rng: np.random.Generator, device: str) -> dict[str, Tensor]:
    """Return first weights: norms 1, matrices of gain 1, what is added to the stream near 0."""
    import torch

    weights: Mapping[str, np.ndarray] = {
        name: np.ones(shape, np.float32)
        if len(shape) == 1 and name != "mask"
        else rng.standard_normal(shape).astype(np.float32) * np.float32(shape[-1] ** -0.5)
        for name, shape in shapes(recipe, hidden).items()
    }
    quiet = {name: 0.1 if name.endswith((".o.weight", ".dn.weight")) else 1.0 for name in weights}
    return {
        name: torch.tensor(array * np.float32(quiet[name]), device=device, requires_grad=True)
        for name, array in weights.items()
    }


def _loss(
    weights: Mapping[str, Tensor],
    recipe: Recipe,
    head: Tensor,
    features: Tensor,
    text: Tensor,
    roots: np.ndarray,
) -> Tensor:
    """Return the weighted mean of the cross-entropies at the D places after each root."""
    import torch

    logits = forward(weights, recipe, head, features, text, roots)
    places = torch.as_tensor(roots, device=text.device)[:, None] + torch.arange(
        1, recipe.depth + 1, device=text.device
    )
    inside = places < len(text)
    share = recipe.decay ** torch.arange(recipe.depth, device=text.device) * inside
    wanted = text[places.clamp(max=len(text) - 1)]
    # as rows: torch is several times slower with the vocabulary in the middle
    each = torch.nn.functional.cross_entropy(logits.flatten(0, 1), wanted.flatten(), reduction="none")
    return (each.view_as(wanted) * share).sum() / share.sum()
