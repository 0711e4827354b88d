# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     name: python3
# ---

# %% [markdown]
# # 08 · Verify attention, from the formula to the measured time
#
# What does every tree node read from the prefix and from its ancestors? Four ideas make that fast: absorbed matrices, the ancestor
# mask, the online softmax, and partial results joined by their lse. Each is a few lines of float64 numpy here.
# [docs/verify_attn.md](../docs/verify_attn.md) goes on with the CUDA kernels.

# %%
import json

import matplotlib.pyplot as plt
import numpy as np
from ml_dtypes import bfloat16

import kdtree_cupy as kd
from kdtree_cupy import bench_plots, masks, style
from kdtree_cupy.bench_attention import attention_bytes, attention_flops
from kdtree_cupy.bench_cases import Shape
from kdtree_cupy.bench_table import describe, read_bench, stored
from kdtree_cupy.library import KernelLibrary
from kdtree_cupy.plots_mask import plot_mask
from kdtree_cupy.refs import verify_attn as reference
from kdtree_cupy.selftest import default_backend

plt.rcParams.update(style.RC)
rng = np.random.default_rng(8)
H, P, S, B = 4, 128, 52, 11  # heads, numbers of a head's key, rows of the prefix, draft nodes: SMALL
N, UNIT, scale = B + 1, 16, 192**-0.5  # the scale is that of a head's 128 + 64 numbers, not of 576
ids, logprobs, _ = kd.topk_logprob(3 * rng.normal(size=(1, 4, 50)).astype(np.float32), 8)
tree, mask, _ = kd.tree_build(ids, logprobs, [0], B, lengths=[S])

# %% [markdown]
# ## 1. Absorbed matrices: one cache row serves all heads
#
# The textbook expands each cached row (512 latent numbers c, 64 rotary ones) into a key `w_uk c` and a value `w_uv c` for every
# head. But `q . (w_uk c) = (w_uk^T q) . c`: turn the query once, read the row as it is. With 64 heads the textbook touches 20,480
# numbers a position, the absorbed form 576: 36 times fewer.

# %%
w_uk, w_uv = rng.normal(size=(2, H, P, 512)) / 512**0.5
q_nope, q_rope = rng.normal(size=(1, N, H, P)), rng.normal(size=(1, N, H, 64))
cache, tree_kv = rng.normal(size=(1, S, 576)), rng.normal(size=(1, N, 576))
rows = np.concatenate([cache[0], tree_kv[0]])  # what a node may read: the prefix, then the tree
q = np.concatenate([np.einsum("bnhp,hpl->bnhl", q_nope, w_uk), q_rope], axis=-1)
scores = scale * (q[0] @ rows.T)  # [node, head, row]
keys = np.einsum("sl,hpl->hsp", rows[:, :512], w_uk)
textbook = np.einsum("nhp,hsp->nhs", q_nope[0], keys) + np.einsum("nhr,sr->nhs", q_rope[0], rows[:, 512:])
assert np.abs(scores - scale * textbook).max() < 1e-11
assert 64 * (128 + 64 + 128) == 20_480 and round(20_480 / 576) == 36

# %% [markdown]
# ## 2. The ancestor mask, and the squares of work
#
# A node sees the prefix, its ancestors and itself. Parents come first, so one pass closes the relation; a kernel gets one bit a pair.
# The (node, head) pairs are rows of a matrix that read the same KV rows: a block takes a tile of them and walks over units of 16 KV
# rows. Only squares that touch the tree need mask words: 3 of 12 here, 1% at a prefix of 8,192 and 65 nodes.

# %%
sees, TILE = np.eye(N, dtype=bool), 16  # tensor-core kernels take tiles of 8, 16, 32 and 64 rows
for i in range(1, N):
    sees[i] |= sees[tree.parents[0, i]]
