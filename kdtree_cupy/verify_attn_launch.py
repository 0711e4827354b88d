"""How verify_attn runs on a device or on the host: which kernel, how it is cut, what scratch it needs.

``kernels_cu/verify_attn.cu`` explains the kernels.  Everything here follows from shapes and from the card;
lengths and counts stay on the device, where the blocks divide the work themselves.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .library import arrays
from .stage_scratch import current_stream, take
from .verify_attn_variants import DYNAMIC_SHARED as DYNAMIC_SHARED
from .verify_attn_variants import (
    FILE,
    LATENT,
    UNIT,
    Few,
    block_for,
    card,
    uses_warp_groups,
    variant_for,
)
from .verify_attn_variants import WGMMA as WGMMA
from .verify_attn_variants import Card as Card

if TYPE_CHECKING:
    from .library import Run

Array = Any
FIXED_CHUNK = 512
"""KV rows of a chunk with ``splits="fixed"``."""
LEAST_ROWS, LEAST_ROWS_FEW = 96, 32
"""Fewest KV rows that are worth a block of their own; of the kernels for few rows."""
COMBINE_WARPS = 16
"""Most warps of a block of the combining kernel."""
MOST_WARPS = 4096
"""Warps that the combining kernel may fill a card with."""
CXX = {"float32": "float", "float16": "__half", "bfloat16": "__nv_bfloat16"}


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


def starts_early(run: Run) -> bool:
    """Return whether kernels set themselves up while the one before ends; the macro KD_EARLY 0 forbids it."""
    return bool(int(run.library.defines.get("KD_EARLY", 1)))


def join_items(rows: int, pieces: int, splits: int | str) -> tuple[int, int]:
    """Return columns of an item of the combining kernel, and warps that share one.

    ``rows`` have about ``pieces`` partial results each.  With "fixed" splits the order of sums must not
    depend on anything.
    """
    if splits == "fixed":
        return 256, 2
    if pieces <= 4:
        return 256, 1
    warps = 1
    while warps < COMBINE_WARPS and pieces > 12 * warps and 16 * rows * warps <= MOST_WARPS:
        warps *= 2
    return 64, warps


def join(
    run: Run, plan: Cut, splits: int | str, sizes: tuple[int, ...], arguments: tuple[Any, ...], defines: Any
) -> None:
    """Launch the combining kernel; ``sizes``: batch, nodes, heads, query rows of a tile."""
    batch, nodes, heads, tile = sizes
    tiles = batch * math.ceil(nodes * heads / tile)
    pieces = plan.most_chunks or math.ceil(plan.blocks / tiles)
    columns, warps = join_items(batch * nodes * heads, pieces, splits)
    threads = 32 * max(warps, 8)
    blocks = math.ceil(nodes * heads * (LATENT // columns) * 32 * warps / threads)
    run.launch(
        FILE, "verify_attn_combine", (blocks, batch), threads, (*arguments, *sizes[1:], columns, warps),
        defines=defines, early=starts_early(run),
    )  # fmt: skip


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
    if dtype == "float32":
        run.launch(
            FILE, "verify_attn_v1", (nodes * heads, batch), 128,
            (*arrays_of(a, out, lse), *sizes_of(a), np.float32(a.scale)),
            defines=defines | {"KD_EXACT_ONLY": 1},
        )  # fmt: skip
        return
    check_alignment(a, out)
    on, macros = card(run.device), run.library.defines
    variant = variant_for(nodes * heads, splits, uses_warp_groups(run.library, on))
    launch_tiles(run, a, splits, (out, lse), variant, block_for(variant, on, macros), defines)


def arrays_of(a: Any, out: Array, lse: Array) -> tuple[Array | None, ...]:
    """Return the arrays that every kernel begins with."""
    return a.q, a.cache, a.tree_kv, a.mask, a.lengths, a.counts, a.page_table, out, lse


def sizes_of(a: Any) -> tuple[Any, ...]:
    """Return nodes, heads, mask words, elements from page to page, rows of a page, pages of a request."""
    _, nodes, heads, _ = a.q.shape
    _, page_size, width = a.cache.shape
    pages = 1 if a.page_table is None else a.page_table.shape[1]
    return nodes, heads, a.mask.shape[2], np.int64(page_size * width), page_size, pages


def launch_tiles(
    run: Run,
    a: Any,
    splits: int | str,
    to: tuple[Array, Array],
    variant: Any,
    block: Any,
    defines: Mapping[str, Any],
) -> None:
    """Run the tensor-core kernel ``variant`` on rows of its format, then join what was cut.

    ``to`` is the result and its lse, ``block`` what :func:`block_for` says, ``defines`` the number types.
    """
    batch, nodes, heads, _ = a.q.shape
    sizes, result = sizes_of(a), arrays.handle(to[0]).dtype
    tiles = math.ceil(nodes * heads / variant.rows)
    plan = cut(splits, batch, tiles, sizes[-1] * sizes[-2] + nodes, card(run.device).multiprocessors)
    stream = current_stream(run, a.q)
    partial = take(run, stream, "partial", plan.slots * variant.rows * LATENT, result)
    partial_lse = take(run, stream, "partial_lse", plan.slots * variant.rows, "float32")
    table = take(run, stream, "table", batch * tiles * 4, "int32")
    least = LEAST_ROWS_FEW if isinstance(variant, Few) else LEAST_ROWS
    least = int(run.library.defines.get("KD_LEAST_UNITS", least // variant.unit))
    values = a.kv_scale or 1.0
    run.launch(
        variant.file, variant.kernel, plan.blocks, block.threads,
        (*arrays_of(a, *to), partial, partial_lse, table, batch, *sizes, plan.chunk_units, plan.most_chunks,
         least, np.float32(a.scale * values * math.log2(math.e)), np.float32(values)),
        shared_bytes=block.shared_bytes, defines={**defines, **block.defines}, early=starts_early(run),
    )  # fmt: skip
    if plan.most_chunks != 1 or a.counts is not None:
        results = (partial, partial_lse, table, a.counts, *to)
        joined = {name: defines[name] for name in ("KD_QUERY", "KD_OUT") if name in defines} | {
            "KD_EXACT_ONLY": 1
        }
        join(run, plan, splits, (batch, nodes, heads, variant.rows), results, joined)
