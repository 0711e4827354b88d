"""Inputs of bench_stages.py and what their results must be."""

from __future__ import annotations

from typing import Any

import torch
from torch_graph import time_graph

VOCAB, DEPTH, L2 = 163_840, 15, 120e6


def copy_bandwidth() -> float:
    """Return TB/s of a large elementwise kernel, read and written."""
    big = torch.zeros(2**29, dtype=torch.float64, device="cuda")
    copy = torch.empty_like(big)
    return 2 * 2**32 / time_graph([lambda: torch.neg(big, out=copy)])["us"] / 1e6


def copies_of(array: torch.Tensor, cold: bool) -> list[torch.Tensor]:
    """Return the array alone, or with enough copies to exceed the L2 cache."""
    size = array.numel() * array.element_size()
    return [array, *(array.clone() for _ in range(int(L2 / size) if cold else 0))]


def logits_of(rows: tuple[int, int], scale: float = 1.0, dtype: str = "bfloat16") -> torch.Tensor:
    """Return normal logits [*rows, VOCAB]."""
    generator = torch.Generator("cuda").manual_seed(0)
    normal = torch.randn(*rows, VOCAB, device="cuda", generator=generator)
    return (normal * scale).to(getattr(torch, dtype))


def some_rows(array: torch.Tensor, most: int = 40) -> torch.Tensor:
    """Return up to ``most`` row numbers of [b, N, ...], spread evenly."""
    rows = array.shape[0] * array.shape[1]
    return torch.linspace(0, rows - 1, min(rows, most), device="cuda").long()


def topk_is_right(x: torch.Tensor, got: Any) -> bool:
    """Compare some rows with a stable sort and float64."""
    rows = some_rows(x)
    own, k = x.flatten(0, 1)[rows], got.ids.shape[2]
    ids = torch.sort(own.float(), dim=-1, descending=True, stable=True).indices[:, :k]
    wanted = torch.log_softmax(own.double(), -1).gather(1, ids)
    error = (got.logprobs.flatten(0, 1)[rows].double() - wanted).abs() / wanted.abs().clamp(min=1)
    return bool((got.ids.flatten(0, 1)[rows] == ids).all()) and float(error.max()) <= 2.0**-21


def tokens_are_right(x: torch.Tensor, got: Any, temperature: float, top_p: float, u: torch.Tensor) -> bool:
    """Compare some rows with float64; draws within 1e-6 of an edge between ids may differ."""
    rows = some_rows(x)
    own, tokens = x.flatten(0, 1)[rows].double(), got.tokens.flatten()[rows].long()
    if temperature == 0:
        ids = torch.arange(VOCAB, device="cuda")
        return bool((tokens == torch.where(own == own.amax(-1, keepdim=True), ids, VOCAB).amin(-1)).all())
    mass = torch.softmax(own / temperature, -1)
    if top_p < 1:
        order = torch.sort(own, dim=-1, descending=True, stable=True).indices
        ordered = mass.gather(1, order)
        kept = torch.where(ordered.cumsum(-1) - ordered < top_p, ordered, 0.0)
        mass = torch.zeros_like(mass).scatter(1, order, kept)
    ends = mass.cumsum(-1)
    target = (u.flatten()[rows].double() * ends[:, -1])[:, None]
    end, own_mass = ends.gather(1, tokens[:, None]), mass.gather(1, tokens[:, None])
    slack = 1e-6 * ends[:, -1:]
    return bool(((end > target - slack) & (end - own_mass <= target + slack) & (own_mass > 0)).all())
