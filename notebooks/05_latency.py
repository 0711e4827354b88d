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
# # 05 · How long it takes
#
# Every stage and the whole round, against budget, prefix and batch, beside the numpy reference. With a GPU the
# cells below measure it (half a minute); without one they show the table of an NVIDIA H200 that comes with the
# checkout, and say so. Nothing is timed that has not been checked on the very input first.

# %%
import matplotlib.pyplot as plt

from kdtree_cupy import bench_plots, style
from kdtree_cupy.bench import CPU_QUICK, Grid, run_bench
from kdtree_cupy.bench_table import read_bench, stored
from kdtree_cupy.selftest import default_backend

plt.rcParams.update(style.RC)
backend = default_backend()
few = Grid(budgets=(16, 64), batches=(1, 8), prefixes=(2048, 8192), heads=(8, 64))
if backend == "cuda":
    source, rows = "measured here", run_bench("cuda", few, command="notebook 05", say=print)["rows"]
elif stored():
    source, rows = "stored results, not this machine", read_bench(stored())
else:  # neither a GPU nor the checkout: a CPU plays the kernels, which shows shapes of curves, not times
    source, rows = "kernels played by this CPU", run_bench(backend, CPU_QUICK, say=print)["rows"]
rows = [row | {k: row[k] or 0 for k in ("heads", "prefix", "budget", "width")} for row in rows]

# %% [markdown]
# ## Where the numbers come from

# %%
machine = bench_plots.machines(rows)[0]
own = bench_plots.of_machine(rows, machine)
print(source)
for name in ("gpu", "driver", "cuda", "cupy", "commit", "dirty"):
    print(f"{name:8} {own[0][name]}")
assert {row["backend"] for row in own} == {machine[0]}  # one machine and backend in a figure

# %% [markdown]
# ## Against budget, prefix and batch
#
# Solid: median, with a band from the 20th to the 80th percentile. Dotted: the floor, the larger of bytes over the copy
# bandwidth and operations over the rate of a matrix product, both measured in the same run.

# %%
for x in bench_plots.AXES:
    if len({row[x] for row in own if row[x]}) > 1:
        bench_plots.plot_latency(own, x)
        plt.show()
assert all(row["us_p20"] <= row["us_median"] <= row["us_p80"] for row in own)

# %% [markdown]
# ## What a round is made of
#
# Stages measured one by one, stacked, beside the round as one graph. The graph has no gaps between kernels, and one
# stage finds in the L2 cache what the stage before has written, so the round may be shorter than the stack.

# %%
stages = {row["stage"] for row in own}
if "round" in stages:
    bench_plots.plot_stack(own)
    plt.show()
assert {"topk_logprob", "tree_build", "target_token", "tree_accept", "kv_commit"} <= stages

# %% [markdown]
# ## Attention under its roof
#
# The right-hand end of the roof is the rate of a matrix product, the left-hand slope the copy bandwidth. With 8 heads a
# tree of 65 nodes turns 520 query rows against each KV row: far to the right, so operations count, not bytes.

# %%
attention = [row for row in own if row["stage"] == "verify_attn"]
if attention:
    bench_plots.plot_roofline(own)
    plt.show()
assert all(row["us_median"] >= 0.9 * row["floor_us"] for row in attention)  # nothing is faster than its floor

# %% [markdown]
# ## Beside numpy
#
# The reference is slow on purpose: it is written to be read. It is what the kernel must agree with, and the bar that any
# kernel must clear.

# %%
reference = [row for row in rows if row["variant"] == "reference"]
if reference:
    bench_plots.plot_reference(rows, machine)
    plt.show()
assert {row["backend"] for row in reference} <= {"numpy"}

# %% [markdown]
# ## The round in one line

# %%
rounds = [row for row in own if row["stage"] == "round"]
for row in sorted(rounds, key=lambda row: (row["batch"], row["budget"], -row["cold"])):
    what = f"batch {row['batch']:3.0f}, B = {row['budget']:4.0f}, {'cold' if row['cold'] else 'warm'}"
    print(f"{what}: {row['us_median']:9.1f} us, {row['floor_us'] / row['us_median']:.0%} of floor")
