"""How verify_attn_gqa runs on a device or on the host: which kernel, how it is cut, what scratch it needs.

``kernels_cu/verify_attn_gqa.cu`` explains the kernels; what verify_attn does the same way comes from
:mod:`kdtree_cupy.verify_attn_launch`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from .library import arrays
from .stage_scratch import current_stream, take
from .verify_attn_gqa_variants import DYNAMIC_SHARED as DYNAMIC_SHARED
from .verify_attn_gqa_variants import (
    FILE,
    FILE_SM90,
    LEAST_STAGES,
    NARROW,
    stages_and_blocks,
    tight,
    variant_for,
)
from .verify_attn_launch import CXX, LEAST_ROWS, Cut, card, check_alignment, cut, join_items, starts_early
from .verify_attn_variants import uses_warp_groups

if TYPE_CHECKING:
    from .library import Run

Array = Any


def defines_of(size: int, dtype: str, result: str, narrow: bool) -> dict[str, Any]:
    """Return macros for heads of ``size``, the number types of q and of the result, and 8-bit rows."""
    defines: dict[str, Any] = {"KD_HEAD": size}
    if dtype != "bfloat16":
        defines["KD_QUERY"] = CXX[dtype]
    if result != dtype:
        defines["KD_OUT"] = CXX[result]
    return defines | (NARROW if narrow else {})


def join(
    run: Run, plan: Cut, splits: int | str, sizes: tuple[int, ...], arrays_of: tuple[Any, ...], defines: Any
) -> None:
    """Launch the combining kernel; ``sizes``: batch, nodes, group, KV heads, query rows of a tile."""
    batch, nodes, group, shared, tile = sizes
    rows, size = nodes * group * shared, defines["KD_HEAD"]
    tiles = batch * shared * math.ceil(nodes * group / tile)
    columns, warps = join_items(batch * rows, plan.most_chunks or math.ceil(plan.blocks / tiles), splits)
    columns = min(columns, size)
    threads = 32 * max(warps, 8)
    blocks = math.ceil(rows * (size // columns) * 32 * warps / threads)
    run.launch(
        FILE, "verify_attn_gqa_combine", (blocks, batch), threads, (*arrays_of, *sizes[1:], columns, warps),
        defines={k: v for k, v in defines.items() if k not in NARROW} | {"KD_EXACT_ONLY": 1},
        early=starts_early(run),
    )  # fmt: skip


def launch(run: Run, arguments: Any, splits: int | str, out: Array, lse: Array) -> None:
    """Run the kernels into ``out`` and ``lse``; does not wait for the device."""
    a = arguments
    batch, nodes, heads, size = a.q.shape
    if 0 in a.q.shape:
        return
    fused = a.v_cache is None
    shared = a.k_cache.shape[2] // 2 if fused else a.k_cache.shape[2]
    dtype, group, page_size = arrays.handle(a.q).dtype, heads // shared, a.k_cache.shape[1]
    result, narrow = arrays.handle(out).dtype, a.k_scale is not None
    defines = defines_of(size, dtype, result, narrow)
    pages = 1 if a.page_table is None else a.page_table.shape[1]
    width, value_at = a.k_cache.shape[2] * size, shared * size if fused else 0
    kv = (a.k_cache, a.k_cache, a.tree_k, a.tree_k) if fused else (a.k_cache, a.v_cache, a.tree_k, a.tree_v)
    inputs = (a.q, *kv, a.mask, a.lengths, a.counts, a.page_table, out, lse)
    strides = (np.int64(page_size * width), width, value_at)
    sizes = (nodes, group, shared, a.mask.shape[2], *strides, page_size, pages)
    scale, value_scale = a.scale * (a.k_scale or 1.0), np.float32(a.v_scale or 1.0)
    if dtype == "float32" or (narrow and dtype != "bfloat16"):
        run.launch(
            FILE, "verify_attn_gqa_v1", (nodes * heads, batch), 128,
            (*inputs, *sizes, np.float32(scale), value_scale),
            defines=defines | {"KD_EXACT_ONLY": 1},
        )  # fmt: skip
        return
    check_alignment(a, out, ("q", "k_cache", "v_cache", "tree_k", "tree_v"))
    on, macros = card(run.device), run.library.defines
    variant = variant_for(nodes * group, splits, uses_warp_groups(run.library, on), macros, narrow)
    variant = tight(variant) if narrow or result == "float32" else variant
    least = LEAST_STAGES + int(macros.get("KD_AHEAD", 0))
    asked = macros.get("KD_STAGES", None if run.device is not None else least)
    unit = variant.unit if variant.file == FILE_SM90 else int(macros.get("KD_UNIT", variant.unit))
    stages, blocks = stages_and_blocks(variant, size, on, asked and int(asked), unit, least)
    tiles = shared * math.ceil(nodes * group / variant.rows)
    most_rows = pages * page_size + nodes
    plan = cut(splits, batch, tiles, most_rows, blocks * on.multiprocessors, unit)
    stream = current_stream(run, a.q)
    partial = take(run, stream, "partial", plan.slots * variant.rows * size, result)
    partial_lse = take(run, stream, "partial_lse", plan.slots * variant.rows, "float32")
    table = take(run, stream, "table", batch * tiles * 4, "int32")
    least = int(macros.get("KD_LEAST_UNITS", max(1, LEAST_ROWS // unit)))
    run.launch(
        variant.file, variant.kernel, plan.blocks, variant.threads,
        (*inputs, partial, partial_lse, table, batch, *sizes, plan.chunk_units, plan.most_chunks, least,
         np.float32(scale * math.log2(math.e)), value_scale),
        shared_bytes=variant.shared_bytes(size, stages, unit), defines=defines | {"KD_STAGES": stages},
        early=starts_early(run),
    )  # fmt: skip
    if plan.most_chunks == 1 and a.counts is None:
        return
    join(
        run, plan, splits, (batch, nodes, group, shared, variant.rows),
        (partial, partial_lse, table, a.counts, out, lse), defines,
    )  # fmt: skip
