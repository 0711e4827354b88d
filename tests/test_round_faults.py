"""Faults that serving engines had with graphs, padded slots and stale buffers: none may come back here.

Every test runs a round beside the round of the references on the same numbers (on a device: one captured
graph, replayed), and asserts that all results and all KV rows agree after each.
"""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest
from round_tools import D, Lockstep, N, get, make, put

from kdtree_cupy.cost import load_cost, round_in_ar_steps
from kdtree_cupy.round import decode_round
from kdtree_cupy.round_graph import capture

BACKENDS = ("numpy", "host", "cuda")


def test_padded_slots_are_cleared_and_come_back(backend):
    """A slot that goes idle leaves nothing stale behind, and its neighbours do not notice (row 10)."""
    both = Lockstep(backend, 4)
    both.set("roots", np.int32([1, 2, 3, 4]))
    both.set("lengths", np.int32([10, 20, 30, 40]))
    before = both.step([8, 8, 8, 8])
    idle = both.step([8, 8, 8, -1])
    assert idle["counts"][3] == 0 and idle["path_length"][3] == 0 and idle["roots"][3] == -1
    assert not idle["tokens"][3].any() and (idle["parents"][3] == -1).all() and not idle["depths"][3].any()
    assert (idle["path"][3] == -1).all()
    assert idle["lengths"][3] == before["lengths"][3]
    np.testing.assert_array_equal(idle["positions"][3], idle["lengths"][3])
    np.testing.assert_array_equal(idle["caches"][:, 3], before["caches"][:, 3])
    both.set("roots", np.int32([1, 2, 3, 9]))  # a new request takes the slot over
    both.set("lengths", np.int32([*idle["lengths"][:3], 0]))
    again = both.step([8, 8, 8, 8])
    assert again["tokens"][3, 0] == 9 and again["lengths"][3] == again["path_length"][3]


def test_a_shrinking_batch_may_change_its_order(backend):
    """8 requests, then 3, then 1, moved to other slots in between (row 11)."""
    both = Lockstep(backend, 8)
    both.set("roots", np.arange(8, dtype=np.int32))
    state = both.step([8] * 8)
    for kept in ((6, 1, 4), (2,)):
        order = [*kept, *(i for i in range(8) if i not in kept)]
        both.set("roots", state["roots"][order])
        both.set("lengths", state["lengths"][order])
        both.set("caches", np.ascontiguousarray(state["caches"][:, order]))
        budgets = [5] * len(kept) + [-1] * (8 - len(kept))
        for _ in range(2):
            before, state = state, both.step(budgets)
            assert (state["path_length"][: len(kept)] >= 1).all()
            assert not state["path_length"][len(kept) :].any()
        assert before["caches"].shape == state["caches"].shape


def test_inputs_change_in_place_only(backend):
    """New lengths written in place are seen by the next round; a new array in a field is refused (row 13)."""
    both = Lockstep(backend, 2)
    both.set("roots", np.int32([1, 2]))
    both.step([4, 4])
    both.set("lengths", np.int32([100, 7]))
    got = both.step([4, 4])
    np.testing.assert_array_equal(got["positions"][:, 0], [100, 7])
    for field in dataclasses.fields(both.ours):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(both.ours, field.name, None)


def test_lengths_live_on_the_device_alone(backend):
    """No argument of a round is a host copy of the lengths, so none can lag behind (row 14)."""
    both = Lockstep(backend, 3)
    both.set("roots", np.int32([1, 2, 3]))
    optimist = np.zeros(3, np.int64)  # a mirror that believes that every draft is accepted
    length = np.zeros(3, np.int64)
    for _ in range(6):
        got = both.step([8, 8, 8])
        np.testing.assert_array_equal(got["positions"], length[:, None] + got["depths"])
        length += got["path_length"]
        optimist += D + 1
        np.testing.assert_array_equal(got["lengths"], length)
    assert (optimist > length).all()  # the test would notice a mirror


