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
# # 07 · Bring your own model
#
# A study needs no model, only a trace: what your drafter offered at every position, and what your target wrote. Here one is recorded
# with the engine of this package, then by a torch model, with a drafter of five lines; the study runs on it; and the recorded rounds
# go through the torch operators and SGLang's tree functions. Where torch is missing the cells say so and do the same in numpy.

# %%
import importlib.util
import tempfile
from importlib import resources
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import kdtree_cupy as kd
from kdtree_cupy import kdtr, plots, style
from kdtree_cupy.acceptance import tau_pooled, uncensored_positions
from kdtree_cupy.engine import Context, Model, from_dict, generate
from kdtree_cupy.policies import ddtree
from kdtree_cupy.record import draft_rows, hf, record
from kdtree_cupy.replay import acceptance, jump
from kdtree_cupy.sglang_bridge import build_ddtree, verify_tree_greedy
from kdtree_cupy.study import run_study
from kdtree_cupy.torch_ops import register
from kdtree_cupy.trace import load_trace
from kdtree_cupy.trace_writer import TraceWriter

plt.rcParams.update(style.RC)
missing = [name for name in ("torch", "transformers") if importlib.util.find_spec(name) is None]
torch = None if "torch" in missing else importlib.import_module("torch")
folder = Path(tempfile.mkdtemp())
D, K, NEW = 6, 32, 40  # drafted positions, ranks kept, tokens of a response: SMALL

# %% [markdown]
# ## 1. A target, and a drafter of five lines
#
# The target is a random Llama of two layers that comes with the references. A drafter is a callable with an attribute `depth`; it may
# look at committed tokens only. This one counts which token followed which in texts that the target wrote before: row d is what
# d + 1 steps of that chain say after the root.

# %%
golden = kdtr.read(resources.files("kdtree_cupy.refs") / "golden" / "greedy_step_gqa.kdtr")
weights = {name[8:]: array for name, array in golden.arrays.items() if name.startswith("weights.")}
model, rng = Model(from_dict(golden.header["config"]), weights), np.random.default_rng(0)
V = model.vocab_size
early, prompts = (list(rng.integers(0, V, (count, 8), np.int32)) for count in (60, 8))
counts = np.full((V, V), 0.05)  # how often a token followed another, and a little
for text in generate(model, early, mode="ar", max_new=NEW).tokens:
    np.add.at(counts, (text[:-1], text[1:]), 1)
counts /= counts.sum(1, keepdims=True)
after = np.log([np.linalg.matrix_power(counts, d + 1) for d in range(D)])  # [D, V, V]


def drafter(contexts, width):
    logprobs = np.swapaxes(after[:, [context.tokens[-1] for context in contexts]], 0, 1).astype(np.float32)
    ids = np.argsort(-logprobs, axis=-1, kind="stable")[..., :width]  # best first, ties by the lower id
    return ids, np.take_along_axis(logprobs, ids, axis=-1)


drafter.depth = D
ids, logprobs = drafter([Context(prompts[0])], K)
assert ids.shape == logprobs.shape == (1, D, K) and (np.diff(logprobs) <= 0).all()
assert model.config.num_hidden_layers == 2

# %% [markdown]
# ## 2. Record it, and study the trace
#
# `record` decodes plainly, then asks the drafter at every position. The trace replays to what live decoding with trees does,
# token for token and round for round.

# %%
header = {"target": "random Llama, 2 layers", "drafter": "bigram chain", "name": "mine"}
trace = load_trace(record(model, prompts, drafter, folder / "mine.kdtr", width=K, max_new=NEW, header=header))
live = generate(model, prompts, mode="ddtree", drafter=drafter, budget=16, max_new=NEW)
replayed = jump(trace, acceptance(trace, ddtree, [16]).accepted[:, 0])
print(f"tau at 16 nodes, pooled: live {live.tau:.3f}, replayed {tau_pooled(replayed):.3f}")
assert len(live.rounds) == replayed.root.size and live.tau == tau_pooled(replayed)
assert (np.concatenate(live.tokens) == trace.tokens).all()
study = run_study([trace], budgets=[2, 4, 8, 16, 32])
plots.plot_tau(study)
plt.show()
best = {r["policy"]: r["tau_pooled"] for r in study.select(budget=32, subset="all")}
assert best["ddtree"] >= best["chain"]

# %% [markdown]
# ## 3. The same from a Hugging Face model, or from anything
#
# `record.hf` takes a causal language model of transformers. Given the same weights it writes the same trace. Without torch,
# `TraceWriter` does: any framework's tokens, and `draft_rows` for the drafter.

# %%
if not missing:
    from transformers import LlamaConfig, LlamaForCausalLM

    llama = LlamaForCausalLM(LlamaConfig(**golden.header["config"])).eval()
    llama.load_state_dict({k: torch.tensor(v.astype(np.float32)) for k, v in weights.items()}, strict=False)
    hf.record(llama, prompts, drafter, folder / "other.kdtr", width=K, max_new=NEW, header=header)
else:
    print("not installed:", *missing, "- a trace is written by hand instead")
    with TraceWriter(folder / "other.kdtr", {"vocab_size": V} | header) as writer:
        for prompt, response in zip(prompts, live.tokens, strict=True):
            rows = draft_rows(drafter, np.concatenate([prompt, response]), None, len(prompt), K, V)
            writer.append(response, rows.ids, rows.logprobs, draft_next_logprob=rows.next_logprob)
other = load_trace(folder / "other.kdtr")
assert (other.tokens == trace.tokens).all() and (other.draft_ids == trace.draft_ids).all()

# %% [markdown]
# ## 4. Recorded rounds through torch operators and SGLang's functions
#
# `torch.ops.kdtree_cupy` holds the stages; `sglang_bridge` has the signatures of SGLang's own tree functions. Each recorded position
# is a round: the greedy walk must accept what replay says.

# %%
at = np.flatnonzero(uncensored_positions(trace))[:64]
n, batch = 17, at.size  # nodes, root included
ids, logprobs = np.asarray(trace.draft_ids[at], np.int32), np.asarray(trace.draft_logprobs[at])
lengths, roots = at.astype(np.int32), trace.tokens[at].astype(np.int32)
tree = kd.tree_build(ids, logprobs, roots, n - 1, lengths=lengths, num_nodes=n).tree
after = at[:, None] + np.minimum(
    tree.depths + 1, D
)  # what the target writes there: right on the recorded path
targets = trace.tokens[after].astype(np.int32)
wanted = acceptance(trace, ddtree, [n - 1]).accepted[at, 0]
if torch:
    to, budget = torch.from_numpy, torch.full((batch,), n - 1, dtype=torch.int32)
    built = register().tree_build(to(ids), to(logprobs), to(roots), budget, n)
    assert (built[1].numpy() == tree.parents).all()
    out = build_ddtree(to(roots), to(ids), to(logprobs), to(lengths), int(lengths.sum()), n, 1)
    written = [torch.full(shape, -1, dtype=torch.int32) for shape in ((batch * n,), (batch, D + 1), (batch,))]
    verify_tree_greedy(*written, out.draft_tokens.view(batch, n), *out[2:5], to(targets).long())
    accepted = written[2].numpy()
else:
    print("not installed: torch - the stages run on numpy arrays instead")
    accepted = kd.tree_accept(tree, targets, max_depth=D).path_length - 1
print(f"of {batch} rounds this many accept 0, 1, ... drafts:", np.bincount(accepted))
assert (accepted == wanted).all()
