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
# # 04 · Edit a kernel, without a build step
#
# The `.cu` files in `kernels_cu/` are compiled when they are called. An edit of a file, of a header or of a constant
# is live at the next call; it first runs on small inputs against the numpy reference, in a process of its own, so
# that a broken kernel costs an exception and not the notebook. Here we edit `tree_build`, which grows the draft
# tree. Without a GPU the same `.cu` runs on the CPU, thread by thread: right or wrong shows there, speed does not.

# %%
import time

import matplotlib.pyplot as plt
import numpy as np

import kdtree_cupy as kd
from kdtree_cupy import style
from kdtree_cupy.library import KernelError, KernelLibrary
from kdtree_cupy.library.sources import package_folder
from kdtree_cupy.selftest import default_backend

backend = default_backend()  # "cuda", or "host" where there is no GPU
SMALL = backend != "cuda"
xp = np if SMALL else __import__("cupy")
library = KernelLibrary(backend=backend)
print(library)

# %% [markdown]
# ## 1. What the compiler says, for a card that is not here
#
# Registers, spills and shared memory on sm_120 (RTX 5070 Ti, 5090, PRO 6000), compiled on whatever machine this is.

# %%
report = library.report(["tree_build.cu"], arch="sm_120")
print(report)
for row in report.rows:
    assert row.spill_bytes == 0
    assert row.static_shared + (row.dynamic_shared or 0) <= 101_376  # what a block may have there

# %% [markdown]
# ## 2. Inputs, and what is right
#
# Peaky rows, as a drafter gives them, rounded so that ties happen. The reference is a heap in plain Python.

# %%
D, K = 15, 64


def rows(seed, batch=1):
    logits = np.random.default_rng(seed).normal(size=(batch, D, K)) * 4
    logits = -np.sort(-logits.round(1), axis=-1)
    table = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    return np.tile(np.arange(K, dtype=np.int32), (batch, D, 1)), table.astype(np.float32)


ids, logprobs, roots = map(xp.asarray, (*rows(0), np.int32([0])))
numpy_library = KernelLibrary(backend="numpy")
reference = kd.tree_build(*rows(0), [0], 64, library=numpy_library).tree
tree = kd.tree_build(ids, logprobs, roots, 64, library=library).tree.to_numpy()
assert (tree.parents == reference.parents).all() and (tree.scores == reference.scores).all()
print(tree)

# %% [markdown]
# ## 3. A constant as a knob
#
# Small trees are popped one by one by a single warp; beyond `KD_TREE_FRONTIER` nodes a whole block selects depth by
# depth. Where should the border lie? Compile the kernel with the border at both ends and time each.

# %%
budgets = [8, 16, 32, 64] if SMALL else [8, 16, 32, 64, 128, 256, 512, 1024]


def microseconds(with_library, budget, repeats=5 if SMALL else 50):
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        kd.tree_build(ids, logprobs, roots, budget, library=with_library)
        if not SMALL:
            xp.cuda.get_current_stream().synchronize()
        times.append(1e6 * (time.perf_counter() - begin))
    return float(np.median(times[1:]))


variants = {
    "one by one": KernelLibrary(backend=backend, defines={"KD_TREE_FRONTIER": 1024}),
    "depth by depth": KernelLibrary(backend=backend, defines={"KD_TREE_FRONTIER": 0}),
}
if SMALL:  # the reference takes numpy arrays
    variants["numpy reference"] = numpy_library
curves = {name: [microseconds(lib, b) for b in budgets] for name, lib in variants.items()}
with style.figure_style():
    figure, ax = plt.subplots(figsize=(6, 3.6), layout="constrained")
    for (name, curve), colour in zip(curves.items(), style.CYCLE, strict=False):
        ax.plot(budgets, curve, "o-", color=colour, label=name)
    ax.set(xscale="log", yscale="log", xlabel=style.BUDGET_LABEL, ylabel="us a call, Python included")
    ax.set_title(
        f"tree_build, batch 1, backend {backend}" + (" (CPU execution: no GPU speed)" if SMALL else "")
    )
    ax.legend()
    plt.show()
assert all(len(curve) == len(budgets) for curve in curves.values())

# %% [markdown]
# ## 4. A wrong edit is caught before it reaches your arrays
#
# Ties go to the lexicographically smaller rank tuple. Turn that comparison around in the header and call the stage:
# the check against the reference fails, and says so.

# %%
header = (package_folder() / "tree_nodes.cuh").read_text()
wrong = header.replace("ra < rb : depth_a < depth_b", "ra > rb : depth_a < depth_b")
assert wrong != header
library.replace("tree_nodes.cuh", wrong)
caught = ""
try:
    kd.tree_build(ids, logprobs, roots, 64, library=library)
except KernelError as error:
    caught = str(error)
    print(caught)
assert "not what the reference gives" in caught

# %% [markdown]
# A typing error names your line:

# %%
library.replace("tree_nodes.cuh", header.replace("return ra != rb", "return ra != rc"))
message = ""
try:
    kd.tree_build(ids, logprobs, roots, 64, library=library)
except kd.CompileError as error:
    message = str(error).splitlines()[0]
    print(message)
assert "tree_nodes.cuh" in message and "rc" in message

# And back to the file on disk: right again.
library.replace("tree_nodes.cuh", None)
again = kd.tree_build(ids, logprobs, roots, 64, library=library).tree.to_numpy()
assert (again.parents == reference.parents).all()
