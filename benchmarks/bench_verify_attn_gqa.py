"""verify_attn_gqa on a GPU: checked against float64 on the very input, then timed by CUDA graph replay.

Beside it, in the same run: torch's attention with the same mask as a bool tensor, keys and values of the
heads of a group repeated beforehand, untimed (its kernels that take a mask want as many KV heads as heads).
Inputs are N(0, 1) in bfloat16 with random trees, the same for every call: they stay in the L2 cache if they
fit.  Floors: operations over the rate of a large matrix product, bytes over the bandwidth of a copy.

    python benchmarks/bench_verify_attn_gqa.py --out benchmarks/results/verify_attn_gqa_h200.csv
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
import torch
from bench_verify_attn import BAR, write
from torch_graph import time_graph

import kdtree_cupy as kd
from kdtree_cupy.library import KernelLibrary
from kdtree_cupy.masks import pack_mask
from kdtree_cupy.timing import Ceilings, ceilings, machine

MODELS = {"qwen3-8b": (32, 8, 128), "smollm2-135m": (9, 3, 64), "llama-70b": (64, 8, 128)}
"""Heads, KV heads, numbers of a head."""
SHAPES = [
    *(("qwen3-8b", 1, n, p) for n in (1, 9, 17, 33, 65) for p in (512, 2048, 8192, 32768)),
    *(("qwen3-8b", b, n, p) for b, n, p in ((8, 33, 4096), (8, 65, 4096), (32, 17, 2048), (64, 1, 4096))),
    *(("smollm2-135m", b, n, p) for b, n, p in ((1, 33, 512), (1, 65, 2048), (1, 65, 8192), (16, 33, 2048))),
    *(("llama-70b", 1, n, p) for n, p in ((1, 8192), (17, 8192), (33, 2048), (65, 8192), (65, 32768))),
    *(("llama-70b", b, n, p) for b, n, p in ((8, 65, 8192), (32, 17, 4096))),
]
"""Model, requests, nodes, rows of the prefix."""


class Inputs(NamedTuple):
    """Arguments of one call, and the visible pairs of nodes."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    tree_k: torch.Tensor
    tree_v: torch.Tensor
    mask: torch.Tensor
    lengths: torch.Tensor
    visible: torch.Tensor


def make(batch: int, model: tuple[int, int, int], nodes: int, prefix: int) -> Inputs:
    """Return random inputs on the device."""
    heads, shared, size = model
    rng, generator = np.random.default_rng(0), torch.Generator("cuda").manual_seed(0)
    visible = np.zeros((batch, nodes, nodes), bool)
    for tree in visible:
        for i in range(nodes):
            if i:
                tree[i] = tree[rng.integers(i)]
            tree[i, i] = True
    normal = lambda *shape: torch.randn(shape, dtype=torch.bfloat16, device="cuda", generator=generator)  # noqa: E731
    words = torch.from_numpy(pack_mask(visible).view(np.int32)).cuda().view(torch.uint32)
    return Inputs(
        normal(batch, nodes, heads, size),
        normal(batch, prefix, shared, size),
        normal(batch, prefix, shared, size),
        normal(batch, nodes, shared, size),
        normal(batch, nodes, shared, size),
        words,
        torch.full((batch,), prefix, dtype=torch.int32, device="cuda"),
        torch.from_numpy(visible).cuda(),
    )


def call(x: Inputs, **options: Any) -> kd.Attention:
    """Run the stage."""
    return kd.verify_attn_gqa(*x[:7], scale=x.q.shape[-1] ** -0.5, **options)


