"""Inputs for timing verify_attn on a GPU, their exact result, and torch's attention on them."""

from __future__ import annotations

from typing import Any, NamedTuple

import cupy
import numpy as np
import torch

from kdtree_cupy.kv_fp8 import dequantize_mla_rows, quantize_mla_rows
from kdtree_cupy.masks import pack_mask

SCALE = 192**-0.5


class Inputs(NamedTuple):
    """Arguments of one call and the visible pairs of nodes."""

    q: torch.Tensor
    cache: torch.Tensor
    tree_kv: torch.Tensor
    mask: torch.Tensor
    lengths: torch.Tensor
    visible: torch.Tensor


def make(batch: int, heads: int, nodes: int, prefix: int, seed: int = 0) -> Inputs:
    """Return random inputs on the device."""
    rng, generator = np.random.default_rng(seed), torch.Generator("cuda").manual_seed(seed)
    visible = np.zeros((batch, nodes, nodes), bool)
    for b in range(batch):
        for i in range(nodes):
            visible[b, i] = visible[b, rng.integers(i)] if i else False
            visible[b, i, i] = True
    normal = lambda *shape: torch.randn(shape, dtype=torch.bfloat16, device="cuda", generator=generator)  # noqa: E731
    words = torch.from_numpy(pack_mask(visible).view(np.int32)).cuda().view(torch.uint32)
    lengths = torch.full((batch,), prefix, dtype=torch.int32, device="cuda")
    q, cache = normal(batch, nodes, heads, 576), normal(batch, max(prefix, 1), 576)
    return Inputs(q, cache, normal(batch, nodes, 576), words, lengths, torch.from_numpy(visible).cuda())


KV_SCALE = {"bfloat16": None, "fp8 scaled": None, "fp8 plain": 5 / 448}
"""Kinds of KV rows, and the scale of the call; N(0, 1) numbers beyond 5 are saturated."""
ROW_BYTES = {"bfloat16": 1152, "fp8 scaled": 656, "fp8 plain": 576}


def rounds_rows(kind: str, shape: tuple[int, ...], splits: Any) -> bool:
    """Return whether numbers times their scales become bfloat16 rows, as docs/verify_attn.md says."""
    return kind == "fp8 scaled" and shape[1] * shape[2] > 32 and splits != "fixed"


def with_rows(x: Inputs, kind: str) -> tuple[Inputs, Inputs]:
    """Return the inputs with rows of another kind, and the same with the numbers of those rows in float32."""
    if kind == "bfloat16":
        return x, x
    scale = KV_SCALE[kind]
    rows = [quantize_mla_rows(cupy.from_dlpack(r.float()), kv_scale=scale) for r in (x.cache, x.tree_kv)]
    wide = [dequantize_mla_rows(r, kv_scale=scale) for r in rows]
    cupy.cuda.get_current_stream().synchronize()
    cache, tree_kv, *numbers = (torch.from_dlpack(r) for r in (*rows, *wide))
    return x._replace(cache=cache, tree_kv=tree_kv), x._replace(cache=numbers[0], tree_kv=numbers[1])


def exact(x: Inputs, b: int, prefix: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return out and lse of request ``b`` in float64."""
    keys = torch.cat([x.cache[b, :prefix], x.tree_kv[b]]).double()
    nodes, heads, _ = x.q[b].shape
    scores = (x.q[b].double().reshape(-1, 576) @ keys.T * SCALE).view(nodes, heads, -1)
    hidden = torch.cat([torch.zeros_like(x.visible[b])[:, :1].expand(nodes, prefix), ~x.visible[b]], 1)
    scores.masked_fill_(hidden[:, None], -torch.inf)
    return torch.softmax(scores, -1) @ keys[:, :512], torch.logsumexp(scores, -1)


def errors(x: Inputs, got: Any, prefix: int) -> tuple[float, float, float]:
    """Return the largest relative Frobenius error, 1 - cosine and lse error of the requests looked at."""
    worst = torch.zeros(3, dtype=torch.float64, device="cuda")
    batch = x.q.shape[0]
    for b in range(batch) if batch <= 8 else (0, batch // 2, batch - 1):
        out, lse = exact(x, b, prefix)
        mine = got.out[b].double()
        cosine = (mine * out).sum() / (mine.norm() * out.norm())
        now = torch.stack(
            [(mine - out).norm() / out.norm(), 1 - cosine, (got.lse[b].double() - lse).abs().max()]
        )
        worst = torch.where(now.isnan(), now, torch.maximum(worst, now))
    return tuple(worst.tolist())


def sdpa(x: Inputs, prefix: int) -> Any:
    """Return a call of torch's attention with a bool mask on the absorbed form."""
    batch, nodes, heads, _ = x.q.shape
    keys = torch.cat([x.cache[:, :prefix], x.tree_kv], 1)
    keys = keys[:, None].expand(batch, heads, -1, 576)
    mask = torch.cat([torch.ones(batch, nodes, prefix, dtype=torch.bool, device="cuda"), x.visible], 2)[
        :, None
    ]
    q = x.q.transpose(1, 2)
    return lambda: torch.nn.functional.scaled_dot_product_attention(
        q, keys, keys[..., :512], mask, scale=SCALE
    )
