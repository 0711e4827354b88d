"""Mistakes of kernels on the CPU: each is reported with its place, and leaves the process sound."""

from __future__ import annotations

import _thread
import pickle
import threading
import time

import numpy as np
import pytest
from host_tools import SEEDS, module, needs_compiler

from kdtree_cupy.library.host_run import KernelFault

pytestmark = needs_compiler
BAD = np.int32(2)
"""The block that makes the mistake, of four."""


def fault(kernel, *args, block=64, sanitize=False, **options) -> KernelFault:
    """Return the fault of a launch of four blocks."""
    options = {"timeout": 60, **options}
    with pytest.raises(KernelFault) as caught:
        module("host_faults.cu", sanitize=sanitize).launch(kernel, 4, block, list(args), **options)
    return caught.value


def ints(n=64) -> np.ndarray:
    return np.full(n, -2, np.int32)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("os_threads", [1, 3])
@pytest.mark.parametrize(
    ("kernel", "outputs", "kind", "words"),
    [
        ("two_barriers", 0, "barrier", ["divergent barrier", "__syncthreads (host_faults.cu:"]),
        (
            "missing_barrier",
            0,
            "deadlock",
            ["threads 0-47 wait at __syncthreads", "48-63 have left the kernel"],
        ),
        ("barrier_against_warp", 0, "deadlock", ["__syncwarp(mask 0x000000ff)", "wait at __syncthreads"]),
        ("two_masks", 1, "mask", ["__shfl_sync(mask 0x0000fff0)", "__shfl_sync(mask 0xffffffff)", "lane 5"]),
        ("two_collectives", 1, "mask", ["__any_sync", "__shfl_xor_sync", "lane 9"]),
        ("not_in_mask", 0, "mask", ["__syncwarp(mask 0xffff7fff)", "its own caller, lane 15"]),
        (
            "lanes_elsewhere",
            1,
            "deadlock",
            ["thread 3 waits at __syncthreads", "__reduce_max_sync(mask 0xffffffff)"],
        ),
        ("bad_width", 1, "argument", ["width 12", "power of two"]),
    ],
)
def test_divergence(kernel, outputs, kind, words, seed, os_threads):
    found = fault(kernel, BAD, *[ints()] * outputs, seed=seed, os_threads=os_threads)
    assert found.kind == kind and found.block == (2, 0, 0) and found.thread is not None, found
    for word in words:
        assert word in str(found)
    assert str(found).startswith(f"{kernel}, block (2, 0, 0), thread (")


@pytest.mark.parametrize(
    ("at", "write", "words"),
    [
        (
            101,
            1,
            "write at byte 202 of argument 2 (out), which has 202 bytes",
        ),  # 6 bytes of canary follow the data
        (-1, 1, "write at byte -2 of argument 2 (out), which has 202 bytes"),
        (104, 1, "access at byte 208 of argument 2 (out)"),  # then the guard page
        (104, 0, "access at byte 208 of argument 1 (in)"),
        (-2200, 1, "access at byte -4400 of argument 2 (out)"),
        (-2200, 0, "access at byte -4400 of argument 1 (in)"),
    ],
)
def test_out_of_bounds(at, write, words):
    given, out = np.zeros(101, np.int16), np.zeros(101, np.int16)
    found = fault("poke", BAD, given, out, np.int64(at), np.int32(write), os_threads=1)
    assert found.kind == "bounds" and found.block == (2, 0, 0) and words in str(found)
    assert found.thread == ((2, 0, 0) if abs(at) > 103 else None)
    assert (out == 0).all(), "a faulty launch changes nothing"


def test_wild_and_null_pointers():
    out = np.zeros(8, np.int16)
    found = fault("poke", BAD, None, out, np.int64(8), np.int32(0))
    assert found.kind == "address" and "null pointer" in found.text and found.thread == (2, 0, 0)
    found = fault("poke", BAD, out, out, np.int64(2**61), np.int32(0))
    assert found.kind == "address" and "illegal address" in found.text


def test_read_only_arrays_cannot_be_written():
    out = np.zeros(8, np.int16)
    out.flags.writeable = False
    found = fault("poke", BAD, None, out, np.int64(1), np.int32(1))
    assert found.kind == "bounds" and "which is read-only" in found.text


def test_arguments_that_overlap_stay_so_and_neighbours_do_not_merge():
    whole = np.zeros(64, np.int16)
    module("host_faults.cu").launch(
        "poke", 1, 32, [np.int32(0), whole[8:], whole, np.int64(3), np.int32(0)], timeout=60
    )
    whole[11] = 5
    module("host_faults.cu").launch(
        "poke", 1, 32, [np.int32(0), whole[8:], whole, np.int64(3), np.int32(0)], timeout=60
    )
    assert whole[0] == 5
    found = fault("poke", BAD, whole[:32], whole[32:], np.int64(-1), np.int32(1))
    assert "write at byte -2 of argument 2 (out), which has 64 bytes" in found.text


