"""Kernels on the CPU: each primitive against numpy, in every order of threads."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from host_tools import SEEDS, groups, module, needs_compiler, partition

pytestmark = needs_compiler
FULL = 0xFFFFFFFF


@pytest.fixture(params=[*SEEDS, "sanitized"], ids=lambda seed: f"seed={seed}")
def run(request):
    """Launch a kernel of host_primitives.cu in one order, or with checks for undefined behaviour."""
    sanitize = request.param == "sanitized"
    primitives = module("host_primitives.cu", sanitize=sanitize)
    seed = 5 if sanitize else request.param

    def launch(name, grid, block, *args, **options):
        primitives.launch(name, grid, block, list(args), seed=seed, timeout=60, **options)

    return launch


def test_indices(run):
    grid, block = (2, 3, 2), (8, 3, 4)
    out = np.full((12, 96, 9), -1, np.int32)
    run("indices", grid, block, out)
    bz, by, bx, tz, ty, tx = np.indices((*grid[::-1], *block[::-1])).reshape(6, 12, 96)
    number = np.arange(96) + 0 * tx
    table = np.array([3, 1, 4, 1])[np.arange(12 * 96).reshape(12, 96) & 3] + 32
    wanted = np.stack([tx, ty, tz, bx, by, bz, number % 32, number // 32, table], -1)
    np.testing.assert_array_equal(out, wanted)


@pytest.mark.parametrize("width", [1, 2, 4, 8, 16, 32])
def test_shuffles(run, width):
    rng = np.random.default_rng(width)
    value = rng.standard_normal(96).astype(np.float32)
    operand = rng.integers(0, 40, 96).astype(np.int32)  # beyond the width too: it counts modulo 32
    out = np.full((4, 96), np.nan, np.float32)
    run("shuffles", 1, 96, value, operand, np.int32(width), out)
    lane, base = np.arange(96) % 32, np.arange(96) // 32 * 32
    low, by = lane // width * width, operand % 32
    high = low + width - 1
    sources = (
        low + operand % width,
        np.where(lane - by >= low, lane - by, lane),
        np.where(lane + by <= high, lane + by, lane),
        np.where((lane ^ by) <= high, lane ^ by, lane),
    )
    np.testing.assert_array_equal(out, np.stack([value[base + source] for source in sources]))


def test_shuffle_types(run):
    rng = np.random.default_rng(0)
    d, h = rng.standard_normal(32), rng.integers(0, 2**15, 32).astype(np.uint16)
    long = rng.integers(-(2**62), 2**62, 32)
    got = d.copy(), long.copy(), h.copy(), np.zeros(32, np.uint32)
    run("shuffle_types", 1, 32, *got)
    lane = np.arange(32)
    np.testing.assert_array_equal(got[0], d[lane ^ 1])
    np.testing.assert_array_equal(got[1], long[np.where(lane < 29, lane + 3, lane)])
    np.testing.assert_array_equal(got[2], h[7])
    low = (np.where(lane >= 2, lane - 2, lane).astype(np.float32).view(np.uint32)) >> 16  # exact in bfloat16
    np.testing.assert_array_equal(got[3], low | 0xBF80 << 16)


def test_votes(run):
    rng = np.random.default_rng(1)
    masks, key = partition(rng, 160), rng.integers(0, 8, 160).astype(np.int32)
    key[:32] |= 4
    out = np.zeros((6, 160), np.uint32)
    run("votes", 1, 160, masks, key, out, np.int32(3))
    wanted = np.zeros_like(out)
    for mask, members in groups(masks):
        bit = np.uint32(1) << (members % 32).astype(np.uint32)
        k = key[members]
        wanted[0, members] = bit[k & 1 > 0].sum()
        wanted[1, members] = (k & 2).any()
        wanted[2, members] = (k & 4).all()
        wanted[3, members] = [bit[k == one].sum() for one in k]
        same = len(set(k >> 1)) == 1
        wanted[4, members], wanted[5, members] = mask * same, same
    np.testing.assert_array_equal(out, wanted)


def test_reductions(run):
    rng = np.random.default_rng(2)
    masks = partition(rng, 64)
    value = rng.integers(-(2**31), 2**31, 64).astype(np.int32)
    out = np.zeros((9, 64), np.int32)
    run("reductions", 1, 64, masks, value, out)
    for _, members in groups(masks):
        v, u = value[members], value[members].view(np.uint32)
        total = np.array(v.astype(np.int64).sum() & FULL, np.uint32).view(np.int32)
        bitwise = [op.reduce(v) for op in (np.bitwise_and, np.bitwise_or, np.bitwise_xor)]
        unsigned = [np.array(x).view(np.int32) for x in (u.min(), u.max())]
        wanted = [total, v.min(), v.max(), total, *unsigned, *bitwise]
        np.testing.assert_array_equal(out[:, members], np.repeat(wanted, len(members)).reshape(9, -1))


def test_barrier_votes(run):
    predicate = np.random.default_rng(3).integers(0, 3, 100).astype(np.int32)
    out = np.full((3, 100), -1, np.int32)
    run("barrier_votes", 1, 100, predicate, out)
    np.testing.assert_array_equal(out, np.repeat([(predicate > 0).sum(), 1, 0], 100).reshape(3, 100))


def test_block_reductions(run):
    rng = np.random.default_rng(4)
    x, k = rng.standard_normal(1024).astype(np.float32), rng.integers(-999, 999, 1024).astype(np.int32)
    sums, ends = np.zeros(1024, np.float32), np.zeros(2, np.int32)
    run("block_totals", 1, 1024, x, k, sums, ends)
    warp = x.reshape(32, 32)
    for offset in (16, 8, 4, 2, 1):
        warp = warp + warp[:, np.arange(32) ^ offset]
    total = np.float32(0)
    for w in range(32):
        total = warp[w, 0] if w == 0 else np.float32(total + warp[w, 0])
    assert (sums == total).all(), "every thread has the sum, taken in the documented order"
    assert tuple(ends) == (k.min(), k.max())


def test_nested_groups(run):
    out = np.full(32, -1, np.int32)
    run("nested_groups", 1, 32, out, np.int32(28))
    seen = np.where(np.arange(32) < 16, (np.arange(32) ^ 1) + 3, np.arange(32))
    wanted = np.append(seen[1:28], -1)  # lane 28 took no part: its value is undefined, and reads as poison
    np.testing.assert_array_equal(out[:28], wanted)
    np.testing.assert_array_equal(out[28:], -1)


def test_active_mask_is_the_lanes_that_stand_together(run):
    out = np.zeros(64, np.uint32)
    run("active_masks", 1, 64, out)
    number = np.arange(64)
    third, early = number % 3 == 0, number < 40
    for i in number:
        lanes = number[number // 32 == i // 32]
        same = lanes[(third[lanes] == third[i]) & (third[lanes] | (early[lanes] == early[i]))]
        mask = np.bitwise_or.reduce(1 << (same % 32))
        assert out[i] == (mask if third[i] or early[i] else len(same)), i


def test_shared_memory(run):
    x = np.arange(5 * 256, dtype=np.int32)
    out = np.zeros_like(x)
    run("reverse_shared", 5, 256, x, out, shared_bytes=1024)
    swapped = x.reshape(5, 256)[:, ::-1] + 1
    np.testing.assert_array_equal(out.reshape(5, 256), swapped[:, np.arange(256) ^ 1])


@pytest.mark.parametrize("os_threads", [1, 4])
def test_atomics(run, os_threads):
    n, rng = 3000, np.random.default_rng(5)
    v = rng.integers(-1000, 1000, n).astype(np.int32)
    i = np.array([0, 0, 9999, -9999, -1, 0, 0, -1], np.int32)
    u = np.array([0, FULL, 0, 0, 0, 0, FULL, 0, 0], np.uint32)
    long = np.array([0, 0, 5], np.uint64)
    f, d = np.zeros(n + 1, np.float32), np.zeros(1)
    run("atomics", 47, 64, v, i, u, long, f, d, np.int32(n), os_threads=os_threads)
    total = v.sum()
    assert list(i[:4]) == [total, -total, v.min(), v.max()]
    assert list(i[4:7]) == [op.reduce(v) for op in (np.bitwise_and, np.bitwise_or, np.bitwise_xor)]
    assert 0 <= i[7] < n and list(u[6:9])[1:] == [1, 1]
    w = v.view(np.uint32)
    assert list(u[:6]) == [total & FULL, w.min(), w.max(), n % 7, -n % 7, FULL]
    assert list(long) == [int(total) & (2**64 - 1), int(w.max()) << 20, 5]
    assert f[0] == n and d[0] == total and (f[1:] == 5).all()


def test_spin_lock_lets_the_holder_run(run):
    lock, total = np.zeros(1, np.int32), np.zeros(1, np.int32)
    run("spin_lock", 1, 64, lock, total)
    assert (lock[0], total[0]) == (0, 64)


def test_bits(run):
    rng = np.random.default_rng(6)
    special = [0, 1, 31, 32, 0x80000000, FULL]
    x = np.array([*special, *rng.integers(0, 2**32, 300)], np.uint32)
    y = np.array([*special[::-1], *rng.integers(0, 2**32, 300)], np.uint32)
    out = np.zeros((len(x), 18), np.uint32)
    run("bits", 4, 96, x, y, out, np.int32(len(x)))
    for a, b, got in zip(map(int, x), map(int, y), out, strict=True):
        w, s, t = a << 32 | b, a - (a >> 31 << 32), b - (b >> 31 << 32)
        flipped = int(f"{w:064b}"[::-1], 2)
        wanted = [
            a.bit_count(), w.bit_count(), (a & -a).bit_length(), (w & -w).bit_length(),
            32 - a.bit_length(), 64 - w.bit_length(), int(f"{a:032b}"[::-1], 2), flipped & FULL,
            a * b >> 32, (s * t >> 32) & FULL, (a & 0xFFFFFF) | b >> 24 << 24,
            ((b << 32 | a) << (b & 31)) >> 32 & FULL, (b << 32 | a) >> (b & 31) & FULL,
            min(a, b), max(s, t) & FULL, a & 0x7F7FFFFF, 7, a,
        ]  # fmt: skip
        assert list(got) == wanted, (hex(a), hex(b))


def test_floats(run):
    rng = np.random.default_rng(7)
    edge = np.array([0.5, 1.5, 2.5, -0.5, -2.5, 3e9, -3e9, 5e9, np.nan, np.inf, -np.inf, 0.0])
    y = np.concatenate([edge, rng.standard_normal(500) * 10.0 ** rng.integers(-5, 8, 500)])
    x = y.astype(np.float32)
    whole, wide, real = (
        np.zeros((len(x), 6), np.int32),
        np.zeros((len(x), 4), np.int64),
        np.zeros((len(x), 8)),
    )
    run("floats", 2, 256, x, y, whole, wide, real, np.int32(len(x)))

    def integer(v, low=-(2**31), high=2**31 - 1, nan=0):
        return np.where(np.isnan(v), nan, np.clip(v, low, high)).astype(np.int64)

    x64 = x.astype(np.float64)
    rounded = [integer(f(x64)) for f in (np.rint, np.trunc, np.floor, np.ceil)]
    rounded += [
        integer(np.rint(x64), 0, FULL).astype(np.uint32).view(np.int32),
        integer(np.trunc(y), nan=-(2**31)),
    ]
    np.testing.assert_array_equal(whole, np.stack(rounded, -1))

    def exact(v, low, high, nan):
        return [nan if np.isnan(one) else min(max(one, low), high) for one in v.tolist()]

    top = 2**63
    wanted = [
        exact(np.rint(x64), -top, top - 1, -top), exact(np.trunc(y), -top, top - 1, -top),
        exact(np.floor(y), 0, 2 * top - 1, top), exact(np.ceil(y), 0, FULL, 2**31),
    ]  # fmt: skip
    assert [[int(v) & (2 * top - 1) for v in row] for row in wanted] == wide.T.view(np.uint64).tolist()
    with np.errstate(invalid="ignore", over="ignore"):
        fused = [float(Fraction(v) ** 2 - 1) if np.isfinite(v) else v * v for v in y.tolist()]
        wanted = [
            (x64 * x64 - 1).astype(np.float32), fused, np.fmin(x, 0.5), np.fmax(y, 0.5),
            x + np.float32(1), y.astype(np.float32), np.abs(x), np.fmin(x, 2),
        ]  # fmt: skip
    for column, one in enumerate(wanted):
        np.testing.assert_array_equal(real[:, column], one)
