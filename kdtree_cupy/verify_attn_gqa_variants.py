"""Kernels of verify_attn_gqa, and the blocks of each that a card has room for.

``kernels_cu/verify_attn_gqa.cu`` and ``verify_attn_gqa_sm90.cu`` explain them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from .verify_attn_variants import Card

NOTHING: Mapping[str, Any] = MappingProxyType({})
FILE, FILE_SM90 = "verify_attn_gqa.cu", "verify_attn_gqa_sm90.cu"
UNIT, UNIT_SM90 = 32, 64
SIZES = (64, 128)
"""Numbers of a head."""
LEAST_STAGES = 2
"""Units in the ring: one is used, one is on the way.  All that the host has, where a build takes seconds."""
RESERVED = 1024
"""Bytes of shared memory that every block costs besides its own."""


class Variant(NamedTuple):
    """One kernel: ``warps`` warps of 16 * ``tiles`` query rows, most of its blocks on a multiprocessor."""

    kernel: str
    tiles: int
    warps: int
    most_blocks: int
    file: str = FILE
    unit: int = UNIT

    @property
    def rows(self) -> int:
        """Query rows of a block."""
        return 16 * self.tiles * self.warps

    @property
    def threads(self) -> int:
        """Threads of a block: with warp groups, four warps more that copy."""
        return 32 * self.warps + (128 if self.file == FILE_SM90 else 0)

    def shared_bytes(self, size: int, stages: int, unit: int | None = None) -> int:
        """Dynamic shared memory for heads of ``size``: ``bytes`` of HeadLayout or of HeadGroupLayout."""
        ring = stages * (unit or self.unit) * 4 * size
        if self.file == FILE_SM90:
            q_blocks = {192: size // 64, 128: 0, 64: size // 128}[self.rows]
            return ring + 128 * self.rows * q_blocks + stages * self.rows * 8 + 16 * (stages + 2) + 2 * 224
        kept = 4 * 512 * self.tiles * self.warps if self.tiles == 2 and size > 64 else 0
        return ring + kept + 16 * stages + 224


ROWS128 = Variant("verify_attn_gqa_rows128", 2, 4, 2)
ROWS64 = Variant("verify_attn_gqa_rows64", 1, 4, 3)
ROWS48 = Variant("verify_attn_gqa_rows48", 1, 3, 4)
ROWS32 = Variant("verify_attn_gqa_rows32", 1, 2, 5)
ROWS16 = Variant("verify_attn_gqa_rows16", 1, 1, 8)
WGMMA64 = Variant("verify_attn_gqa_wgmma64", 1, 4, 2, FILE_SM90, UNIT_SM90)
WGMMA128 = Variant("verify_attn_gqa_wgmma128", 1, 8, 1, FILE_SM90, UNIT_SM90)
WGMMA192 = Variant("verify_attn_gqa_wgmma192", 1, 12, 1, FILE_SM90, UNIT_SM90)
PORTABLE = (ROWS128, ROWS64, ROWS48, ROWS32, ROWS16)
GROUPS = (WGMMA192, WGMMA128, WGMMA64)
DYNAMIC_SHARED = {one.kernel: one.shared_bytes(128, LEAST_STAGES) for one in PORTABLE}
DYNAMIC_SHARED |= {one.kernel: one.shared_bytes(128, LEAST_STAGES + 1) for one in GROUPS}
"""Least dynamic shared memory of each kernel, in bytes, with heads of 128 numbers."""
NARROW: Mapping[str, Any] = MappingProxyType({"KD_CACHE": "unsigned char", "KD_NARROW": 1})
"""Macros of keys and values in 8-bit floats."""
TIGHT_BLOCKS = {ROWS64: 2, ROWS48: 2, ROWS32: 4}
"""Most blocks on a multiprocessor, where 8-bit rows or float32 results want more registers."""
TILE_TIME = {ROWS128: 1.65, ROWS64: 1.0, ROWS48: 0.82}
"""Time of a tile, relative to one of 64 rows, measured on an H200."""
TILE_TIME_SM90 = {WGMMA192: 2.2, WGMMA128: 1.72, WGMMA64: 1.0}
"""The same for warp groups, measured on an H200 (8 requests, prefix of 8,192)."""
TILE_TIME_NARROW = {WGMMA128: 1.3, WGMMA64: 1.0}
"""The same with 8-bit rows, of which a wider tile widens each once for more rows."""


def variant_for(
    rows: int,
    splits: int | str,
    warp_groups: bool = False,
    macros: Mapping[str, Any] = NOTHING,
    narrow: bool = False,
) -> Variant:
    """Return the kernel for ``rows`` (node, head) pairs of one KV head; one for all if N must not matter.

    ``narrow``: keys and values are 8-bit floats.  The macro KD_TILE_ROWS asks for the one of so many rows a
    block.
    """
    kernels = GROUPS if warp_groups else PORTABLE
    asked = [one for one in kernels if one.rows == int(macros.get("KD_TILE_ROWS", 0))]
    return asked[0] if asked else _fastest(rows, splits, warp_groups, narrow)


def tight(variant: Variant) -> Variant:
    """Return a kernel as it is with 8-bit rows or float32 results."""
    return variant._replace(most_blocks=TIGHT_BLOCKS.get(variant, variant.most_blocks))


def _fastest(rows: int, splits: int | str, warp_groups: bool, narrow: bool) -> Variant:
    if splits == "fixed":
        return WGMMA64 if warp_groups else ROWS64
    if warp_groups:
        times = TILE_TIME_NARROW if narrow else TILE_TIME_SM90
        return min(times, key=lambda one: math.ceil(rows / one.rows) * times[one])
    if rows <= ROWS32.rows:
        return ROWS32 if rows > ROWS16.rows else ROWS16
    return min(TILE_TIME, key=lambda one: math.ceil(rows / one.rows) * TILE_TIME[one])


def stages_and_blocks(
    variant: Variant,
    size: int,
    on: Card,
    stages: int | None = None,
    unit: int | None = None,
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
