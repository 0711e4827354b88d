"""Every stage as a torch operator, ``torch.ops.kdtree_cupy.<stage>``: for models, graphs, ``torch.compile``.

    from kdtree_cupy.torch_ops import register
    ops = register()                       # once a process; imports torch
    ids, logprobs, status = ops.topk_logprob(logits, 64)

CPU tensors go to the host backend, CUDA tensors to the device, on torch's current stream, without a wait and
with memory of torch's allocator, so that a call can be part of a ``torch.cuda.CUDAGraph`` after one call
before (which compiles, and takes scratch memory).  Differences to the stage functions, which have the
documentation: a record is a flat tuple of tensors; a number per request is a tensor; mask words are int32, of
the same bits, because torch has few operations on uint32; caches are a list of layers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from .kv_commit import kv_commit
from .stage_run import leaves
from .target_token import target_token
from .topk_logprob import topk_logprob
from .tree import DraftTree
from .tree_accept import tree_accept
from .tree_build import tree_build
from .verify_attn import verify_attn
from .verify_attn_gqa import verify_attn_gqa

if TYPE_CHECKING:
    from torch import Tensor

SCHEMAS = {
    "topk_logprob": "(Tensor logits, int k, float temperature=1.0, int? valid_vocab=None, "
    "Tensor? vocab_map=None) -> (Tensor ids, Tensor logprobs, Tensor status)",
    "tree_build": "(Tensor ids, Tensor logprobs, Tensor root_tokens, Tensor budget, int num_nodes, "
    "Tensor? lengths=None, Tensor? max_depth=None, Tensor? max_rank=None) -> "
    "(Tensor tokens, Tensor parents, Tensor depths, Tensor ranks, Tensor scores, Tensor counts, "
    "Tensor status, Tensor mask, Tensor positions)",
    "verify_attn": "(Tensor q, Tensor cache, Tensor? tree_kv, Tensor mask, Tensor lengths, float scale, "
    'Tensor? counts=None, Tensor? page_table=None, str splits="auto", float? kv_scale=None, '
    "str? out_dtype=None) -> (Tensor out, Tensor lse)",
    "verify_attn_gqa": "(Tensor q, Tensor k_cache, Tensor? v_cache, Tensor? tree_k, Tensor? tree_v, "
    "Tensor mask, Tensor lengths, float scale, Tensor? counts=None, Tensor? page_table=None, "
    'str splits="auto", float? k_scale=None, float? v_scale=None, str? out_dtype=None) -> '
    "(Tensor out, Tensor lse)",
    "target_token": "(Tensor logits, float temperature=0.0, float top_p=1.0, Tensor? uniforms=None, "
    "int? valid_vocab=None) -> (Tensor tokens, Tensor status)",
    "tree_accept": "(Tensor tokens, Tensor parents, Tensor counts, Tensor target_tokens, int max_depth) -> "
    "(Tensor path, Tensor path_length, Tensor next_token, Tensor status)",
    "kv_commit": "(Tensor(a!)[] caches, Tensor path, Tensor path_length, Tensor lengths, "
    "Tensor[]? tree_kv=None, Tensor? page_table=None) -> (Tensor new_lengths, Tensor status)",
}
"""Signature of each operator."""


@lru_cache(maxsize=1)
def register() -> Any:
    """Register the operators and return ``torch.ops.kdtree_cupy``.

    Raises
    ------
    ImportError
        There is no torch, or one older than 2.4.
    """
    import torch

    if not hasattr(torch.library, "custom_op"):
        raise ImportError(f"torch: got {torch.__version__}, wanted 2.4 or newer")
    for name, (run, fake) in _implementations(torch).items():
        mutated = ("caches",) if name == "kv_commit" else ()
        made = torch.library.custom_op(
            f"kdtree_cupy::{name}", run, mutates_args=mutated, schema=SCHEMAS[name]
        )
        made.register_fake(fake)
    return torch.ops.kdtree_cupy


Pair = tuple[Callable[..., Any], Callable[..., Any]]


def _implementations(torch: Any) -> dict[str, Pair]:
    return {
        "topk_logprob": (_topk_logprob, _fake_topk_logprob(torch)),
        "tree_build": (_tree_build(torch), _fake_tree_build(torch)),
        "verify_attn": (_verify_attn(torch), _fake_verify_attn(torch, 512)),
        "verify_attn_gqa": (_verify_attn_gqa(torch), _fake_verify_attn(torch)),
        "target_token": (_target_token, _fake_target_token(torch)),
        "tree_accept": (_tree_accept(torch), _fake_tree_accept(torch)),
        "kv_commit": (_kv_commit, _fake_kv_commit(torch)),
    }


def _topk_logprob(
    logits: Tensor, k: int, temperature: float = 1.0, valid_vocab: int | None = None,
    vocab_map: Tensor | None = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    return tuple(
        topk_logprob(logits, k, temperature=temperature, valid_vocab=valid_vocab, vocab_map=vocab_map)
    )


def _fake_topk_logprob(torch: Any) -> Callable[..., Any]:
    def fake(logits: Tensor, k: int, *_: Any, **__: Any) -> tuple[Tensor, ...]:
        batch, depth, _vocab = logits.shape
        ids = logits.new_empty((batch, depth, k), dtype=torch.int32)
        return ids, torch.empty_like(ids, dtype=torch.float32), ids.new_empty((batch,))

    return fake


def _tree_build(torch: Any) -> Callable[..., Any]:
    def run(
        ids: Tensor, logprobs: Tensor, root_tokens: Tensor, budget: Tensor, num_nodes: int,
        lengths: Tensor | None = None, max_depth: Tensor | None = None, max_rank: Tensor | None = None,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        if lengths is None:
            lengths = torch.zeros_like(root_tokens)
        built = tree_build(
            ids, logprobs, root_tokens, budget, lengths=lengths, num_nodes=num_nodes,
            max_depth=max_depth, max_rank=max_rank,
        )  # fmt: skip
        found = leaves(built)
        return tuple(x.view(torch.int32) if name == "mask" else x for name, x in found.items())

    return run


def _fake_tree_build(torch: Any) -> Callable[..., Any]:
    def fake(
        ids: Tensor, logprobs: Tensor, root_tokens: Tensor, budget: Tensor, num_nodes: int, *_: Any, **__: Any
    ) -> tuple[Tensor, ...]:
        batch = ids.shape[0]
        nodes = [ids.new_empty((batch, num_nodes)) for _ in range(4)]
        scores = ids.new_empty((batch, num_nodes), dtype=torch.float64)
        words = ids.new_empty((batch, num_nodes, -(-num_nodes // 32)))
        return (*nodes, scores, ids.new_empty((batch,)), ids.new_empty((batch,)), words,
                ids.new_empty((batch, num_nodes)))  # fmt: skip

    return fake


def _verify_attn(torch: Any) -> Callable[..., Any]:
    def run(
        q: Tensor, cache: Tensor, tree_kv: Tensor | None, mask: Tensor, lengths: Tensor, scale: float,
        counts: Tensor | None = None, page_table: Tensor | None = None, splits: str = "auto",
        kv_scale: float | None = None, out_dtype: str | None = None,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        wanted = int(splits) if splits.isdigit() else splits
        return tuple(
            verify_attn(
                q, cache, tree_kv, mask.view(torch.uint32), lengths, scale=scale, counts=counts,
                page_table=page_table, splits=wanted, kv_scale=kv_scale, out_dtype=out_dtype,
            )
        )  # fmt: skip

    return run


def _verify_attn_gqa(torch: Any) -> Callable[..., Any]:
    def run(  # noqa: PLR0913 (the stage's arguments)
        q: Tensor, k_cache: Tensor, v_cache: Tensor | None, tree_k: Tensor | None, tree_v: Tensor | None,
        mask: Tensor, lengths: Tensor, scale: float, counts: Tensor | None = None,
        page_table: Tensor | None = None, splits: str = "auto", k_scale: float | None = None,
        v_scale: float | None = None, out_dtype: str | None = None,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        wanted = int(splits) if splits.isdigit() else splits
        return tuple(
            verify_attn_gqa(
                q, k_cache, v_cache, tree_k, tree_v, mask.view(torch.uint32), lengths, scale=scale,
                counts=counts, page_table=page_table, splits=wanted, k_scale=k_scale, v_scale=v_scale,
                out_dtype=out_dtype,
            )
        )  # fmt: skip

    return run


def _fake_verify_attn(torch: Any, width: int | None = None) -> Callable[..., Any]:
    """Return the shapes of an attention's results; ``width`` None: results are as wide as queries."""

    def fake(q: Tensor, *_: Any, out_dtype: str | None = None, **__: Any) -> tuple[Tensor, ...]:
        batch, nodes, heads, own = q.shape
        result = q.dtype if out_dtype is None else getattr(torch, out_dtype)
        out = q.new_empty((batch, nodes, heads, width or own), dtype=result)
        return out, q.new_empty((batch, nodes, heads), dtype=torch.float32)

    return fake


