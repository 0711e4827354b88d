"""Stages as torch operators: the results of the stage functions, fakes with the same shapes and types."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import library_of

import kdtree_cupy as kd
from kdtree_cupy.stage_run import leaves

torch = pytest.importorskip("torch", reason="torch is not installed")
from kdtree_cupy.torch_ops import SCHEMAS, register  # noqa: E402  after the skip

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.fixture(params=DEVICES)
def device(request):
    library_of("host" if request.param == "cpu" else "cuda")
    return request.param


@pytest.fixture(scope="module")
def ops():
    return register()


def inputs(device):
    """Return arguments of every operator, small, in the order of a round."""
    generator = torch.Generator().manual_seed(0)
    to = lambda x: x.to(device)  # noqa: E731
    logits = to(3 * torch.randn(2, 3, 50, generator=generator))
    roots, budget = to(torch.tensor([1, 2], dtype=torch.int32)), to(torch.tensor([8, 5], dtype=torch.int32))
    lengths = to(torch.tensor([4, 6], dtype=torch.int32))
    top = kd.topk_logprob(logits, 8)
    built = kd.tree_build(top.ids, top.logprobs, roots, budget, lengths=lengths, num_nodes=9)
    tree = built.tree
    q, cache, tree_kv = (to(torch.randn(*s, 576, generator=generator)) for s in ((2, 9, 2), (2, 16), (2, 9)))
    targets = tree.tokens.roll(-1, 1).contiguous()
    accepted = kd.tree_accept(tree, targets, max_depth=3)
    caches = [to(torch.randn(2, 32, 5, generator=generator)) for _ in range(3)]
    return {
        "topk_logprob": (logits, 8),
        "tree_build": (top.ids, top.logprobs, roots, budget, 9, lengths),
        "verify_attn": (q, cache, tree_kv, built.mask.view(torch.int32), lengths, 0.07, tree.counts),
        "verify_attn_gqa": (*grouped(to, generator), built.mask.view(torch.int32), lengths, 0.1, tree.counts),
        "target_token": (to(torch.randn(2, 9, 50, generator=generator)),),
        "tree_accept": (tree.tokens, tree.parents, tree.counts, targets, 3),
        "kv_commit": (caches, accepted.path, accepted.path_length, lengths),
    }


def grouped(to, generator):
    """Return queries of 4 heads, and keys and values of 2 KV heads, of caches and of the tree."""
    shapes = ((2, 9, 4, 64), *[(2, 16, 2, 64)] * 2, *[(2, 9, 2, 64)] * 2)
    return [to(torch.randn(*shape, generator=generator)) for shape in shapes]


def stage(name, arguments):
    """Return what the stage function gives for an operator's arguments, as a flat tuple."""
    if name == "tree_build":
        *first, nodes, lengths = arguments
        return tuple(leaves(kd.tree_build(*first, num_nodes=nodes, lengths=lengths)).values())
    if name == "verify_attn":
        q, cache, tree_kv, mask, lengths, scale, counts = arguments
        return kd.verify_attn(q, cache, tree_kv, mask.view(torch.uint32), lengths, scale=scale, counts=counts)
    if name == "verify_attn_gqa":
        *rows, mask, lengths, scale, counts = arguments
        return kd.verify_attn_gqa(*rows, mask.view(torch.uint32), lengths, scale=scale, counts=counts)
    if name == "tree_accept":
        tokens, parents, counts, targets, depth = arguments
        scores = torch.zeros(tokens.shape, dtype=torch.float64, device=tokens.device)
        tree = kd.DraftTree(tokens, parents, parents, parents, scores, counts, counts)
        return kd.tree_accept(tree, targets, max_depth=depth)
    return getattr(kd, name)(*arguments)


def same(one, other):
    one, other = (x.view(torch.int32) if x.dtype == torch.uint32 else x for x in (one, other))
    assert one.dtype == other.dtype and one.device == other.device
    np.testing.assert_array_equal(one.cpu().numpy(), other.cpu().numpy())


@pytest.mark.parametrize("name", SCHEMAS)
def test_operators_are_the_stages(ops, device, name):
    got = getattr(ops, name)(*inputs(device)[name])
    again = inputs(device)[name]  # kv_commit writes
    for one, other in zip(got, stage(name, again), strict=True):
        same(one, other)


@pytest.mark.parametrize("name", SCHEMAS)
def test_fakes_and_schemas_hold(ops, device, name):
    arguments = inputs(device)[name]
    operator = getattr(ops, name).default
    torch.library.opcheck(operator, arguments, test_utils=("test_schema", "test_faketensor"))


def test_kv_commit_writes_the_caches(ops, device):
    caches, path, path_length, lengths = inputs(device)["kv_commit"]
    before = [c.clone() for c in caches]
    new, status = ops.kv_commit(caches, path, path_length, lengths)
    assert not status.any() and (new == lengths + path_length).all()
    for old, cache in zip(before, caches, strict=True):
        for b in range(2):
            n, at = int(path_length[b]), int(lengths[b])
            rows = old[b, at + path[b, :n].long()]
            same(cache[b, at : at + n], rows)


def test_a_round_in_one_traced_function(ops, device):
    """``torch.compile`` sees the whole chain as one graph: no break at an operator."""

    def chain(logits, roots, budget):
        ids, logprobs, _ = ops.topk_logprob(logits, 8)
        tokens, parents, _, _, _, counts, _, _, _ = ops.tree_build(ids, logprobs, roots, budget, 9)
        path, length, following, _ = ops.tree_accept(tokens, parents, counts, tokens + 1, 3)
        return tokens * 2, path, length, following

    given = inputs(device)
    arguments = (given["topk_logprob"][0], *given["tree_build"][2:4])
    compiled = torch.compile(chain, fullgraph=True, backend="eager")
    for one, other in zip(compiled(*arguments), chain(*arguments), strict=True):
        same(one, other)


@pytest.mark.gpu
def test_operators_in_a_cuda_graph(ops):
    library_of("cuda")
    logits, k = inputs("cuda")["topk_logprob"]
    roots, budget = inputs("cuda")["tree_build"][2:4]

    def chain():
        ids, logprobs, _ = ops.topk_logprob(logits, k)
        return ops.tree_build(ids, logprobs, roots, budget, 9)

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        chain()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        out = chain()
    logits.copy_(torch.randn(logits.shape, device="cuda"))
    graph.replay()
    torch.cuda.synchronize()
    for one, other in zip(out, chain(), strict=True):
        same(one, other)
