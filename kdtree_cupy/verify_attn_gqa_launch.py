"""How verify_attn_gqa runs on a device or on the host: which kernel, how it is cut, what scratch it needs.

``kernels_cu/verify_attn_gqa.cu`` explains the kernels; what verify_attn does the same way comes from
:mod:`kdtree_cupy.verify_attn_launch`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .library import arrays
from .stage_scratch import current_stream, take
from .verify_attn_launch import (
    CXX,
    LEAST_ROWS,
    Card,
    card,
    check_alignment,
    cut,
)

if TYPE_CHECKING:
    from .library import Run

Array = Any
FILE, UNIT = "verify_attn_gqa.cu", 32
LEAST_STAGES = 2
"""Units in the ring: one is used, one is on the way.  All that the host has, where a build takes seconds."""
MOST_BLOCK_ROWS = 8
RESERVED = 1024
"""Bytes of shared memory that every block costs besides its own."""


class Variant(NamedTuple):
    """One kernel: ``warps`` warps of 16 * ``tiles`` query rows, most of its blocks on a multiprocessor."""

    kernel: str
    tiles: int
    warps: int
    most_blocks: int

    @property
    def rows(self) -> int:
        """Query rows of a block."""
        return 16 * self.tiles * self.warps

    def shared_bytes(self, size: int, stages: int, unit: int = UNIT) -> int:
        """Dynamic shared memory for heads of ``size``: ``HeadLayout::bytes`` of verify_attn_heads.cuh."""
        kept = 4 * 512 * self.tiles * self.warps if self.tiles == 2 and size > 64 else 0
        return stages * unit * 4 * size + kept + 16 * stages + 224


ROWS128 = Variant("verify_attn_gqa_rows128", 2, 4, 2)
ROWS64 = Variant("verify_attn_gqa_rows64", 1, 4, 3)
ROWS48 = Variant("verify_attn_gqa_rows48", 1, 3, 4)
ROWS32 = Variant("verify_attn_gqa_rows32", 1, 2, 6)
ROWS16 = Variant("verify_attn_gqa_rows16", 1, 1, 8)
DYNAMIC_SHARED = {
    one.kernel: one.shared_bytes(128, LEAST_STAGES) for one in (ROWS128, ROWS64, ROWS48, ROWS32, ROWS16)
}
"""Least dynamic shared memory of each kernel, in bytes, with heads of 128 numbers."""


TILE_TIME = {ROWS128: 1.65, ROWS64: 1.0, ROWS48: 0.8}
"""Time of a tile, relative to one of 64 rows: measured on an H200 for 128 rows, estimated for 48."""


def variant_for(rows: int, splits: int | str) -> Variant:
    """Return the kernel for ``rows`` (node, head) pairs of one KV head; one for all if N must not matter."""
    if splits == "fixed":
        return ROWS64
    if rows <= ROWS32.rows:
        return ROWS32 if rows > ROWS16.rows else ROWS16
    return min(TILE_TIME, key=lambda one: math.ceil(rows / one.rows) * TILE_TIME[one])


def stages_and_blocks(
    variant: Variant,
    size: int,
    on: Card,
    stages: int | None = None,
    unit: int = UNIT,
    least: int = LEAST_STAGES,
) -> tuple[int, int]:
    """Return units in the ring and blocks on a multiprocessor: many blocks, then a deep ring.

    ``stages`` is a number of units asked for.
    """
    for blocks in range(variant.most_blocks, 0, -1):
        room = (on.block_shared + RESERVED) // blocks - RESERVED
        for units in range(8, least - 1, -1) if stages is None else (stages,):
            if variant.shared_bytes(size, units, unit) <= room:
                return units, blocks
    needed = variant.shared_bytes(size, stages or least, unit)
    raise ValueError(
        f"{variant.kernel} needs {needed} bytes of shared memory, the card has {on.block_shared}"
    )


def rows_of_a_block(rows: int, splits: int | str, macros: Mapping[str, Any]) -> int:
    """Return rows a block of the combining kernel: so many that all blocks run at once, 8 at most.

    With "fixed" splits the order of sums must not depend on the number of rows.
    """
    if splits == "fixed":
        return MOST_BLOCK_ROWS
    fewest = 1 if rows <= 528 else 2 if rows <= 1056 else 4 if rows <= 2112 else MOST_BLOCK_ROWS
    return int(macros.get("KD_BLOCK_ROWS", fewest))


def launch(run: Run, arguments: Any, splits: int | str, out: Array, lse: Array) -> None:
    """Run the kernels into ``out`` and ``lse``; does not wait for the device."""
    a = arguments
    batch, nodes, heads, size = a.q.shape
    if 0 in a.q.shape:
        return
    fused = a.v_cache is None
    shared = a.k_cache.shape[2] // 2 if fused else a.k_cache.shape[2]
    dtype, group, page_size = arrays.handle(a.q).dtype, heads // shared, a.k_cache.shape[1]
    defines: dict[str, Any] = {"KD_HEAD": size} | ({} if dtype == "bfloat16" else {"KD_QUERY": CXX[dtype]})
    pages = 1 if a.page_table is None else a.page_table.shape[1]
    width, value_at = a.k_cache.shape[2] * size, shared * size if fused else 0
    kv = (a.k_cache, a.k_cache, a.tree_k, a.tree_k) if fused else (a.k_cache, a.v_cache, a.tree_k, a.tree_v)
    inputs = (a.q, *kv, a.mask, a.lengths, a.counts, a.page_table, out, lse)
    strides = (np.int64(page_size * width), width, value_at)
    sizes = (nodes, group, shared, a.mask.shape[2], *strides, page_size, pages)
    if dtype == "float32":
        run.launch(
            FILE, "verify_attn_gqa_v1", (nodes * heads, batch), 128, (*inputs, *sizes, np.float32(a.scale)),
            defines=defines | {"KD_EXACT_ONLY": 1},
        )  # fmt: skip
        return
    check_alignment(a, out, ("q", "k_cache", "v_cache", "tree_k", "tree_v"))
    on, macros = card(run.device), run.library.defines
    variant = variant_for(nodes * group, splits)
    least = LEAST_STAGES + int(macros.get("KD_AHEAD", 0))
    asked = macros.get("KD_STAGES", None if run.device is not None else least)
    unit = int(macros.get("KD_UNIT", UNIT))
    stages, blocks = stages_and_blocks(variant, size, on, asked and int(asked), unit, least)
    defines["KD_STAGES"] = stages
    tiles = shared * math.ceil(nodes * group / variant.rows)
    most_rows = pages * page_size + nodes
    plan = cut(splits, batch, tiles, most_rows, blocks * on.multiprocessors, unit)
    stream = current_stream(run, a.q)
    partial = take(run, stream, "partial", plan.slots * variant.rows * size, dtype)
    partial_lse = take(run, stream, "partial_lse", plan.slots * variant.rows, "float32")
    table = take(run, stream, "table", batch * tiles * 4, "int32")
    least = int(macros.get("KD_LEAST_UNITS", LEAST_ROWS // unit))
    run.launch(
        FILE, variant.kernel, plan.blocks, 32 * variant.warps,
        (*inputs, partial, partial_lse, table, batch, *sizes, plan.chunk_units, plan.most_chunks, least,
         np.float32(a.scale * math.log2(math.e))),
        shared_bytes=variant.shared_bytes(size, stages, unit), defines=defines,
    )  # fmt: skip
    if plan.most_chunks == 1 and a.counts is None:
        return
    block_rows = rows_of_a_block(batch * nodes * heads, splits, macros)
    run.launch(
        FILE, "verify_attn_gqa_combine", (math.ceil(nodes * heads / block_rows), batch), 256,
        (partial, partial_lse, table, a.counts, out, lse, nodes, group, shared, variant.rows, block_rows),
        defines=defines,
    )  # fmt: skip
