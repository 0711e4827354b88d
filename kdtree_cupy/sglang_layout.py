"""Layouts of a tree as SGLang's speculative workers exchange it; :mod:`.sglang_bridge` has the functions."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from . import masks
from .tree import DraftTree

if TYPE_CHECKING:
    from torch import Tensor


class TreeMaskMode(IntEnum):
    """Layouts of the tree mask, numbered as SGLang does; a visible pair is True, or a bit that is set."""

    FULL_MASK = 0
    QLEN_ONLY = 1
    QLEN_ONLY_BITPACKING = 2


class TreeOutputs(NamedTuple):
    """What SGLang's ``build_tree_kernel_efficient`` returns, in its order.

    Attributes
    ----------
    tree_mask : bool or unsigned, flat
        FULL_MASK: per request n rows of seq_len + n values, requests back to back.  QLEN_ONLY: n * n values
        a request.  QLEN_ONLY_BITPACKING: one word of 8, 16 or 32 bits a row, n at most 32; node j is bit j.
    positions : int64 [b * n]
        seq_len + depth.
    retrieve_index : int64 [b, n]
        Row in the flattened batch: b * n + i.
    retrieve_next_token, retrieve_next_sibling : int64 [b, n]
        First child and next sibling, indices inside the request; -1 if none.  Siblings in node order.
    draft_tokens : int64 [b * n]
        Root first.
    """

    tree_mask: Tensor
    positions: Tensor
    retrieve_index: Tensor
    retrieve_next_token: Tensor
    retrieve_next_sibling: Tensor
    draft_tokens: Tensor


def outputs(
    tree: DraftTree,
    seq_lens: Tensor,
    seq_lens_sum: int,
    mode: int,
    buffers: tuple[Tensor | None, Tensor | None] = (None, None),
    *,
    library: Any = None,
) -> TreeOutputs:
    """Return a tree of torch tensors in SGLang's layouts; ``buffers`` are those for mask and positions."""
    import torch

    visible = masks.bool_mask(tree, library=library)
    depth = visible.sum(-1, dtype=torch.int64) - 1
    mask = _into(buffers[0], tree_mask(visible, seq_lens, seq_lens_sum, mode))
    positions = _into(buffers[1], (seq_lens[:, None] + depth).flatten())
    triple = masks.retrieve(tree, library=library)
    return TreeOutputs(mask, positions, *triple, tree.tokens.flatten().to(torch.int64))


def _into(buffer: Tensor | None, value: Tensor) -> Tensor:
    if buffer is None:
        return value
    flat = buffer.view(-1)
    if flat.dtype != value.dtype or flat.numel() < value.numel():
        got, wanted = f"{flat.numel()} of {flat.dtype}", f"at least {value.numel()} of {value.dtype}"
        raise ValueError(f"buffer: got {got}, wanted {wanted}")
    flat[: value.numel()] = value
    return buffer


def tree_mask(visible: Tensor, seq_lens: Tensor, seq_lens_sum: int, mode: int) -> Tensor:
    """Return bool [b, n, n] in one of SGLang's layouts (:class:`TreeOutputs`)."""
    import torch

    batch, n, _ = visible.shape
    if mode == TreeMaskMode.QLEN_ONLY:
        return visible.flatten()
    if mode == TreeMaskMode.QLEN_ONLY_BITPACKING:
        if n > 32:
            raise ValueError(f"num_verify_tokens: got {n}, wanted at most 32 for QLEN_ONLY_BITPACKING")
        bits = torch.arange(n, device=visible.device)
        words = (visible.to(torch.int64) << bits).sum(-1)
        kinds = (torch.uint8, torch.uint16, torch.uint32)
        return words.flatten().to(kinds[(n > 8) + (n > 16)])
    if mode != TreeMaskMode.FULL_MASK:
        raise ValueError(f"tree_mask_mode: got {mode}, wanted 0, 1 or 2")
    lengths = seq_lens.to(torch.int64)
    begin = (torch.cumsum(lengths, 0) - lengths) * n + torch.arange(batch, device=visible.device) * n * n
    row = torch.arange(n, device=visible.device)
    first = begin[:, None] + row * (lengths[:, None] + n) + lengths[:, None]  # of each row's tree part
    full = torch.ones(seq_lens_sum * n + n * n * batch, dtype=torch.bool, device=visible.device)
    full[(first[:, :, None] + row).flatten()] = visible.flatten()
    return full
