"""The bridge to SGLang: layouts written out by hand, walks equal to tree_accept, lists that are broken."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import library_of

import kdtree_cupy as kd
from kdtree_cupy import masks
from kdtree_cupy.library import KernelLibrary

torch = pytest.importorskip("torch", reason="torch is not installed")
from kdtree_cupy.sglang_bridge import (  # noqa: E402  after the skip
    build_ddtree,
    build_tree_kernel_efficient,
    verify_tree_greedy,
)
from kdtree_cupy.sglang_layout import TreeMaskMode, tree_mask  # noqa: E402

DEVICES = ["cpu", "numpy", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.fixture(params=DEVICES)
def place(request):
    """Return (device, library): kernels on the CPU, references, kernels on a GPU."""
    library = library_of({"cpu": "host"}.get(request.param, request.param))
    return ("cuda" if request.param == "cuda" else "cpu"), library


def drafted(device, seed=0, batch=3, depth=4, width=6):
    """Return top-k ids and log-probs, roots and lengths."""
    rng = np.random.default_rng(seed)
    rows = -np.sort(rng.exponential(1.5, (batch, depth, width)), axis=-1).astype(np.float32)
    ids = np.argsort(rng.random((batch, depth, 20)), axis=-1)[..., :width].astype(np.int32)  # differ in a row
    lengths = rng.integers(0, 6, batch)
    return [torch.from_numpy(np.asarray(x)).to(device) for x in (ids, rows, np.arange(batch), lengths)]


def reference_tree(ids, rows, roots, budgets, n):
    host = [x.cpu().numpy() for x in (ids, rows, roots.int(), budgets)]
    return kd.tree_build(*host, num_nodes=n, library=KernelLibrary(backend="numpy")).tree


@pytest.mark.parametrize("n", [1, 8, 9, 32, 40])
@pytest.mark.parametrize("mode", list(TreeMaskMode))
def test_outputs_are_those_of_the_tree(place, n, mode):
    device, library = place
    if mode == TreeMaskMode.QLEN_ONLY_BITPACKING and n > 32:
        pytest.skip("words of more than 32 bits do not exist")
    ids, rows, roots, lengths = drafted(device)
    budgets = torch.tensor([n - 1, n // 2, 0], dtype=torch.int32, device=device)
    total = int(lengths.sum())
    got = build_ddtree(roots, ids, rows, lengths, total, n, mode, budgets=budgets, library=library)
    tree = reference_tree(ids, rows, roots, budgets, n)
    visible = masks.bool_mask(tree, library=KernelLibrary(backend="numpy"))
    mask = got.tree_mask.cpu().numpy()
    at = 0
    for b in range(3):
        for i in range(n):
            if mode == TreeMaskMode.FULL_MASK:
                row = mask[at : at + int(lengths[b]) + n]
                at += row.size
                assert row[: int(lengths[b])].all()
                np.testing.assert_array_equal(row[int(lengths[b]) :], visible[b, i])
            elif mode == TreeMaskMode.QLEN_ONLY:
                np.testing.assert_array_equal(mask[(b * n + i) * n : (b * n + i + 1) * n], visible[b, i])
            else:
                word = int(mask[b * n + i])
                assert word == sum(1 << j for j in range(n) if visible[b, i, j])
    assert mask.size == (at or mask.size)
    if mode == TreeMaskMode.QLEN_ONLY_BITPACKING:
        assert mask.dtype.itemsize * 8 == (8 if n <= 8 else 16 if n <= 16 else 32)
    depths = lengths.cpu().numpy()[:, None] + tree.depths
    np.testing.assert_array_equal(got.positions.cpu().numpy().reshape(3, n), depths)
    np.testing.assert_array_equal(got.draft_tokens.cpu().numpy().reshape(3, n), tree.tokens)
    for one, other in zip(
        got[2:5], masks.retrieve(tree, library=KernelLibrary(backend="numpy")), strict=True
    ):
        np.testing.assert_array_equal(one.cpu().numpy(), other)
    assert all(x.dtype == torch.int64 for x in got[1:])


def test_walks_are_those_of_tree_accept(place):
    device, library = place
    n, depth = 24, 4
    for seed in range(20):
        ids, rows, roots, lengths = drafted(device, seed)
        budgets = torch.tensor([23, 9, 0], dtype=torch.int32, device=device)
        out = build_ddtree(
            roots, ids, rows, lengths, int(lengths.sum()), n, 1, budgets=budgets, library=library
        )
        tree = reference_tree(ids, rows, roots, budgets, n)
        rng = np.random.default_rng(seed)
        targets = rng.integers(0, 20, (3, n))
        for b in range(3):  # agree with the tree half of the time
            for i in range(1, int(tree.counts[b])):
                if rng.random() < 0.5:
                    targets[b, tree.parents[b, i]] = tree.tokens[b, i]
        wanted = kd.tree_accept(tree, targets.astype(np.int32), max_depth=depth)
        predicts = torch.full((3 * n,), -7, dtype=torch.int32, device=device)
        index = torch.full((3, depth + 1), 99, dtype=torch.int32, device=device)
        count = torch.full((3,), 99, dtype=torch.int32, device=device)
        verify_tree_greedy(
            predicts, index, count, out.draft_tokens.view(3, n), *out[2:5],
            torch.from_numpy(targets).to(device), library=library,
        )  # fmt: skip
        path = np.where(wanted.path >= 0, wanted.path + n * np.arange(3)[:, None], -1)
        np.testing.assert_array_equal(index.cpu().numpy(), path)
        np.testing.assert_array_equal(count.cpu().numpy(), wanted.path_length - 1)
        left = np.full(3 * n, -7)
        left[path[path >= 0]] = targets.ravel()[path[path >= 0]]
        np.testing.assert_array_equal(predicts.cpu().numpy(), left)
        last = path[np.arange(3), wanted.path_length - 1]
        np.testing.assert_array_equal(left[last], wanted.next_token)


@pytest.mark.parametrize("fault", ["cycle", "self", "far", "negative", "root"])
def test_broken_lists_end(place, fault):
    device, library = place
    n = 5
    index = torch.arange(n, device=device)[None].clone()
    child = torch.tensor([[1, -1, -1, -1, -1]], device=device)
    sibling = torch.tensor([[-1, 2, 3, 4, -1]], device=device)
    if fault == "far":
        child[0, 0] = 10**12
    else:
        sibling[0, 2] = {"cycle": 1, "self": 2, "negative": -9, "root": 0}[fault]
    written = [torch.zeros(s, dtype=torch.int32, device=device) for s in ((n,), (1, 4), (1,))]
    tokens, targets = (
        torch.zeros((1, n), dtype=torch.int64, device=device),
        torch.ones((1, n), dtype=torch.int64),
    )
    verify_tree_greedy(*written, tokens, index, child, sibling, targets.to(device), library=library)
    assert written[1].tolist() == [[0, -1, -1, -1]] and written[2].tolist() == [0]


def test_eagle_selections_become_the_same_tree(place):
    """Two children of the root, two of each expanded node: parents by hand."""
    device, _ = place
    topk, steps, n = 2, 3, 6
    # candidates: 0, 1 under the root; 2, 3 under entry 1 of parent_list; 4, 5 under entry 2; and so on
    parent_list = torch.tensor([[-1, 0, 1, 3, 4]], device=device)
    chosen = torch.tensor([[0, 1, 3, 4, 6]], device=device)  # parents: root, root, 0, 1, 3
    tokens = torch.tensor([[10, 11, 13, 14, 16]], device=device)
    lengths = torch.tensor([7], device=device)
    bonus = torch.tensor([5], device=device)
    out = build_tree_kernel_efficient(bonus, parent_list, chosen, tokens, lengths, 7, topk, steps, n, 1)
    assert out.positions.tolist() == [7, 8, 8, 9, 9, 10]
    assert out.draft_tokens.tolist() == [5, 10, 11, 13, 14, 16]
    assert out.retrieve_next_token.tolist() == [[1, 3, 4, 5, -1, -1]]
    assert out.retrieve_next_sibling.tolist() == [[-1, 2, -1, -1, -1, -1]]
    rows = out.tree_mask.view(n, n)
    assert rows[5].tolist() == [True, True, False, True, False, True]
    assert rows[4].tolist() == [True, False, True, False, True, False]


def test_buffers_are_filled_and_returned(place):
    device, library = place
    ids, rows, roots, lengths = drafted(device)
    total = int(lengths.sum())
    mask, positions = (
        torch.zeros(4000, dtype=torch.bool, device=device),
        torch.zeros(24, dtype=torch.int64, device=device),
    )
    fresh = build_ddtree(roots, ids, rows, lengths, total, 8, 0, library=library)
    got = build_ddtree(roots, ids, rows, lengths, total, 8, 0, mask, positions, library=library)
    assert got.tree_mask is mask and got.positions is positions
    assert (mask[: fresh.tree_mask.numel()] == fresh.tree_mask).all() and (positions == fresh.positions).all()
    assert not mask[fresh.tree_mask.numel() :].any()
    with pytest.raises(ValueError, match="buffer: got 4 of"):
        build_ddtree(roots, ids, rows, lengths, total, 8, 0, mask[:4], library=library)
    with pytest.raises(ValueError, match="at most 32"):
        tree_mask(torch.ones((1, 33, 33), dtype=torch.bool), lengths[:1], 0, 2)
    with pytest.raises(ValueError, match="tree_mask_mode: got 9"):
        tree_mask(torch.ones((1, 3, 3), dtype=torch.bool), lengths[:1], 0, 9)