def errors(x: Inputs, got: kd.Attention) -> tuple[float, float, float]:
    """Return the largest relative Frobenius error, 1 - cosine and lse error over some requests."""
    worst = np.zeros(3)
    batch, nodes, heads, size = x.q.shape
    shared, group = x.k.shape[2], heads // x.k.shape[2]
    for b in sorted({0, batch // 2, batch - 1}):
        hidden = torch.cat(
            [torch.zeros(nodes, x.k.shape[1], dtype=torch.bool, device="cuda"), ~x.visible[b]], 1
        )
        for head in range(shared):
            keys, values = (
                torch.cat([cache[b, :, head], tree[b, :, head]]).double()
                for cache, tree in ((x.k, x.tree_k), (x.v, x.tree_v))
            )
            own = slice(head * group, (head + 1) * group)
            scores = torch.einsum("nhd,md->hnm", x.q[b, :, own].double(), keys) * size**-0.5
            scores.masked_fill_(hidden, -torch.inf)
            out = (torch.softmax(scores, -1) @ values).transpose(0, 1)
            mine, lse = got.out[b, :, own].double(), torch.logsumexp(scores, -1).T
            cosine = (mine * out).sum() / (mine.norm() * out.norm())
            now = [
                (mine - out).norm() / out.norm(),
                1 - cosine,
                (got.lse[b, :, own].double() - lse).abs().max(),
            ]
            now = np.array([float(e) for e in now])
            worst = np.where(np.isnan(now), now, np.maximum(worst, now))
    return tuple(worst.tolist())


def sdpa(x: Inputs) -> Any:
    """Return a call of torch's attention with a bool mask, heads of a group repeated."""
    batch, nodes, heads, size = x.q.shape
    group = heads // x.k.shape[2]
    keys, values = (
        torch.cat(pair, 1).transpose(1, 2).repeat_interleave(group, 1).contiguous()
        for pair in ((x.k, x.tree_k), (x.v, x.tree_v))
    )
    shown = torch.ones(batch, nodes, x.k.shape[1], dtype=torch.bool, device="cuda")
    mask, q = torch.cat([shown, x.visible], 2)[:, None], x.q.transpose(1, 2).contiguous()
    return lambda: torch.nn.functional.scaled_dot_product_attention(q, keys, values, mask, scale=size**-0.5)


def base_row(name: str, batch: int, nodes: int, prefix: int, most: Ceilings) -> dict[str, Any]:
    """Return the columns that do not depend on who computes: shape and floor."""
    heads, shared, size = MODELS[name]
    flops, rows = 4 * batch * heads * nodes * (prefix + nodes) * size, batch * (prefix + nodes)
    moved = 4 * shared * size * rows + 4 * batch * heads * nodes * size
    floor = most.floor_us(moved, flops)
    sizes = {"b": batch, "H": heads, "Hkv": shared, "D": size, "q": nodes, "prefix": prefix}
    bound = "operations" if flops / most.flops_per_us > moved / most.bytes_per_us else "bytes"
    return (
        {"model": name} | sizes | {"dtype": "bfloat16", "floor_us": floor, "floor_is": bound, "flops": flops}
    )


def measure(x: Inputs, flops: int, library: KernelLibrary, splits: Any) -> dict[str, Any]:
    """Check, then time; the row has no times if it was wrong."""
    out = call(x, library=library, splits=splits)
    worst = errors(x, out)
    row = dict(zip(("frobenius", "one_minus_cosine", "lse_error"), worst, strict=True))
    if not all(error <= bar for error, bar in zip(worst, BAR, strict=True)):
        return row | {"right": False}
    found = time_graph([lambda: call(x, library=library, splits=splits, out=out)])
    return row | {"right": True, **found, "tflops": flops / found["us"] / 1e6}


def show(row: dict[str, Any]) -> None:
    """Print one line."""
    names = (
        "model",
        "b",
        "q",
        "prefix",
        "provider",
        "variant",
        "us",
        "tflops",
        "floor_us",
        "right",
        "frobenius",
    )
    click.echo(
        " ".join(f"{row[k]:.4g}" if isinstance(row[k], float) else str(row[k]) for k in names if k in row)
    )


@click.command()
@click.option("--out", type=click.Path(path_type=Path), help="CSV to write.")
@click.option("--variant", "variants", multiple=True, default=("",), help="Macros: KD_STAGES=4,KD_UNIT=64.")
@click.option("--splits", default="auto")
@click.option("--peer/--no-peer", default=True, help="Also time torch's attention.")
@click.option("--commit", default="", help="Of the sources, where there is no repository.")
def main(out: Path | None, variants: tuple[str, ...], splits: str, peer: bool, commit: str) -> None:
    """Check and time verify_attn_gqa; exit code 1 if a result was wrong."""
    most = ceilings("cuda")
    common = machine("cuda") | {"torch": torch.__version__, "clock": "graph"}
    common |= {"matmul_tflops": round(most.flops_per_us / 1e6, 1)}
    common |= {"copy_tb_s": round(most.bytes_per_us / 1e6, 3), "commit": commit or common["commit"]}
    common["command"] = " ".join(["python benchmarks/bench_verify_attn_gqa.py", *sys.argv[1:]])
    click.echo(str(common))
    libraries = {
        v: KernelLibrary(backend="cuda", defines=dict(w.split("=") for w in v.split(",") if w))
        for v in variants
    }
    rows: list[dict[str, Any]] = []
    for name, batch, nodes, prefix in SHAPES:
        x, base = (
            make(batch, MODELS[name], nodes, prefix),
            base_row(name, batch, nodes, prefix, most),
        )
        flops = base.pop("flops")
        for variant, library in libraries.items():
            row = base | {"provider": "kdtree_cupy", "variant": variant, "splits": splits}
            row |= measure(x, flops, library, int(splits) if splits.isdigit() else splits)
            rows.append(row)
            show(row)
        if peer:
            found = time_graph([sdpa(x)], 5)
            rows.append(base | {"provider": "torch sdpa", **found, "tflops": flops / found["us"] / 1e6})
            show(rows[-1])
        del x
        torch.cuda.empty_cache()
    for row in rows:
        row["share_of_floor"] = row["floor_us"] / row["us"] if "us" in row else None
    if out:
        write(out, rows, common)
    sys.exit(any(row.get("right") is False for row in rows))


if __name__ == "__main__":
    main()
