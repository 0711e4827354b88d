"""The CPU and a device give the same bits on every test kernel whose result CUDA defines."""

from __future__ import annotations

import numpy as np
import pytest
from host_tools import module, needs_compiler, partition
from library_tools import KERNELS
from test_host_numeric import TYPES, boundaries

from kdtree_cupy.library import KernelLibrary

pytestmark = [pytest.mark.gpu, needs_compiler]
RNG = np.random.default_rng(0)


def integers(high: int, shape, dtype=np.int32) -> np.ndarray:
    return RNG.integers(-high, high, shape).astype(dtype)


def floats(n: int) -> np.ndarray:
    return RNG.integers(0, 2**32, n, np.uint32).view(np.float32)


def cases():
    """Yield (file, kernel, grid, block, arguments, dynamic shared bytes)."""
    p, n, t = "host_primitives.cu", "host_numeric.cu", "host_twins.cu"
    yield p, "indices", (2, 3, 2), (8, 3, 4), [np.zeros((12, 96, 9), np.int32)], 0
    for width in (1, 2, 4, 8, 16, 32):
        values, operands = (
            RNG.standard_normal(96).astype(np.float32),
            RNG.integers(0, 40, 96).astype(np.int32),
        )
        yield p, "shuffles", 1, 96, [values, operands, np.int32(width), np.zeros((4, 96), np.float32)], 0
    types = [RNG.standard_normal(32), integers(2**62, 32, np.int64)]
    half = RNG.integers(0, 2**15, 32).astype(np.uint16)
    yield p, "shuffle_types", 1, 32, [*types, half, np.zeros(32, np.uint32)], 0
    masks, keys = partition(RNG, 160), RNG.integers(0, 8, 160).astype(np.int32)
    yield p, "votes", 1, 160, [masks, keys, np.zeros((6, 160), np.uint32), np.int32(3)], 0
    yield p, "reductions", 1, 64, [masks[:64], integers(2**31, 64), np.zeros((9, 64), np.int32)], 0
    yield p, "barrier_votes", 1, 96, [RNG.integers(0, 3, 96).astype(np.int32), np.zeros((3, 96), np.int32)], 0
    sums = [RNG.standard_normal(1024).astype(np.float32), integers(999, 1024)]
    yield p, "block_totals", 1, 1024, [*sums, np.zeros(1024, np.float32), np.zeros(2, np.int32)], 0
    yield p, "nested_groups", 1, 32, [np.zeros(32, np.int32), np.int32(27)], 0
    yield p, "active_masks", 1, 64, [np.zeros(64, np.uint32)], 0
    yield p, "reverse_shared", 5, 256, [integers(999, 1280), np.zeros(1280, np.int32)], 1024
    bits = [RNG.integers(0, 2**32, 500).astype(np.uint32) for _ in range(2)]
    yield p, "bits", 2, 256, [*bits, np.zeros((500, 18), np.uint32), np.int32(500)], 0
    x = np.concatenate(
        [RNG.standard_normal(200) * 10.0 ** RNG.integers(-5, 12, 200), [np.nan, np.inf, -np.inf]]
    )
    results = [np.zeros((203, 6), np.int32), np.zeros((203, 4), np.int64), np.zeros((203, 8))]
    yield p, "floats", 1, 256, [x.astype(np.float32), x, *results, np.int32(203)], 0
    decoded = [np.zeros(65536, np.float32) for _ in range(4)]
    yield n, "decode", 256, 256, [*decoded, np.int32(65536)], 0
    x = np.concatenate([boundaries(name) for name in TYPES] + [floats(100_000)])
    m = len(x)
    encoded = [np.zeros(m, np.uint16), np.zeros(m, np.uint16), np.zeros((4, m), np.uint8)]
    yield n, "encode", -(-m // 256), 256, [x, *encoded, np.int32(m)], 0
    doubles = RNG.standard_normal(5000) * 2.0 ** RNG.integers(-30, 20, 5000)
    encoded = [np.zeros(5000, np.uint16) for _ in range(2)]
    yield n, "encode_double", 20, 256, [doubles, *encoded, np.int32(5000)], 0
    for name in ("half", "bfloat"):
        abc = (RNG.standard_normal((3, 5000)) * 2.0 ** RNG.integers(-6, 6, (3, 5000))).astype(TYPES[name][0])
        results = np.zeros((5000, 9), np.uint16)
        yield n, f"{name}_arithmetic", 20, 256, [abc.view(np.uint16), results, np.int32(5000)], 0
    whole = np.array(
        [0, 0x4000, 0xC000, 0x4400, 0xC400], np.uint16
    )  # small whole numbers as half and as bfloat16
    a, b = (RNG.choice(whole, (32, 2 * k)).view(np.uint32) for k in (4, 2))
    yield t, "fragments", 1, 32, [a, b, integers(99, (2, 32, 4), np.float32)], 0
    yield (
        t,
        "matrices",
        1,
        32,
        [RNG.integers(0, 2**16, 256).astype(np.uint16), np.zeros((2, 32, 4), np.uint32)],
        0,
    )
    yield t, "ring", 1, 96, [integers(99, (9, 64), np.float32), np.zeros(64, np.float32), np.int32(9)], 0
    yield t, "teams", 1, 128, [np.zeros((2, 128), np.int32)], 0


@pytest.mark.parametrize("case", list(cases()), ids=lambda case: case[1])
def test_same_bits(case):
    cupy = pytest.importorskip("cupy", reason="needs CuPy and a device")
    if not cupy.cuda.is_available():
        pytest.skip("no NVIDIA GPU, or no driver for it")
    file, kernel, grid, block, args, shared_bytes = case
    on_device = [cupy.asarray(a) if isinstance(a, np.ndarray) else a for a in args]
    raw = KernelLibrary(KERNELS).raw_module(file).get_function(kernel)
    full = [(size if isinstance(size, tuple) else (size,)) for size in (grid, block)]
    raw(*full, tuple(on_device), shared_mem=shared_bytes)
    on_cpu = [a.copy() if isinstance(a, np.ndarray) else a for a in args]
    module(file).launch(kernel, grid, block, on_cpu, shared_bytes=shared_bytes, timeout=60)
    for number, (wanted, got) in enumerate(zip(on_device, on_cpu, strict=True)):
        if isinstance(got, np.ndarray):
            wanted = wanted.get()
            if got.dtype.kind == "f":  # the payload of a NaN says nothing
                got, wanted = (np.where(np.isnan(v), np.nan, v) for v in (got, wanted))
            np.testing.assert_array_equal(got, wanted, err_msg=f"argument {number}")
