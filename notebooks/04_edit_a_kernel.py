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
# that a broken kernel costs an exception and not the notebook. Without a GPU the same `.cu` runs on the CPU, thread by
# thread: right or wrong shows there, speed does not.

# %%
import matplotlib.pyplot as plt

import kdtree_cupy as kd
from kdtree_cupy import style
from kdtree_cupy.bench_attention import attention_case
from kdtree_cupy.bench_cases import Shape, tree_cases
from kdtree_cupy.bench_data import Place
from kdtree_cupy.kernel_trial import time_case, try_kernel
from kdtree_cupy.library import KernelError, KernelLibrary, sass
from kdtree_cupy.selftest import default_backend
from kdtree_cupy.verify_attn_variants import ROWS64, variant_for

plt.rcParams.update(style.RC)
backend = default_backend()  # "cuda", or "host" where there is no GPU
SMALL = backend != "cuda"
library = KernelLibrary(backend=backend)
clock = "us a call (CPU execution: no GPU speed)" if SMALL else "us a call, device time"

# %% [markdown]
# ## 1. A kernel in a cell
#
# `%%kernel FILE` takes the cell for that file: compile, compare with the reference, one line of verdict; `--time` times
# it, and `%kernel tree_nodes.cuh --edit` puts an existing file into a cell. This one is new, so nothing knows what is
# right; what it prints appears below. (These cells need IPython; as a script the notebook goes on without them.)

# %% tags=["active-ipynb"]
# %load_ext kdtree_cupy

# %% tags=["active-ipynb"]
# %%kernel depths.cu --new --library library --arch sm_120
# #include "common.cuh"
# extern "C" __global__ void depths(const int* __restrict__ parent, int* __restrict__ depth)
# {
#     int steps = 0;
#     for (int j = threadIdx.x; parent[j] >= 0; j = parent[j]) ++steps;
#     depth[threadIdx.x] = steps;
#     if (steps == 2) printf("node %d is at depth 2\n", int(threadIdx.x));
# }

# %% tags=["active-ipynb"]
# import numpy as np
#
# place = Place(library)
# depth = place.array(np.zeros(5, np.int32))
# library.launch("depths.cu", "depths", 1, 5, (place.array(np.int32([-1, 0, 1, 0, 1])), depth))
# assert place.host(depth).tolist() == [0, 1, 2, 1, 2]

# %% [markdown]
# ## 2. tree_build: right, and what it costs on a card that is not here
#
# Registers, spills and shared memory on sm_120 (RTX 5070 Ti, 5090, PRO 6000), compiled on whatever machine this is.

# %%
trial = try_kernel("tree_build.cu", arch="sm_120", library=library)
print(trial)
for row in trial.report.rows:
    assert row.spill_bytes == 0
    assert row.static_shared + row.dynamic_shared <= 101_376  # what a block may have there
assert trial.checked == {"tree_build.cu": True}

# %% [markdown]
# ## 3. A constant as a knob
#
# One block takes nodes depth by depth, guided by an estimate of the last score; after `KD_TREE_ATTEMPTS` estimates it
# pops them one by one. With 0 attempts it always does. Each is checked on the very input that is timed.

# %%
budgets = [8, 16, 32, 64] if SMALL else [8, 16, 32, 64, 128, 256, 512, 1024]
one_by_one = KernelLibrary(backend=backend, defines={"KD_TREE_ATTEMPTS": 0})
curves = {}
for name, lib in {"depth by depth": library, "one by one": one_by_one}.items():
    cases = [tree_cases(Place(lib), Shape(budget=b, width=b, vocab=2048))[0] for b in budgets]
    curves[name] = [time_case(case, backend) for case in cases]
binaries = {lib.compile("tree_build.cu", arch="sm_120").path.read_bytes() for lib in (library, one_by_one)}
assert len(binaries) == 2  # the macro does change the code

# %% [markdown]
# ## 4. A wrong edit is caught before it reaches your arrays
#
# Ties go to the lexicographically smaller rank tuple. Turn that comparison around in the header: the check fails, and
# the library keeps what it had. A typing error names your line.

# %%
header = (library.sources.package / "tree_nodes.cuh").read_text()
said = []
for old, new in (("ra < rb : depth_a", "ra > rb : depth_a"), ("return ra != rb", "return ra != rc")):
    assert old in header
    try:
        try_kernel("tree_nodes.cuh", header.replace(old, new), library=library)
    except (KernelError, kd.CompileError) as error:
        said.append(str(error))
        print(f"{error}\n")
assert "not what the reference gives" in said[0] and 'identifier "rc" is undefined' in said[1]

# %% [markdown]
# ## 5. verify_attn: the shape of a tile
#
# A block reads KV rows for 8, 16, 32 (`verify_attn_few.cu`) or 64 query rows (node x head), the last through a ring of
# `KD_STAGES` units. Three of them take 97,232 bytes; a fourth would not fit the 101,376 that sm_120 gives a block.

# %%
trial = try_kernel("verify_attn.cu", defines={"KD_STAGES": 3}, arch="sm_120", library=library)
print(trial, trial.report, sep="\n")
tiles = {row.name: row for row in trial.report.rows if "_rows" in row.name}
assert trial.checked == {"verify_attn.cu": True}
assert tiles["verify_attn_rows64"].dynamic_shared == ROWS64.shared_bytes(3) == 97_232
assert 97_232 < 101_376 < ROWS64.shared_bytes(4)
if sass.disassembler():  # pip install 'kdtree-cupy[sass]'
    counts = sass.opcodes(trial.library.compile("verify_attn_few.cu", arch="sm_120"))
    more = sass.difference(counts["verify_attn_few16"], counts["verify_attn_few32"])
    print("instructions of few32 beyond those of few16:", dict(list(more.items())[:8]))
    assert more["HMMA"] > 0

# %%
shapes = {f"{4 * n} rows": Shape(heads=4, prefix=64, budget=n - 1) for n in (4, 8, 16)}
times = {name: time_case(attention_case(Place(trial.library), s, 0), backend) for name, s in shapes.items()}
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
for (name, curve), colour in zip(curves.items(), style.CYCLE, strict=False):
    left.plot(budgets, curve, "o-", color=colour, label=name)
left.set(xscale="log", yscale="log", xlabel=style.BUDGET_LABEL, ylabel=clock, title="tree_build, batch 1")
left.legend()
right.bar(list(times), list(times.values()), color=style.BLUE)
right.set(ylabel=clock, title="verify_attn, 4 heads, prefix 64, by tile")
plt.show()
assert [variant_for(4 * n, "auto", False).rows for n in (4, 8, 16)] == [16, 32, 64]
