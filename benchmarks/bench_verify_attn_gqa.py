"""verify_attn_gqa on a GPU: checked against float64 on the very input, then timed by CUDA graph replay.

Beside it, in the same run: torch's attention with the same mask as a bool tensor, keys and values of the
heads of a group repeated beforehand, untimed (its kernels that take a mask want as many KV heads as heads).
Inputs are N(0, 1) in bfloat16 with random trees, the same for every call: they stay in the L2 cache if they
fit; keys and values also in 8-bit floats (column kv).  Floors: operations over the rate of a large matrix
product, bytes over the bandwidth of a copy.

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
from kdtree_cupy.verify_attn_gqa_variants import variant_for
from kdtree_cupy.verify_attn_variants import card, uses_warp_groups

MODELS = {
    "qwen3-8b, llama-3-8b": (32, 8, 128), "llama-70b": (64, 8, 128), "qwen3-235b": (64, 4, 128),
    "llama-2-7b": (32, 32, 128), "smollm2-135m": (9, 3, 64),
}  # fmt: skip
"""Heads, KV heads, numbers of a head."""
SMALL, LARGE, WIDE, SINGLE, TINY = MODELS
SHAPES = [
    *((SMALL, 1, n, p) for n in (1, 17, 65, 129) for p in (512, 2048, 8192, 32768)),
    *((SMALL, 1, n, 8192) for n in (9, 33)),
    *((SMALL, 8, n, 8192) for n in (1, 17, 65, 129)),
    *((SMALL, 64, n, 4096) for n in (1, 17, 65)),
    *((LARGE, b, n, 8192) for b, n in ((1, 1), (1, 65), (8, 65))),
    *((WIDE, b, n, p) for b, n, p in ((1, 1, 32768), (1, 17, 8192), (1, 65, 8192), (8, 65, 8192))),
    *((SINGLE, b, n, p) for b, n, p in ((1, 1, 8192), (1, 65, 8192), (8, 17, 2048), (8, 65, 4096))),
    *((TINY, b, n, p) for b, n, p in ((1, 1, 2048), (1, 65, 512), (1, 65, 8192), (16, 33, 2048))),
]
"""Model, requests, nodes, rows of the prefix."""
MOST_OF_PEER = 5_000_000
"""Requests times nodes times prefix beyond which torch is not timed: it wants several times the memory."""


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


KV = ("bfloat16", "e4m3")


def narrowed(x: Inputs) -> tuple[Inputs, Inputs]:
    """Return the inputs with 8-bit keys and values, and with the numbers those stand for."""
    names = ("k", "v", "tree_k", "tree_v")
    codes = {name: getattr(x, name).to(torch.float8_e4m3fn) for name in names}
    return x._replace(**codes), x._replace(**{name: codes[name].to(x.q.dtype) for name in names})


def call(x: Inputs, **options: Any) -> kd.Attention:
    """Run the stage; 8-bit numbers have scales of 1."""
    scales = {"k_scale": 1.0, "v_scale": 1.0} if x.k.dtype == torch.float8_e4m3fn else {}
    return kd.verify_attn_gqa(*x[:7], scale=x.q.shape[-1] ** -0.5, **scales, **options)


def kernel_of(x: Inputs, library: KernelLibrary, splits: Any) -> str:
    """Return the name of the kernel that a call takes."""
    rows, on = x.q.shape[1] * x.q.shape[2] // x.k.shape[2], card(torch.cuda.current_device())
    narrow = x.k.dtype == torch.float8_e4m3fn
    chosen = variant_for(rows, splits, uses_warp_groups(library, on), library.defines, narrow)
    return chosen.kernel.removeprefix("verify_attn_gqa_")


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


def base_row(name: str, batch: int, nodes: int, prefix: int, most: Ceilings, kv: str) -> dict[str, Any]:
    """Return the columns that do not depend on who computes: shape and floor."""
    heads, shared, size = MODELS[name]
    flops, rows = 4 * batch * heads * nodes * (prefix + nodes) * size, batch * (prefix + nodes)
    moved = (2 if kv == "e4m3" else 4) * shared * size * rows + 4 * batch * heads * nodes * size
    floor = most.floor_us(moved, flops)
    sizes = {"b": batch, "H": heads, "Hkv": shared, "D": size, "q": nodes, "prefix": prefix}
    bound = "operations" if flops / most.flops_per_us > moved / most.bytes_per_us else "bytes"
    return {"model": name} | sizes | {"kv": kv, "floor_us": floor, "floor_is": bound, "flops": flops}


def measure(x: Inputs, truth: Inputs, flops: int, library: KernelLibrary, splits: Any) -> dict[str, Any]:
    """Check against ``truth``, then time; the row has no times if it was wrong."""
    out = call(x, library=library, splits=splits)
    worst = errors(truth, out)
    row = dict(zip(("frobenius", "one_minus_cosine", "lse_error"), worst, strict=True))
    if not all(error <= bar for error, bar in zip(worst, BAR, strict=True)):
        return row | {"right": False}
    found = time_graph([lambda: call(x, library=library, splits=splits, out=out)])
    row |= {"kernel": kernel_of(x, library, splits)}
    return row | {"right": True, **found, "tflops": flops / found["us"] / 1e6}


def show(row: dict[str, Any]) -> None:
    """Print one line."""
    names = ("model", "b", "q", "prefix", "kv", "provider", "kernel", "variant", "us", "tflops", "floor_us",
             "right", "frobenius")  # fmt: skip
    click.echo(
        " ".join(f"{row[k]:.4g}" if isinstance(row[k], float) else str(row[k]) for k in names if k in row)
    )


@click.command()
@click.option("--out", type=click.Path(path_type=Path), help="CSV to write.")
@click.option("--variant", "variants", multiple=True, default=("",), help="Macros: KD_STAGES=4,KD_UNIT=64.")
@click.option("--splits", default="auto")
@click.option(
    "--kv", "kvs", multiple=True, default=KV, type=click.Choice(KV), help="Numbers of keys and values."
)
@click.option("--peer/--no-peer", default=True, help="Also time torch's attention.")
@click.option("--commit", default="", help="Of the sources, where there is no repository.")
def main(
    out: Path | None, variants: tuple[str, ...], splits: str, kvs: tuple[str, ...], peer: bool, commit: str
) -> None:  # fmt: skip
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
        x = make(batch, MODELS[name], nodes, prefix)
        for kv in kvs:
            inputs, truth = (x, x) if kv == "bfloat16" else narrowed(x)
            base = base_row(name, batch, nodes, prefix, most, kv)
            flops = base.pop("flops")
            for variant, library in libraries.items():
                row = base | {"provider": "kdtree_cupy", "variant": variant, "splits": splits}
                row |= measure(inputs, truth, flops, library, int(splits) if splits.isdigit() else splits)
                rows.append(row)
                show(row)
            del inputs, truth
        if peer and batch * nodes * prefix <= MOST_OF_PEER:
            base = base_row(name, batch, nodes, prefix, most, "bfloat16")
            flops, found = base.pop("flops"), time_graph([sdpa(x)], 5)
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