def _target_token(
    logits: Tensor, temperature: float = 0.0, top_p: float = 1.0, uniforms: Tensor | None = None,
    valid_vocab: int | None = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    return tuple(
        target_token(logits, temperature=temperature, top_p=top_p, uniforms=uniforms, valid_vocab=valid_vocab)
    )


def _fake_target_token(torch: Any) -> Callable[..., Any]:
    def fake(logits: Tensor, *_: Any, **__: Any) -> tuple[Tensor, ...]:
        batch, nodes, _vocab = logits.shape
        tokens = logits.new_empty((batch, nodes), dtype=torch.int32)
        return tokens, tokens.new_empty((batch,))

    return fake


def _tree_accept(torch: Any) -> Callable[..., Any]:
    def run(
        tokens: Tensor, parents: Tensor, counts: Tensor, target_tokens: Tensor, max_depth: int
    ) -> tuple[Tensor, ...]:
        scores = torch.empty(tokens.shape, dtype=torch.float64, device=tokens.device)  # looked at by no one
        tree = DraftTree(tokens, parents, parents, parents, scores, counts, counts)
        return tuple(tree_accept(tree, target_tokens, max_depth=max_depth))

    return run


def _fake_tree_accept(torch: Any) -> Callable[..., Any]:
    def fake(
        tokens: Tensor, parents: Tensor, counts: Tensor, target_tokens: Tensor, max_depth: int
    ) -> tuple[Tensor, ...]:
        batch = tokens.shape[0]
        return tokens.new_empty((batch, max_depth + 1)), *(tokens.new_empty((batch,)) for _ in range(3))

    return fake


def _kv_commit(
    caches: list[Tensor], path: Tensor, path_length: Tensor, lengths: Tensor,
    tree_kv: list[Tensor] | None = None, page_table: Tensor | None = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    rows = None if tree_kv is None else list(tree_kv)
    return tuple(kv_commit(list(caches), path, path_length, lengths, tree_kv=rows, page_table=page_table))


def _fake_kv_commit(torch: Any) -> Callable[..., Any]:
    def fake(
        caches: list[Tensor], path: Tensor, path_length: Tensor, lengths: Tensor, *_: Any, **__: Any
    ) -> tuple[Tensor, ...]:
        return torch.empty_like(lengths), torch.empty_like(lengths)

    return fake
