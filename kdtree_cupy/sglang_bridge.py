"""DDTree in SGLang: functions with the signatures and results of its tree kernels, on torch tensors.

Swap 1, the tree builder, and swap 2, the greedy verifier, are an import line each::

    from kdtree_cupy.sglang_bridge import build_ddtree            # instead of a build on the CPU
    from kdtree_cupy.sglang_bridge import verify_tree_greedy      # instead of sgl_kernel's

``docs/sglang_integration.md`` says where they go and how to check that tokens stay the same.  Nothing here
imports SGLang.  Everything runs where the tensors are, on torch's current stream, without a wait.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from . import checks, stage_run
from .library.resolve import resolve
from .refs import tree_accept_lists as reference
from .sglang_layout import TreeMaskMode, TreeOutputs, outputs
from .tree import DraftTree
from .tree_build import tree_build

if TYPE_CHECKING:
    from torch import Tensor


def build_ddtree(
    bonus_tokens: Tensor,
    draft_ids: Tensor,
    draft_logprobs: Tensor,
    seq_lens: Tensor,
    seq_lens_sum: int,
    num_verify_tokens: int,
    tree_mask_mode: int = TreeMaskMode.FULL_MASK,
    tree_mask_buf: Tensor | None = None,
    position_buf: Tensor | None = None,
    *,
    budgets: Tensor | None = None,
    library: Any = None,
) -> TreeOutputs:
    """Build DDTree trees on the device from the drafter's top-k: swap 1.

    Parameters
    ----------
    bonus_tokens : int [b]
        Last committed token of each request, the root.
    draft_ids, draft_logprobs : int32, float32 [b, D, K]
        As from :func:`kdtree_cupy.topk_logprob`.
    seq_lens : int [b]
        Tokens in the cache; ``seq_lens_sum`` is their sum, known to the host (FULL_MASK needs it for a size).
    num_verify_tokens : int
        n, root included.  A tree that ends earlier is padded: rows that see themselves, that nobody steps to.
    tree_mask_mode, tree_mask_buf, position_buf
        As in SGLang; a buffer is written from its first element on and returned.
    budgets : int32 [b], optional
        Draft nodes of each request, at most n - 1 (the default).

    Raises
    ------
    ValueError
        Bit packing with n > 32, or a size that does not fit.
    """
    torch = _torch()
    roots, lengths = bonus_tokens.to(torch.int32), seq_lens.to(torch.int32)
    if budgets is None:
        budgets = torch.full_like(roots, num_verify_tokens - 1)
    built = tree_build(
        draft_ids, draft_logprobs, roots, budgets,
        lengths=lengths, num_nodes=num_verify_tokens, library=library,
    )  # fmt: skip
    buffers = (tree_mask_buf, position_buf)
    return outputs(built.tree, seq_lens, seq_lens_sum, tree_mask_mode, buffers, library=library)


def build_tree_kernel_efficient(
    bonus_tokens: Tensor,
    parent_list: Tensor,
    top_scores_index: Tensor,
    draft_tokens: Tensor,
    seq_lens: Tensor,
    seq_lens_sum: int,
    topk: int,
    spec_steps: int,
    num_verify_tokens: int,
    tree_mask_mode: int = TreeMaskMode.FULL_MASK,
    tree_mask_buf: Tensor | None = None,
    position_buf: Tensor | None = None,
) -> TreeOutputs:
    """Take a tree as EAGLE drafting selects it, and return what SGLang's function of this name returns.

    Parameters
    ----------
    bonus_tokens : int [b]
    parent_list : int64 [b, topk * (spec_steps - 1) + 1]
        Candidate number of each expanded node; entry 0 is not read.
    top_scores_index : int64 [b, n - 1]
        Ascending numbers of the chosen candidates: ``topk`` children of the root first, then ``topk``
        children of each entry of ``parent_list``.
    draft_tokens : int [b, n - 1]
        Their tokens.
    seq_lens, seq_lens_sum, num_verify_tokens, tree_mask_mode, tree_mask_buf, position_buf
        As in :func:`build_ddtree`.

    Notes
    -----
    A candidate whose parent was not chosen is nobody's child, and sees the prefix and itself.
    """
    torch = _torch()
    batch, drafts = top_scores_index.shape
    if drafts != num_verify_tokens - 1:
        raise ValueError(f"top_scores_index: got {drafts} columns, wanted {num_verify_tokens - 1}")
    group = torch.div(top_scores_index, topk, rounding_mode="floor")
    candidate = (
        torch.gather(parent_list, 1, group.clamp(max=parent_list.shape[1] - 1)) if spec_steps > 1 else group
    )
    found = (top_scores_index[:, None, :] == candidate[:, :, None]) & (group > 0)[:, :, None]
    parent = torch.where(found.any(-1), found.to(torch.int32).argmax(-1) + 1, -1)
    parent = torch.where(group == 0, 0, parent).to(torch.int32)
    shape = (batch, num_verify_tokens)
    parents = torch.full(shape, -1, dtype=torch.int32, device=seq_lens.device)
    parents[:, 1:] = parent
    tokens = torch.cat([bonus_tokens[:, None], draft_tokens], 1).to(torch.int32)
    counts = torch.full((batch,), num_verify_tokens, dtype=torch.int32, device=seq_lens.device)
    scores = torch.zeros(shape, dtype=torch.float64, device=seq_lens.device)
    tree = DraftTree(tokens, parents, parents, parents, scores, counts, counts)  # depths follow from the mask
    return outputs(tree, seq_lens, seq_lens_sum, tree_mask_mode, (tree_mask_buf, position_buf))


def verify_tree_greedy(
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    target_predict: Tensor,
    *,
    library: Any = None,
) -> None:
    """Walk each tree along the target's tokens, writing the first three arguments in place: swap 2.

    Parameters
    ----------
    predicts : int32 [rows]
        Written at the rows of accepted nodes: the target's token there.
    accept_index : int32 [b, W]
        Rows of the path, root first, padded with -1.
    accept_token_num : int32 [b]
        Accepted drafts, root not counted.
    candidates : int64 [b, n]
        Tokens of the nodes.
    retrive_index, retrive_next_token, retrive_next_sibling : int64 [b, n]
        As in :class:`TreeOutputs`.
    target_predict : int64 [b, n]
        Token that the target chose after each node.

    Notes
    -----
    Unlike the original it ends on any lists, cyclic or out of range, and pads ``accept_index`` itself.
    """
    dims = checks.Dims()
    names = ("candidates", "retrive_index", "retrive_next_token", "retrive_next_sibling", "target_predict")
    values = (candidates, retrive_index, retrive_next_token, retrive_next_sibling, target_predict)
    lists = [
        checks.array(value, name, "int64", "b n", dims) for name, value in zip(names, values, strict=True)
    ]
    checks.array(predicts, "predicts", "int32", "rows", dims)
    checks.array(accept_index, "accept_index", "int32", "b W", dims)
    checks.array(accept_token_num, "accept_token_num", "int32", "b", dims)
    rows = min(dims["rows"], dims["b"] * dims["n"])
    written = (predicts, accept_index, accept_token_num)
    run = resolve(library, dict(zip(names, lists, strict=True)) | {"predicts": predicts})
    if run.backend == "numpy":
        host = [run.numpy(value) for value in lists]
        got = reference.tree_accept_lists(*host[:4], host[4].ravel()[:rows], run.numpy(predicts), dims["W"])
        stage_run.deliver(run, written, got)
        return
    run.launch(
        "tree_accept_lists.cu", "tree_accept_lists_v1", -(-dims["b"] // 32), 32,
        [*lists, *written, dims["b"], dims["n"], dims["W"], np.int64(rows)],
    )  # fmt: skip


def _torch() -> Any:
    import torch

    return torch