@pytest.mark.parametrize("at", [200, -1, 10_000, -300_000])
def test_shared_memory_overflow(at):
    found = fault("poke_shared", BAD, np.int32(at), shared_bytes=200, os_threads=1)
    assert found.kind == "bounds" and found.block == (2, 0, 0)
    assert f"at byte {at} of dynamic shared memory, which has 200 bytes" in found.text


@pytest.mark.parametrize("seed", SEEDS)
def test_unwritten_shared_memory_is_nan_in_every_block(seed):
    out = np.zeros(6 * 64, np.float32)
    module("host_faults.cu").launch(
        "unwritten_shared", 6, 64, [out, np.int32(50)], shared_bytes=256, seed=seed
    )
    row = np.where(np.arange(64) < 50, np.float32(2), np.float32(np.nan))
    np.testing.assert_array_equal(out.reshape(6, 64), np.tile(row, (6, 1)))


def test_a_missing_barrier_shows_as_dependence_on_the_order():
    def results(with_barrier):
        out = {}
        for seed in (*SEEDS, 2, 3):
            got = ints()
            module("host_faults.cu").launch("no_barrier", 1, 64, [got, np.int32(with_barrier)], seed=seed)
            out[got.tobytes()] = got
        return list(out.values())

    assert len(results(0)) >= 4
    (only,) = results(1)
    np.testing.assert_array_equal(only, (np.arange(64) + 1) % 64)


def test_block_order_follows_the_seed():
    def last(seed):
        out = ints(1)
        module("host_faults.cu").launch("last_block_wins", 100, 1, [out], seed=seed, os_threads=1)
        return int(out[0])

    assert (last(0), last(-1)) == (99, 0)
    assert last(7) == last(7) and len({last(seed) for seed in range(1, 20)}) > 5


def test_stack_overflow():
    found = fault("deep_calls", BAD, np.int32(100_000), ints(4))
    assert found.kind == "stack" and found.block == (2, 0, 0) and found.thread == (1, 0, 0)
    out = ints(4)
    module("host_faults.cu").launch(
        "deep_calls", 4, 64, [BAD, np.int32(600), out], stack_bytes=1 << 20, timeout=60
    )


def test_division_by_zero():
    found = fault("divide", BAD, np.int32(0), ints())
    if found.kind != "arithmetic":
        pytest.skip("this CPU does not trap an integer division by zero")
    assert found.thread == (6, 0, 0)


@pytest.mark.parametrize(("kind", "name", "words"), [(0, "trap", "__trap()"), (1, "assert", "kind != 1")])
def test_traps(kind, name, words):
    found = fault("traps", BAD, np.int32(kind))
    assert (found.kind, found.block, found.thread) == (name, (2, 0, 0), (4, 0, 0)) and words in found.text


@pytest.mark.parametrize("with_barrier", [0, 1, 2])
def test_an_endless_loop_is_stopped(with_barrier, capfd):
    begin = time.monotonic()
    found = fault("endless", BAD, ints(1) * 0, np.int32(with_barrier), timeout=0.3, os_threads=2)
    assert found.kind == "timeout" and "stopped after 0.3 s" in found.text
    assert 0.2 < time.monotonic() - begin < 20


def test_a_fault_ends_the_endless_loops_of_other_blocks():
    found = fault("fault_beside_endless", np.int32(0), ints(1) * 0, os_threads=2, timeout=30)
    assert (found.kind, found.block) == ("trap", (0, 0, 0))


def test_ctrl_c_stops_a_kernel():
    timer = threading.Timer(0.3, _thread.interrupt_main)
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        module("host_faults.cu").launch("endless", 4, 32, [BAD, ints(1) * 0, np.int32(0)], timeout=60)
    timer.join()


@pytest.mark.parametrize(
    ("kind", "by", "words"),
    [
        (0, 33, "shift of 1 ('int') by 33"),
        (1, 9, "9 + 2147483645 does not fit in 'int'"),
        (2, 4, "index 4 out of range of 'int"),
        (3, 1, "is not aligned to 16 bytes"),
        (4, 5, "value of 'float' does not fit in 'int'"),
    ],
)
def test_undefined_behaviour_is_reported_by_the_sanitized_build(kind, by, words):
    given = [BAD, np.int32(kind), np.int32(by), ints(8)]
    found = fault("undefined", *given, sanitize=True)
    assert found.kind == "undefined" and found.block == (2, 0, 0) and found.thread == (2, 0, 0)
    assert words in found.text and "(host_faults.cu:" in found.text
    module("host_faults.cu").launch("undefined", 4, 64, given, timeout=60)  # not seen without it


def test_a_fault_can_be_sent_between_processes():
    found = fault("traps", BAD, np.int32(0))
    again = pickle.loads(pickle.dumps(found))
    assert str(again) == str(found) and again.thread == found.thread
