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
# # 02 · An acceptance study on a real trace
#
# How many tokens does a draft tree buy per round, and which budget pays? The bundled traces were recorded with
# SmolLM2-135M-Instruct and a small 15-position block drafter on HumanEval prompts. A trace holds what the drafter
# offered at *every* position, so any tree policy can be replayed on it, exactly and without a model.

# %%
import matplotlib.pyplot as plt
import numpy as np

from kdtree_cupy import acceptance, cost, plots, plots_calibration, style
from kdtree_cupy.replay import jump
from kdtree_cupy.study import run_study
from kdtree_cupy.trace import bundled_traces, load_trace

plt.rcParams.update(style.RC)
traces = [load_trace(path) for path in bundled_traces()]
greedy, sampled = traces
print(greedy)
print(f"depth D = {greedy.depth}, ranks K = {greedy.width}, temperature {greedy.header['temperature']}")
assert greedy.header["temperature"] == 0 and sampled.header["temperature"] == 1

# %% [markdown]
# ## 1. Replay three policies at eight budgets
#
# `chain` verifies the drafter's first choices only, `ddtree` the B most probable continuations, `static` one fixed
# shape fitted on the other sequences. Tau counts the bonus token; budgets exclude the root. At 64 nodes DDTree
# commits 2.65 tokens per round (pooled) where the chain commits 1.80.

# %%
tables = [cost.load_cost(name) for name in ("caddtree-a800-8b", "ddtree-h200-8b")]
result = run_study(traces, budgets=[4, 8, 16, 32, 64, 128, 256, 512], costs=tables)
pooled = {
    row["policy"]: row["tau_pooled"] for row in result.select(trace=greedy.name, budget=64, subset="all")
}
print({name: round(value, 3) for name, value in pooled.items()})
assert round(pooled["ddtree"], 2) == 2.65 and round(pooled["chain"], 2) == 1.80

# %%
plots.plot_tau(result)
plt.show()

# %% [markdown]
# Hollow markers: with K = 32 kept ranks, fewer than 95% of these trees are provably the trees the whole
# vocabulary would give. Trees up to 32 nodes always are.

# %%
certified = {row["budget"]: row["certified_share"] for row in result.select(policy="ddtree", subset="all")}
assert all(certified[budget] == 1.0 for budget in (4, 8, 16, 32))

# %% [markdown]
# ## 2. Replay must jump
#
# A round that accepts many drafts skips many positions. Averaging over all positions counts the easy stretches
# too often: on this trace it says 2.92 tokens at 64 nodes instead of 2.65.

# %%
part = result.traces[0]
biased = part.position_average["ddtree"][part.column(64)]
print(f"by positions {biased:.2f}, by rounds {pooled['ddtree']:.2f}")
assert round(biased, 2) == 2.92

rounds = part.replays["ddtree"].rounds[part.column(64)]
again = jump(greedy, part.replays["ddtree"].acceptance.accepted[:, part.column(64)])
assert (again.root == rounds.root).all()
assert rounds.tokens.sum() == (greedy.lengths - 1).sum()  # every token is committed exactly once

# %% [markdown]
# ## 3. Does the tree get what it expects?
#
# DDTree maximises 1 + sum exp(score): the tokens it expects if the drafter's marginals were right and independent.
# They are neither. This drafter expects 3.01 tokens and gets 2.65: it is overconfident, more so at depth.

# %%
row = result.select(trace=greedy.name, policy="ddtree", budget=64, subset="all")[0]
assert round(row["surrogate_tau"], 2) == 3.01
plots_calibration.plot_surrogate(result)
plots_calibration.plot_reliability(result)
plt.show()
table = acceptance.reliability(greedy, part.ranks)
print("calibration error by depth", table.error.round(2))
assert table.error[0] < table.error[-1]

# %% [markdown]
# ## 4. Which budget pays?
#
# More nodes never lower acceptance, but verifying them takes time. With the published round costs of an 8B model
# on an A800 the best of these budgets is 128, on an H200 it is 512: the machine decides. (The costs are those of
# another model pair, so this shows a trade-off; it measures no speedup of this pair.)

# %%
plots.plot_speedup(result)
plt.show()
best = {}
for table_ in tables:
    mine = [
        r
        for r in result.speedups
        if (r["trace"], r["policy"], r["cost"]) == (greedy.name, "ddtree", table_.name)
    ]
    best[table_.name] = max(mine, key=lambda r: r["speedup"])["budget"]
print(best)
assert best == {"caddtree-a800-8b": 128, "ddtree-h200-8b": 512}

# %% [markdown]
# ## 5. Two real rounds

# %%
plots_calibration.plot_examples(result)
plt.show()
assert np.isfinite([row["tau_mean"] for row in result.rows]).all()