def test_budget_zero_inside_a_graph(backend):
    """Budgets alternate between 0 and 8 (row 20)."""
    both = Lockstep(backend, 2, agree=1.0)
    both.set("roots", np.int32([1, 2]))
    for step in range(6):
        budget = 8 * (step % 2)
        got = both.step([budget, 8 - budget])
        assert got["counts"].tolist() == [budget + 1, 9 - budget]
        none = step % 2  # the slot with budget 0
        assert got["path_length"][none] == 1 < got["path_length"][1 - none]


def test_nothing_written_is_read_again(backend):
    """All results hold garbage before each round; only roots and lengths carry over."""
    both = Lockstep(backend, 3, poison=True)
    both.set("roots", np.int32([1, 2, 3]))
    for _ in range(6):
        both.step(both.rng.integers(-1, N, 3))
        both.set("roots", np.maximum(get(both.wanted.roots), 0))


def test_trees_cut_by_cost_inside_a_fixed_shape(backend):
    """A dear cost row, a cheap one and a stepped one in one batch, rewritten between rounds."""
    table = load_cost("caddtree-a800-8b")
    steps = round_in_ar_steps(table, np.ceil(np.arange(N) / 4) * 4)
    cost = np.stack([np.ones(N), 1.0 + 9.0 * np.arange(N), steps])
    both = Lockstep(backend, 3, cost=cost)
    both.set("roots", np.int32([1, 2, 3]))
    for _ in range(3):
        got = both.step([8, 8, 8])
        assert got["counts"][:2].tolist() == [9, 1]
        assert 1 <= got["counts"][2] <= 9
    both.set("cost", np.ones((3, N)))
    assert both.step([8, 3, 0])["counts"].tolist() == [9, 4, 1]


def test_a_cost_table_follows_the_lengths(backend):
    """Nodes are free at short prefixes and dear at long ones; lengths grow on the device alone."""
    table = np.stack([np.ones(N), 1.0 + 9.0 * np.arange(N)])
    both = Lockstep(backend, 2, cost=(table, np.array([4.0, 5.0])), agree=1.0)
    both.set("roots", np.int32([1, 2]))
    both.set("lengths", np.int32([0, 300]))
    counts = [both.step([8, 8])["counts"].tolist() for _ in range(5)]
    assert counts[0] == [9, 1] and counts[-1] == [1, 1]


@pytest.mark.slow
def test_a_thousand_rounds(backend):
    """Random budgets and idle slots for 1,000 rounds; on a device memory stays as it was."""
    both = Lockstep(backend, 2, agree=0.6, rows=48, D=3, N=5, K=4, V=12)
    both.set("roots", np.int32([1, 2]))
    used = None
    for step in range(1000):
        got = both.step(both.rng.integers(-1, 5, 2))
        both.set("roots", np.maximum(got["roots"], 0))
        if (got["lengths"] > 40).any():
            both.set("lengths", np.int32([0, 0]))
        if backend.name == "cuda" and step in (20, 999):
            import cupy

            pool = cupy.get_default_memory_pool()
            assert used in (None, (pool.used_bytes(), pool.total_bytes()))
            used = pool.used_bytes(), pool.total_bytes()


def test_a_failed_capture_leaves_the_stream_usable(backend):
    if backend.name != "cuda":
        pytest.skip("capture needs a device")
    buffers = make(backend, 1)

    def broken(b):
        if not get(b.budgets).tolist() == [-1]:
            raise AssertionError("the warm-up runs with idle slots")
        raise RuntimeError("no model")

    with pytest.raises(RuntimeError, match=re.escape("no model")):
        capture(buffers, broken, library=backend.library)
    put(buffers.budgets, np.int32([0]))
    decode_round(buffers, lambda b: None, library=backend.library)
    assert get(buffers.accepted.path_length).tolist() == [1]
