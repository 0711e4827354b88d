"""How verify_attn runs on a device or on the host: which kernel, how it is cut, what scratch it needs.

``kernels_cu/verify_attn.cu`` explains the kernels.  Everything here follows from shapes and from the card;
lengths and counts stay on the device, where the blocks divide the work themselves.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .library import arrays

if TYPE_CHECKING:
    from .library import KernelLibrary, Run

Array = Any
FILE, FILE_SM90 = "verify_attn.cu", "verify_attn_sm90.cu"
LATENT, WIDTH, UNIT = 512, 576, 16
FIXED_CHUNK = 512
"""KV rows of a chunk with ``splits="fixed"``."""
LEAST_ROWS = 96
"""Fewest KV rows that are worth a block of their own."""
HOST_BLOCKS = 5
"""Blocks on the host: few, but enough that tiles are cut."""
CXX = {"float32": "float", "float16": "__half", "bfloat16": "__nv_bfloat16"}


class Variant(NamedTuple):
    """One kernel: ``rows`` query rows a block, ``groups`` groups of four warps, units of ``unit`` KV rows."""

    file: str
    kernel: str
    rows: int
    groups: int
    unit: int = UNIT

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 128 * self.groups

    def shared_bytes(self, stages: int) -> int:
        """Dynamic shared memory: ``Layout::bytes`` of verify_attn_tile.cuh, or of verify_attn_groups.cuh."""
        if self.file == FILE_SM90:
            ring, q = stages * self.unit * WIDTH * 2, self.rows * (WIDTH - 128) * 2
            tail = 2 * (stages + 4) * 8 + 2 * 144 + stages * self.rows * 8
            return ring + q + 128 * (3 * 16 + 8) + tail
        tiles = self.rows // (16 * self.groups)
        scores = 4 * 3 * 512 if tiles == 2 else 2 * 4 * 512
        group = 2 * (scores + 16 * tiles * (48 + 4))
        rope = self.rows * (2 * (WIDTH - LATENT) + 16)
        tail = (2 * stages + 2) * 8 + 144 + 8 * self.rows
        return stages * UNIT * (2 * WIDTH + 16) + self.groups * group + rope + tail


ROWS64 = Variant(FILE, "verify_attn_rows64", 64, 2)
ROWS32 = Variant(FILE, "verify_attn_rows32", 32, 1)
ROWS16 = Variant(FILE, "verify_attn_rows16", 16, 1)
WGMMA = Variant(FILE_SM90, "verify_attn_wgmma", 64, 3, 48)
DYNAMIC_SHARED = {one.kernel: one.shared_bytes(3) for one in (ROWS64, ROWS32, ROWS16, WGMMA)}
"""Least dynamic shared memory of each kernel, in bytes: what a card with 100 KB for a block gets."""


@dataclass(frozen=True)
class Card:
    """What the choices depend on; shared memory of a block in bytes."""

    capability: tuple[int, int]
    multiprocessors: int
    block_shared: int


@lru_cache(maxsize=16)
def card(device: int | None) -> Card:
    """Return the card with ordinal ``device``; for the host one that forces cut tiles."""
    if device is None:
        return Card((0, 0), HOST_BLOCKS, 232_448)
    import cupy

    told = cupy.cuda.Device(device).attributes
    return Card(
        divmod(int(cupy.cuda.Device(device).compute_capability), 10),
        told["MultiProcessorCount"],
        told["MaxSharedMemoryPerBlockOptin"],
    )


def variant_for(rows: int, splits: int | str, warp_groups: bool) -> Variant:
    """Return the kernel for ``rows`` (node, head) pairs; one for all if results must not depend on N."""
    if splits == "fixed":
        return ROWS64
    if rows > ROWS32.rows:
        return WGMMA if warp_groups else ROWS64
    return ROWS32 if rows > ROWS16.rows else ROWS16


def uses_warp_groups(library: KernelLibrary, on: Card) -> bool:
    """Return whether the sm_90a kernel may run; the macro KD_WARP_GROUPS (0, 1) overrules the card."""
    return bool(int(library.defines.get("KD_WARP_GROUPS", on.capability == (9, 0))))


def stages_and_copies(variant: Variant, on: Card, stages: int | None = None) -> tuple[int, int]:
    """Return units in the ring and tiles a block: two small tiles if both have three units.

    ``stages`` is a number of units asked for.
    """
    if variant.file == FILE_SM90:
        return 3, 1
    for copies in range(2 if variant.groups == 1 else 1, 0, -1):
        for units in range(8, 2, -1) if stages is None else (stages,):
            if copies * variant.shared_bytes(units) <= on.block_shared:
                return units, copies
    needed = variant.shared_bytes(stages or 3)
    raise ValueError(
        f"{variant.kernel} needs {needed} bytes of shared memory, the card has {on.block_shared}"
    )


class Cut(NamedTuple):
    """How the work is divided: arguments of the kernel, tiles at a time, slots for partial results."""

    chunk_units: int
    most_chunks: int
    blocks: int
    slots: int


def cut(splits: int | str, batch: int, tiles: int, most_rows: int, blocks: int, unit: int = UNIT) -> Cut:
    """Divide ``batch`` x ``tiles`` tiles, ``blocks`` at a time; ``most_rows`` KV rows fit the cache."""
    if splits == "auto":
        return Cut(0, 0, blocks, 2 * blocks)
    if splits == "fixed":
        chunk, chunks = FIXED_CHUNK // unit, max(1, math.ceil(most_rows / FIXED_CHUNK))
    else:
        chunk, chunks = -splits, splits
    slots = batch * tiles * chunks
    return Cut(chunk, chunks, min(slots, blocks), slots if chunks > 1 else 1)


class Scratch:
    """Scratch memory kept for each device and stream, so that a captured graph finds it again."""

    def __init__(self) -> None:
        self._kept: dict[tuple[Any, ...], list[Array]] = {}

    def take(self, run: Run, stream: int, name: str, size: int, dtype: str) -> Array:
        """Return at least ``size`` numbers; older, smaller arrays stay alive for graphs that hold them."""
        if run.device is None:
            return run.empty((size,), dtype)
        kept = self._kept.setdefault((run.kind, run.device, stream, name, dtype), [])
        if not kept or kept[-1].shape[0] < size:
            kept.append(run.empty((size,), dtype))
        return kept[-1]


SCRATCH = Scratch()
"""Of all calls of this process."""


def current_stream(run: Run, array: Array) -> int:
    """Return the stream that launches go to, as a number; 0 on the host."""
    if run.device is None:
        return 0
    found = arrays.torch_stream([arrays.handle(array)])
    if found is not None:
        return found
    import cupy

    return cupy.cuda.get_current_stream().ptr


def combine_rows(rows: int, splits: int | str) -> int:
    """Return rows a block of the combining kernel: few rows are joined by many threads each.

    With "fixed" splits the order of sums must not depend on the number of rows.
    """
    if splits == "fixed":
        return 8
    return 1 if rows <= 1056 else 2 if rows <= 2112 else 4 if rows <= 8448 else 8


def check_alignment(arguments: Any, out: Array, names: tuple[str, ...] = ("q", "cache", "tree_kv")) -> None:
    """Raise ``ValueError`` unless rows start at multiples of 16 bytes, as copies and stores want them."""
    for name, array in (*((name, getattr(arguments, name)) for name in names), ("out.out", out)):
        if array is not None and arrays.handle(array).pointer % 16:
            raise ValueError(f"{name}: got an array that starts off a multiple of 16 bytes, wanted one on it")


def launch(run: Run, arguments: Any, splits: int | str, out: Array, lse: Array) -> None:
    """Run the kernels into ``out`` and ``lse``; does not wait for the device."""
    a = arguments
    batch, nodes, heads, _ = a.q.shape
    if 0 in a.q.shape:
        return
    dtype, result = arrays.handle(a.q).dtype, arrays.handle(out).dtype
    defines: dict[str, Any] = {} if dtype == "bfloat16" else {"KD_QUERY": CXX[dtype]}
    if result != dtype:
        defines["KD_OUT"] = CXX[result]
    page_size = a.cache.shape[1]
    pages = 1 if a.page_table is None else a.page_table.shape[1]
    inputs = (a.q, a.cache, a.tree_kv, a.mask, a.lengths, a.counts, a.page_table, out, lse)
    sizes = (nodes, heads, a.mask.shape[2], np.int64(page_size * WIDTH), page_size, pages)
    if dtype == "float32":
        run.launch(
            FILE, "verify_attn_v1", (nodes * heads, batch), 128, (*inputs, *sizes, np.float32(a.scale)),
            defines=defines | {"KD_EXACT_ONLY": 1},
        )  # fmt: skip
        return
    check_alignment(a, out)
    on, macros = card(run.device), run.library.defines
    variant = variant_for(nodes * heads, splits, uses_warp_groups(run.library, on))
    stages, copies = stages_and_copies(
        variant, on, int(macros["KD_STAGES"]) if "KD_STAGES" in macros else None
    )
    if variant.file == FILE:
        defines["KD_STAGES"] = stages
    tiles = math.ceil(nodes * heads / variant.rows)
    plan = cut(splits, batch, tiles, pages * page_size + nodes, copies * on.multiprocessors)
    stream = current_stream(run, a.q)
    partial = SCRATCH.take(run, stream, "partial", plan.slots * variant.rows * LATENT, result)
    partial_lse = SCRATCH.take(run, stream, "partial_lse", plan.slots * variant.rows, "float32")
    table = SCRATCH.take(run, stream, "table", batch * tiles * 4, "int32")
    least = int(macros.get("KD_LEAST_UNITS", LEAST_ROWS // variant.unit))
    run.launch(
        variant.file, variant.kernel, math.ceil(plan.blocks / copies), variant.threads * copies,
        (*inputs, partial, partial_lse, table, batch, *sizes, plan.chunk_units, plan.most_chunks, least,
         np.float32(a.scale * math.log2(math.e))),
        shared_bytes=copies * variant.shared_bytes(stages), defines=defines,
    )  # fmt: skip
    if plan.most_chunks == 1 and a.counts is None:
        return
    block_rows = combine_rows(batch * nodes * heads, splits)
    run.launch(
        FILE, "verify_attn_combine", (math.ceil(nodes * heads / block_rows), batch), LATENT,
        (partial, partial_lse, table, a.counts, out, lse, nodes, heads, variant.rows, block_rows),
        defines=defines,
    )  # fmt: skip
