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
# # 01 · One round of draft-tree decoding, every array looked at
#
# A block drafter looks at the text once and gives a distribution for each of the next D positions. DDTree turns
# them into the best tree of B candidate tokens, the target model verifies the whole tree in one pass, and the
# longest path it agrees with is committed. This notebook does one such round on a toy model small enough to
# print. It runs on any machine: the references are plain numpy.

# %%
import matplotlib.pyplot as plt
import numpy as np

import kdtree_cupy as kd
from kdtree_cupy import masks, style

plt.rcParams.update(style.RC)
rng = np.random.default_rng(7)
D, V, K, B = 4, 20, 5, 10  # drafted positions, vocabulary, ranks kept, draft nodes

# %% [markdown]
# ## 1. The drafter's logits become sorted log-probs
#
# `topk_logprob` keeps the K best tokens of every position. Ties go to the lower id: with bfloat16 logits nearly
# every row has ties, so the rule decides whether two systems build the same tree.

# %%
draft_logits = (3 * rng.normal(size=(1, D, V))).astype(np.float32)
ids, logprobs, status = kd.topk_logprob(draft_logits, K)
print("tokens\n", ids[0])
print("log-probs\n", logprobs[0].round(2))
assert (np.diff(logprobs, axis=-1) <= 0).all() and status[0] == 0

# %% [markdown]
# ## 2. The tree of the B most probable continuations
#
# A node is a path of ranks; its score is the sum of the log-probs on the way. The tree holds the B best paths, in
# the order best-first search finds them: parents before children, scores never rising.

# %%
root, prefix = 3, 6  # last committed token, and how many tokens came before it
lengths = np.int32([prefix])
tree, mask, positions = kd.tree_build(ids, logprobs, [root], B, lengths=lengths)
print(tree)
print(tree.to_text())
assert (np.diff(tree.scores[0]) <= 0).all()
assert tree.check() is tree

# %% [markdown]
# ## 3. Who sees whom
#
# Each node attends to the whole prefix, to its ancestors and to itself. The kernels read that as one bit per
# pair; here the bits are unpacked. Two siblings share a position but never see each other.

# %%
dense = masks.bool_mask(tree)[0]
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
left.imshow(dense, cmap="Blues")
left.set(title="ancestor mask", xlabel="node seen", ylabel="node", xticks=range(B + 1), yticks=range(B + 1))
left.grid(False)
tree.draw(right)
plt.show()
print("positions", positions[0].tolist())
assert (dense.sum(1) == tree.depths[0] + 1).all()
assert (positions[0] == prefix + tree.depths[0]).all()

# %% [markdown]
# ## 4. The target reads the whole tree in one pass
#
# `verify_attn` is the attention of that pass, in the absorbed MLA form of DeepSeek and Kimi models: a cache row
# is 512 latent numbers, which serve as key and value, and 64 rotary ones. Node 0 must get what plain causal
# attention over prefix and root would give.

# %%
H = 2
q = rng.normal(size=(1, B + 1, H, 576)).astype(np.float32)
cache = rng.normal(size=(1, prefix + D + 1, 576)).astype(np.float32)
tree_kv = rng.normal(size=(1, B + 1, 576)).astype(np.float32)
scale = 192**-0.5
out, lse = kd.verify_attn(q, cache, tree_kv, mask, lengths, scale=scale, counts=tree.counts)

rows = np.concatenate([cache[0, :prefix], tree_kv[0, :1]]).astype(np.float64)
weights = np.exp(scale * rows @ q[0, 0].T)
by_hand = (weights / weights.sum(0)).T @ rows[:, :512]
print("largest difference from the formula:", np.abs(out[0, 0] - by_hand).max())
assert np.abs(out[0, 0] - by_hand).max() < 1e-6

# %% [markdown]
# ## 5. What the target would have said, and how far the tree agrees
#
# A real model turns `out` into logits. Here they are made up so that the target takes the drafter's *second*
# choice at depth 2: a chain would have stopped there. `target_token` picks a token at every node, `tree_accept`
# walks from the root.

# %%
target_logits = rng.normal(size=(1, B + 1, V)).astype(np.float32)
node = int(np.flatnonzero((tree.ranks[0] == 1) & (tree.depths[0] == 2))[0])
while node > 0:  # the target's favourites on the way from the root to that node
    target_logits[0, tree.parents[0, node], tree.tokens[0, node]] = 10
    node = int(tree.parents[0, node])
targets, _ = kd.target_token(target_logits)
path, path_length, next_token, _ = kd.tree_accept(tree, targets)
accepted = int(path_length[0]) - 1
print(f"{accepted} drafts accepted, next root: token {next_token[0]}; path of nodes {path[0].tolist()}")
tree.draw(path=path[0], title=f"accepted path: {accepted} of {B} drafts")
plt.show()
assert accepted >= 2
assert tree.ranks[0, path[0, 2]] == 1

# %% [markdown]
# ## 6. Commit
#
# The KV rows of the path move to the end of the prefix; everything else in the tree is forgotten. The round
# produced `path_length` tokens (accepted drafts and the target's own next one), and a new round starts.

# %%
new_lengths, _ = kd.kv_commit(cache[None], path, path_length, lengths, tree_kv=tree_kv[None])
assert new_lengths[0] == prefix + path_length[0]
moved = cache[0, prefix : new_lengths[0]]
assert (moved == tree_kv[0, path[0, : path_length[0]]]).all()
print(f"prefix grew from {prefix} to {new_lengths[0]} rows; this round was worth {path_length[0]} tokens")