visible = np.concatenate([np.ones((N, S), bool), sees], axis=1)
assert (sees == masks.bool_mask(tree)[0]).all() and (mask[0, :, 0] == (sees << np.arange(N)).sum(1)).all()
tiles, units, last = N * H // TILE, (S + N) // UNIT, S // UNIT  # from unit `last` on the tree is touched
assert (tiles * (units - last), tiles * units) == (3, 12)
assert round(-(-65 // UNIT) / -(-(8192 + 65) // UNIT), 2) == 0.01
plot_mask(tree, S, heads=H, tile=TILE, unit=UNIT)
plt.show()

# %% [markdown]
# ## 3. Online softmax: never hold a whole row of scores
#
# Walk over the units with a running maximum, sum and result; when the maximum moves, shrink what is there. Hidden scores are -inf and
# the maximum starts at -1e30, so nothing is ever inf - inf. The kernels let the maximum lag by up to 2^8 before they move it: exact
# either way, and the result is seldom rescaled (here once a row, at the first unit).

# %%
exact = reference.verify_attn(q, cache, tree_kv, mask, [S], scale=scale)  # the definition, in float64
moves = {0.0: 0, 8 * np.log(2): 0}
for lag in moves:
    peak, total, result = np.full((N, H), -1e30), np.zeros((N, H)), np.zeros((N, H, 512))
    for at in range(0, S + N, UNIT):
        unit = np.where(visible[:, None, at : at + UNIT], scores[..., at : at + UNIT], -np.inf)
        most = unit.max(axis=-1)
        new = np.where(most > peak + lag, most, peak)
        moves[lag] += int((new > peak).sum())
        shrink, weights = np.exp(peak - new), np.exp(unit - new[..., None])
        result = shrink[..., None] * result + weights @ rows[at : at + UNIT, :512]
        total, peak = shrink * total + weights.sum(axis=-1), new
    assert np.abs(result / total[..., None] - exact.out[0]).max() < 1e-12
    assert np.abs(peak + np.log(total) - exact.lse[0]).max() < 1e-12
assert moves[0.0] > min(moves.values()) == N * H
library = KernelLibrary(backend=default_backend())  # a GPU, else the kernel on the CPU, else the reference
xp = __import__("cupy") if library.backend == "cuda" else np
single = [xp.asarray(x.astype(np.float32)) for x in (q, cache, tree_kv)]
got = kd.verify_attn(*single, xp.asarray(mask), xp.asarray([S], "int32"), scale=scale, library=library)
print(library.backend, error := float(abs(got.out - xp.asarray(exact.out)).max()))
assert error < 1e-5

# %% [markdown]
# ## 4. Split KV: partial results, joined by their lse
#
# One request has too few tiles to fill a card, so blocks share a row: each leaves result and lse = ln sum exp of its own part. The
# whole is `sum exp(lse_i - lse) result_i`. A part of which a node sees nothing has lse -inf and weighs nothing. Parts may be stored
# as bfloat16: the result stays within the 0.4% that is allowed.

# %%
outs, lses = [], []
for low, high in ((0, 20), (20, 56), (56, S + N)):  # the last part is hidden from the first nodes
    part = np.where(visible[:, None, low:high], scores[..., low:high], -np.inf)
    lses.append(np.logaddexp.reduce(part, axis=-1))
    weights = np.exp(part - np.nan_to_num(lses[-1], neginf=0.0)[..., None])
    outs.append(weights @ rows[low:high, :512])
assert (lses[2][:4] == -np.inf).all() and (outs[2][:4] == 0).all()
shares = np.exp(lses - np.logaddexp.reduce(lses, axis=0))[..., None]
rough = (shares * np.stack(outs).astype(bfloat16).astype(float)).sum(0)
assert np.abs((shares * outs).sum(0) - exact.out[0]).max() < 1e-12
assert np.linalg.norm(rough - exact.out[0]) < 0.004 * np.linalg.norm(exact.out)

# %% [markdown]
# ## 5. Floors, and what was measured
#
# 64 heads and 65 nodes over a prefix of 8,192: 75 GFLOP on 18.6 MB, 4,026 operations a byte; one node of one head: 2. An H200
# does fewer than 200 in the time of a byte: the first is work for its tensor cores, the second for its memory.

# %%
shapes = (Shape(1, 64, 65, 8192), Shape(1, 1, 1, 8192))
flops, moved = [attention_flops(s) for s in shapes], [attention_bytes(s, 2) for s in shapes]
assert [round(f / m) for f, m in zip(flops, moved, strict=True)] == [4026, 2]
assert (round(flops[0] / 1e9), round(moved[0] / 1e6, 1)) == (75, 18.6)
machine = json.loads(stored("bench_h200.json").read_text())["machine"]["cuda"]
assert 100 < machine["ceilings"]["flops_per_us"] / machine["ceilings"]["bytes_per_us"] < 200
print("stored, not measured here:", {k: machine[k] for k in ("gpu", "driver", "cupy", "commit")})
measured = [r for r in read_bench(stored()) if (r["stage"], r["variant"]) == ("verify_attn", "default")]
print(*(describe(r) for r in measured if r["q_len"] == 65 and r["cold"]), sep="\n")
bench_plots.plot_roofline(measured)
plt.show()
assert all(row["floor_us"] < row["us_median"] for row in measured)
