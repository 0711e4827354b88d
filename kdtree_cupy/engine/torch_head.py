"""The block drafter in torch, for training: twin of :mod:`kdtree_cupy.engine.block_head`, with gradients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .block_head import EPS

Tensor = Any


@dataclass(frozen=True)
class Recipe:
    """How a drafter is made.

    Parameters
    ----------
    depth : int
        Positions D.
    layers, heads : int
        Of the drafter; heads must divide the target's hidden size.
    features : tuple of int
        Target layers whose outputs it reads.
    steps, roots : int
        Optimizer steps, and random roots of one text in each.
    learning_rate : float
        Largest one: a tenth of the steps rising, the rest falling as a cosine.
    decay : float
        Loss weight of each place relative to the one before.
    seed : int
    """

    depth: int = 15
    layers: int = 3
    heads: int = 9
    features: tuple[int, ...] = (1, 8, 15, 22, 28)
    steps: int = 2000
    roots: int = 32
    learning_rate: float = 1e-3
    decay: float = 0.9
    seed: int = 0


def norm(x: Tensor, weight: Tensor) -> Tensor:
    """Return ``x / rms(x) * weight`` along the last axis."""
    return x * (x * x).mean(-1, keepdim=True).add(EPS).rsqrt() * weight


def rotate(x: Tensor, positions: Tensor) -> Tensor:
    """Return ``x`` [..., heads, E] rotated by ``positions`` [...]; pairs are (i, i + E/2), base 10000."""
    import torch

    half = x.shape[-1] // 2
    steps = torch.arange(half, device=x.device, dtype=torch.float64)
    angles = positions[..., None, None].double() * 10000.0 ** (-steps / half)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    one, other = x[..., :half], x[..., half:]
    return torch.cat([one * cos - other * sin, other * cos + one * sin], dim=-1)


def attend(q: Tensor, known: tuple[Tensor, Tensor], own: tuple[Tensor, Tensor], seen: Tensor) -> Tensor:
    """Return what queries [m, n, heads, E] read from shared rows [c, heads, E] and own ones [m, n, heads, E].

    ``seen`` is bool [m, n, c + n].
    """
    import torch

    outside = torch.einsum("mnhe,che->mhnc", q, known[0])
    inside = torch.einsum("mnhe,mkhe->mhnk", q, own[0])
    scores = torch.cat([outside, inside], dim=-1) * q.shape[-1] ** -0.5
    weights = scores.masked_fill(~seen[:, None], float("-inf")).softmax(-1)
    count = known[0].shape[0]
    out = torch.einsum("mhnc,che->mnhe", weights[..., :count], known[1])
    out = out + torch.einsum("mhnk,mkhe->mnhe", weights[..., count:], own[1])
    return out.flatten(2)


def forward(
    weights: Mapping[str, Tensor],
    recipe: Recipe,
    head: Tensor,
    features: Tensor,
    text: Tensor,
    roots: np.ndarray,
) -> Tensor:
    """Return logits [roots, D, V]; the torch twin of ``BlockHead.draft``."""
    import torch

    count, size = int(roots.max()), head.shape[1] // recipe.heads
    at = torch.as_tensor(roots, device=text.device)
    positions = at[:, None] + torch.arange(recipe.depth + 1, device=text.device)
    places = torch.arange(count, device=text.device)
    context = norm(features[:count] @ weights["fc.weight"].T, weights["fn.weight"])
    first = head[text[at]] @ weights["inp.weight"].T
    x = torch.cat([first[:, None], weights["mask"].expand(len(at), recipe.depth, -1)], dim=1)
    seen = torch.cat(
        [(places < at[:, None])[:, None].expand(-1, recipe.depth + 1, -1),
         torch.ones(len(at), recipe.depth + 1, recipe.depth + 1, dtype=torch.bool, device=text.device)],
        dim=-1,
    )  # fmt: skip
    for i in range(recipe.layers):
        w = {
            name: weights[f"layers.{i}.{name}.weight"]
            for name in ["n1", "nc", "n2", "q", "k", "v", "o", "qn", "kn", "g", "u", "dn"]
        }
        y, known = norm(x, w["n1"]), norm(context, w["nc"])

        def split(rows: Tensor) -> Tensor:
            return rows.reshape(*rows.shape[:-1], recipe.heads, size)

        q = rotate(norm(split(y @ w["q"].T), w["qn"]), positions)
        own = rotate(norm(split(y @ w["k"].T), w["kn"]), positions)
        before = rotate(norm(split(known @ w["k"].T), w["kn"]), places)
        read = attend(q, (before, split(known @ w["v"].T)), (own, split(y @ w["v"].T)), seen)
        x = x + read @ w["o"].T
        y = norm(x, w["n2"])
        x = x + (torch.nn.functional.silu(y @ w["g"].T) * (y @ w["u"].T)) @ w["dn"].T
    return norm(x[:, 1:], weights["norm.weight"]) @ weights["out.weight"].T @ head.T
