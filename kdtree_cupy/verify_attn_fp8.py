"""How verify_attn runs on KV rows of 8-bit floats: which kernel of verify_attn_fp8.cu, with which ring.

Queries in bfloat16 go to the tensor cores, others to the exact kernel.  Work is divided and partial results
are joined as :mod:`kdtree_cupy.verify_attn_launch` does it for rows of other number types.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from . import verify_attn_launch as common
from .kv_fp8 import LATENT, PLAIN, ROPE, SCALED, Rows
from .library import arrays
from .stage_scratch import current_stream, take
from .verify_attn_check import self_check_fp8 as self_check  # noqa: F401  the library asks for it

if TYPE_CHECKING:
    from .library import KernelLibrary, Run

Array = Any
FILE, FILE_SM90 = "verify_attn_fp8.cu", "verify_attn_fp8_sm90.cu"
UNIT = 16
LEAST_STAGES, MOST_STAGES = 5, 8
"""Units in the ring: 64 rows of Q pass through it on their way to registers."""


class Variant(NamedTuple):
    """One kernel: ``tile`` query rows by ``groups`` groups of four warps, on one format of KV rows."""

    rows: Rows
    tile: int
    groups: int

    @property
    def warp_groups(self) -> bool:
        """Whether it is the kernel of sm_90a, whose third group widens rows."""
        return self.groups == 3

    @property
    def file(self) -> str:
        """Its source."""
        return FILE_SM90 if self.warp_groups else FILE

    @property
    def unit(self) -> int:
        """KV rows of one step."""
        return 48 if self.warp_groups else UNIT

    @property
    def kernel(self) -> str:
        """Its name."""
        return f"verify_attn_{self.rows.name}_" + ("wgmma" if self.warp_groups else f"rows{self.tile}")

    def shared_bytes(self, stages: int) -> int:
        """Dynamic shared memory of a tile: ``Layout::bytes`` of verify_attn_layout.cuh."""
        if self.warp_groups:
            return common.WGMMA.shared_bytes(stages)
        tiles = self.tile // (16 * self.groups)
        scores = 4 * 3 * 512 if tiles == 2 else 2 * 4 * 512
        weights = 16 * tiles * ((96 if self.rows.scaled else 48) + 4)
        pitch = self.rows.bytes + (0 if self.rows.bytes // 16 % 2 else 16)
        tail = self.tile * (2 * ROPE + 16) + (2 * stages + 2) * 8 + 144 + 8 * self.tile
        return stages * UNIT * pitch + self.groups * 2 * (scores + weights) + tail


VARIANTS = {
    rows.name: tuple(Variant(rows, tile, groups) for tile, groups in ((16, 1), (32, 1), (64, 2)))
    for rows in (SCALED, PLAIN)
}
WGMMA = {rows.name: Variant(rows, 64, 3) for rows in (SCALED, PLAIN)}
DYNAMIC_SHARED = {one.kernel: one.shared_bytes(LEAST_STAGES) for three in VARIANTS.values() for one in three}
"""Least dynamic shared memory of each kernel, in bytes: what a card with 100 KB for a block gets."""


def variant_for(rows: Rows, query_rows: int, splits: int | str, warp_groups: bool) -> Variant:
    """Return the kernel for ``query_rows`` (node, head) pairs; "fixed" splits have one for all."""
    few, some, many = VARIANTS[rows.name]
    if splits == "fixed" or query_rows > some.tile:
        return WGMMA[rows.name] if warp_groups and splits != "fixed" else many
    return some if query_rows > few.tile else few


def uses_warp_groups(library: KernelLibrary, on: common.Card) -> bool:
    """Return whether the sm_90a kernels may run: where the card can, and the macro KD_FP8_WARP_GROUPS is 1.

    They round numbers of rows with scales times those to bfloat16, which is exact for powers of two.
    """
    return bool(int(library.defines.get("KD_FP8_WARP_GROUPS", 0))) and common.uses_warp_groups(library, on)


def stages_and_copies(
    variant: Variant, on: common.Card, stages: int | None = None, most: int = 2
) -> tuple[int, int]:
    """Return units in the ring and tiles a block: two small tiles where the card has room for them.

    ``stages`` is a number of units asked for, ``most`` the most tiles.
    """
    if variant.warp_groups:
        return 3, 1
    tries = range(MOST_STAGES, LEAST_STAGES - 1, -1) if stages is None else (stages,)
    roomy = on.block_shared > 128 * 1024  # KD_COPIES of verify_attn_layout.cuh
    for copies in range(min(most, 2 if variant.groups == 1 and roomy else 1), 0, -1):
        for units in tries:
            if copies * variant.shared_bytes(units) <= on.block_shared:
                return units, copies
    needed = variant.shared_bytes(stages or LEAST_STAGES)
    raise ValueError(
        f"{variant.kernel} needs {needed} bytes of shared memory, the card has {on.block_shared}"
    )


def launch(run: Run, arguments: Any, splits: int | str, out: Array, lse: Array) -> None:
    """Run the kernels into ``out`` and ``lse``; does not wait for the device."""
    a, rows = arguments, arguments.rows
    batch, nodes, heads, _ = a.q.shape
    if 0 in a.q.shape:
        return
    query, result = arrays.handle(a.q).dtype, arrays.handle(out).dtype
    page_size = a.cache.shape[1]
    pages = 1 if a.page_table is None else a.page_table.shape[1]
    inputs = (a.q, a.cache, a.tree_kv, a.mask, a.lengths, a.counts, a.page_table, out, lse)
    sizes = (nodes, heads, a.mask.shape[2], np.int64(page_size * rows.bytes), page_size, pages)
    value_scale = np.float32(a.kv_scale or 1.0)
    common.check_alignment(a, out)
    if query != "bfloat16":
        run.launch(
            FILE, f"verify_attn_{rows.name}_v1", (nodes * heads, batch), 128,
            (*inputs, *sizes, np.float32(a.scale), value_scale),
            defines={"KD_QUERY": common.CXX[query], "KD_OUT": common.CXX[result], "KD_EXACT_ONLY": 1},
        )  # fmt: skip
        return
    on, macros = common.card(run.device), run.library.defines
    variant = variant_for(rows, nodes * heads, splits, uses_warp_groups(run.library, on))
    stages, copies = stages_and_copies(
        variant, on, int(macros["KD_STAGES"]) if "KD_STAGES" in macros else None
    )
    tiles = math.ceil(nodes * heads / variant.tile)
    plan = common.cut(splits, batch, tiles, pages * page_size + nodes, copies * on.multiprocessors)
    stream = current_stream(run, a.q)
    partial = take(run, stream, "partial", plan.slots * variant.tile * LATENT, result)
    partial_lse = take(run, stream, "partial_lse", plan.slots * variant.tile, "float32")
    table = take(run, stream, "table", batch * tiles * 4, "int32")
    least = int(macros.get("KD_LEAST_UNITS", common.LEAST_ROWS // variant.unit))
    defines: dict[str, Any] = {"KD_OUT": common.CXX[result]}
    if not variant.warp_groups:
        defines |= {"KD_STAGES": stages, f"KD_{rows.name.upper()}_ONLY": 1}
    scale = np.float32(a.scale * (a.kv_scale or 1.0) * math.log2(math.e))
    run.launch(
        variant.file, variant.kernel, math.ceil(plan.blocks / copies), 128 * variant.groups * copies,
        (*inputs, partial, partial_lse, table, batch, *sizes, plan.chunk_units, plan.most_chunks, least,
         scale, value_scale),
        shared_bytes=copies * variant.shared_bytes(stages),
        defines=defines,
    )  # fmt: skip
    if plan.most_chunks != 1 or a.counts is not None:
        results = (partial, partial_lse, table, a.counts, out, lse)
        defines = {"KD_OUT": common.CXX[result], "KD_EXACT_ONLY": 1}
        common.join(run, plan, splits, (batch, nodes, heads, variant.tile), results, defines)
