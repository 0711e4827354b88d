"""Commit: rows move exactly, overlap or not, or nothing moves at all."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from conftest import Backend, Poisoned, assert_same
from hypothesis import given
from hypothesis import strategies as st

import kdtree_cupy as kd
from kdtree_cupy import kv_commit_launch
from kdtree_cupy.library import resolve
from kdtree_cupy.limits import STATUS_CAPACITY

WIDTH, LAYERS = 5, 3
BACKENDS = ("numpy", "host", "cuda")


class Cache:
    """A cache of distinct rows, contiguous or paged, that can be read and written as dense rows."""

    def __init__(self, batch: int, rows: int, page_size: int | None, dtype=np.float32, seed: int = 0) -> None:
        self.batch, self.rows, self.page_size = batch, rows, page_size
        rng = np.random.default_rng(seed)
        if page_size is None:
            shape, self.table = (LAYERS, batch, rows, WIDTH), None
        else:
            per_row = -(-rows // page_size)
            order = rng.permutation(batch * per_row + 2)[: batch * per_row]  # two pages belong to nobody
            self.table = order.reshape(batch, per_row).astype(np.int32)
            shape = (LAYERS, batch * per_row + 2, page_size, WIDTH)
        self.data = (np.arange(np.prod(shape)) % 251).reshape(shape).astype(dtype)

    def dense(self) -> np.ndarray:
        """Return [L, b, rows, E] copied out of the pages."""
        if self.table is None:
            return self.data.copy()
        gathered = self.data[:, self.table]
        return gathered.reshape(LAYERS, self.batch, -1, WIDTH)[:, :, : self.rows].copy()


def commit(backend: Backend, cache: Cache, path, path_length, lengths, **options) -> kd.Committed:
    """Run the stage in place on ``cache.data``."""
    if cache.table is not None:
        options["page_table"] = cache.table
    data = backend.to(cache.data)
    path, path_length, lengths = (np.array(x, np.int32) for x in (path, path_length, lengths))
    result = backend.run(kd.kv_commit, data, path, path_length, lengths, **options)
    cache.data = backend.back(data)
    return result


def expected(dense: np.ndarray, path, lengths, tree_kv=None) -> np.ndarray:
    """Return the dense rows after the commit, by fancy indexing."""
    wanted = dense.copy()
    for b, nodes in enumerate(path):
        nodes = np.array([n for n in nodes if n >= 0], int)
        rows = dense[:, b, lengths[b] + nodes] if tree_kv is None else tree_kv[:, b, nodes]
        wanted[:, b, lengths[b] : lengths[b] + len(nodes)] = rows
    return wanted


@pytest.mark.parametrize("page_size", [None, 1, 3, 16, 64])
@pytest.mark.parametrize("in_cache", [True, False], ids=["in_cache", "tree_kv"])
def test_rows_move_to_the_prefix(backend, page_size, in_cache):
    cache = Cache(batch=3, rows=70, page_size=page_size)
    path = [[0, 1, 4, 9, -1], [0, -1, -1, -1, -1], [0, 3, 5, 6, 19]]
    path_length, lengths = [4, 1, 5], [0, 17, 50]
    tree_kv = None if in_cache else np.random.default_rng(1).random((LAYERS, 3, 20, WIDTH), np.float32)
    wanted = expected(cache.dense(), path, lengths, tree_kv)
    owned = np.unique(cache.table) if page_size else None
    stray = None if owned is None else np.delete(cache.data, owned, axis=1).copy()
    result = commit(backend, cache, path, path_length, lengths, tree_kv=tree_kv)
    np.testing.assert_array_equal(cache.dense(), wanted)
    assert result.lengths.tolist() == [4, 18, 55] and result.status.tolist() == [0, 0, 0]
    if stray is not None:
        np.testing.assert_array_equal(np.delete(cache.data, owned, axis=1), stray)


@given(
    data=st.data(),
    length=st.integers(0, 20),
    page_size=st.sampled_from([None, 1, 2, 5, 16]),
    nodes=st.integers(1, 24),
)
def test_any_overlap(backend, data, length, page_size, nodes):
    """Paths rise, so source and destination overlap in every way; increasing order is not required either."""
    cache = Cache(batch=1, rows=45, page_size=page_size, seed=length)
    path = data.draw(st.lists(st.integers(0, nodes - 1), min_size=1, max_size=nodes, unique=True))
    wanted = expected(cache.dense(), [path], [length])
    result = commit(backend, cache, [path], [len(path)], [length])
    np.testing.assert_array_equal(cache.dense(), wanted)
    assert result.lengths.tolist() == [length + len(path)]


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.uint8, ml_dtypes.float8_e4m3fn])
def test_rows_are_moved_as_bytes(backend, dtype):
    if backend.name == "cuda" and dtype is ml_dtypes.float8_e4m3fn:
        pytest.skip("CuPy has no 8-bit floats; torch does")
    cache = Cache(batch=1, rows=12, page_size=4, dtype=np.uint8)
    width = np.dtype(dtype).itemsize
    raw = np.repeat(cache.data, width, axis=-1)  # every bit pattern, NaN among them
    cache.data = raw.view(dtype)
    wanted = expected(Cache(1, 12, 4, np.uint8).dense(), [[0, 2, 5]], [3])
    commit(backend, cache, [[0, 2, 5]], [3], [3])
    got = cache.data.view(np.uint8)[..., ::width]
    np.testing.assert_array_equal(got[:, cache.table[0]].reshape(LAYERS, 1, 12, WIDTH), wanted)


def test_a_list_of_layers(backend):
    stacked, listed = Cache(2, 10, None), Cache(2, 10, None)
    arguments = (np.int32([[0, 2], [0, 3]]), np.int32([2, 2]), np.int32([4, 5]))
    commit(backend, stacked, *arguments)
    layers = [backend.to(layer.copy()) for layer in listed.data]
    backend.run(kd.kv_commit, layers, *arguments)
    np.testing.assert_array_equal(np.stack([backend.back(layer) for layer in layers]), stacked.data)


def test_a_whole_cache_row_can_be_filled(backend):
    cache = Cache(batch=1, rows=8, page_size=None)
    result = commit(backend, cache, [[0, 1, 3]], [3], [4])
    assert result.lengths.tolist() == [7] and result.status.tolist() == [0]
    result = commit(backend, cache, [[0, -1, -1]], [1], [7])
    assert result.lengths.tolist() == [8] and result.status.tolist() == [0]


@pytest.mark.parametrize(
    ("path", "path_length", "length", "in_cache"),
    [
        ([0, 1, 2], 3, 6, False),  # the row is full: 6 + 3 > 8
        ([0, 1, 2], 3, 6, True),
        ([0, 4, -1], 2, 5, True),  # room for the target, but node 4 would lie at row 9
        ([0, 5, -1], 2, 0, False),  # node outside tree_kv
        ([0, -1, -1], 2, 0, False),
        ([0, -1, -1], 2, 0, True),
        ([0, -1, -1], 2, 3, True),  # row 2 exists, but it is no tree row
        ([0, 1, 2], 4, 0, True),  # longer than path is wide
        ([0, 1, 2], -1, 0, True),
        ([0, 1, 2], 2, -3, True),
        ([0, 1, 2], 2, 2**31 - 2, True),
    ],
)
@pytest.mark.parametrize("page_size", [None, 4])
def test_without_room_nothing_moves(backend, path, path_length, length, in_cache, page_size):
    cache = Cache(batch=2, rows=8, page_size=page_size)
    tree_kv = None if in_cache else np.zeros((LAYERS, 2, 5, WIDTH), np.float32)
    both = [path, [0, 1, -1]]
    wanted = cache.dense()
    wanted[:, 1:] = expected(wanted[:, 1:], [[0, 1]], [3], None if in_cache else tree_kv[:, 1:])
    result = commit(backend, cache, both, [path_length, 2], [length, 3], tree_kv=tree_kv)
    np.testing.assert_array_equal(cache.dense(), wanted)
    assert result.status.tolist() == [STATUS_CAPACITY, 0]
    assert result.lengths.tolist() == [length, 5]
    with pytest.raises(ValueError, match=r"kv_commit: status\[0\] = 16: .*a missing page or a full row"):
        commit(backend, cache, both, [path_length, 2], [length, 3], tree_kv=tree_kv, check=True)


@pytest.mark.parametrize("missing", [-1, 99, -(2**31), 2**31 - 1])
@pytest.mark.parametrize("column", [1, 2])
def test_a_missing_page_moves_nothing(backend, missing, column):
    """Rows 6, 7 lie on page 1 of the table, rows 8.. on page 2: target and source rows need both."""
    cache = Cache(batch=1, rows=12, page_size=4)
    table, cache.table = cache.table, cache.table.copy()
    cache.table[0, column] = missing
    before = cache.data.copy()
    result = commit(backend, cache, [[0, 1, 3]], [3], [6])
    np.testing.assert_array_equal(cache.data, before)
    assert result.status.tolist() == [STATUS_CAPACITY] and result.lengths.tolist() == [6]
    cache.table = table


def test_pages_that_no_row_needs_may_be_missing(backend):
    cache = Cache(batch=1, rows=16, page_size=4)
    wanted = expected(cache.dense(), [[0, 1, 3]], [4])
    whole, cache.table = cache.table, cache.table.copy()
    cache.table[0, [0, 2, 3]] = -1
    result = commit(backend, cache, [[0, 1, 3]], [3], [4])
    cache.table = whole
    assert result.status.tolist() == [0]
    np.testing.assert_array_equal(cache.dense(), wanted)


def test_idle_slots_keep_their_length(backend):
    cache = Cache(batch=2, rows=8, page_size=None)
    before = cache.data.copy()
    result = commit(backend, cache, [[-1, -1], [-1, -1]], [0, 0], [8, 2**31 - 1])
    np.testing.assert_array_equal(cache.data, before)
    assert result.lengths.tolist() == [8, 2**31 - 1] and result.status.tolist() == [0, 0]


@pytest.mark.parametrize(("page_size", "rounds"), [(None, 15), (4, 15), (7, 1000)])
def test_rounds_leave_what_plain_decoding_would(backend, page_size, rounds):
    """Rounds with tree rows appended behind the prefix end with the rows of the accepted tokens, in order."""
    rng = np.random.default_rng(7)
    cache, length, accepted = Cache(1, 9 * rounds, page_size), 0, []
    for _ in range(rounds):
        path = np.concatenate([[0], np.flatnonzero(rng.random(8) < 0.4) + 1]).astype(int)
        tree_kv = rng.random((LAYERS, 1, 9, WIDTH), np.float32)
        padded = np.full((1, 9), -1, np.int32)
        padded[0, : len(path)] = path
        result = commit(backend, cache, padded, [len(path)], [length], tree_kv=tree_kv)
        length = int(result.lengths[0])
        accepted.append(tree_kv[:, 0, path])
    np.testing.assert_array_equal(cache.dense()[:, 0, :length], np.concatenate(accepted, axis=1))


@pytest.mark.parametrize("width", [1, 6, 12, 656, 1152])
def test_first_version_agrees(backend, width):
    """The obvious kernel, on rows of any number of bytes; a list of layers that start anywhere."""
    if backend.name == "numpy":
        pytest.skip("numpy: the reference is no kernel")
    rng = np.random.default_rng(width)
    layers = [rng.integers(0, 255, (2, 40, width), np.uint8) for _ in range(3)]
    path, counts, lengths = np.int32([[0, 3, 2, 9], [1, 0, -1, -1]]), np.int32([4, 2]), np.int32([5, 30])
    wanted = [expected(layer[None], [path[0], path[1, :2]], lengths)[0] for layer in layers]
    moved, vectors = [backend.to(x) for x in layers], [backend.to(x) for x in (path, counts, lengths)]
    result = backend.run(kd.kv_commit, [backend.to(x.copy()) for x in layers], path, counts, lengths)
    run = resolve(backend.library, {"path": vectors[0]})
    own = [run.empty((2,), "int32") for _ in range(2)]
    kv_commit_launch.launch(run, (moved, None), (None, None), (*vectors, None), own, version=1)
    for layer, want in zip(moved, wanted, strict=True):
        np.testing.assert_array_equal(backend.back(layer), want)
    assert [backend.back(x).tolist() for x in own] == [x.tolist() for x in result]


def test_outputs_may_be_given_and_may_be_the_lengths(backend):
    arguments = (np.int32([[0, 2], [0, 3]]), np.int32([2, 1]), np.int32([4, 5]))
    fresh = commit(backend, Cache(2, 10, None), *arguments)
    poisoned = Poisoned(backend, fresh)
    assert_same(commit(backend, Cache(2, 10, None), *arguments, out=poisoned.out), fresh)
    poisoned.assert_guards_survived()
    lengths, status = backend.to(arguments[2].copy()), backend.to(np.full(2, -2, np.int32))
    data = backend.to(Cache(2, 10, None).data)
    backend.run(kd.kv_commit, data, *arguments[:2], lengths, out=(lengths, status))
    assert backend.back(lengths).tolist() == [6, 6] and backend.back(status).tolist() == [0, 0]


def test_arguments_are_left_alone(backend):
    given = [backend.to(np.array(x, np.int32)) for x in ([[0, 2]], [2], [4])]
    backend.run(kd.kv_commit, backend.to(Cache(1, 10, None).data), *given)
    assert [backend.back(x).tolist() for x in given] == [[[0, 2]], [2], [4]]
