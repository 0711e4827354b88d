"""How verify_attn runs on KV rows of 8-bit floats.

Queries in bfloat16 go to the tensor cores, others to the exact kernel.  Up to 32 query rows, where memory is
the limit, have kernels that read 8-bit rows (``verify_attn_few_fp8.cu``).  More rows would widen every number
again and again, so there the rows are widened once, into scratch memory (``verify_attn_widen.cu``), and go
through the kernels for bfloat16.  ``rows64`` of ``verify_attn_fp8.cu`` widens them itself: for "fixed"
splits, whose results must not depend on the size of a cache, and for caches too large for scratch memory.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from . import verify_attn_launch as common
from . import verify_attn_variants as variants
from .kv_fp8 import PLAIN, ROPE, SCALED, WIDTH, Rows
from .library import arrays
from .stage_scratch import current_stream, take
from .verify_attn_check import self_check_fp8 as self_check  # noqa: F401  the library asks for it

if TYPE_CHECKING:
    from .library import Run

Array = Any
FILE, FILE_FEW, FILE_WIDEN = "verify_attn_fp8.cu", "verify_attn_few_fp8.cu", "verify_attn_widen.cu"
UNIT = 16
LEAST_STAGES, MOST_STAGES = 5, 8
"""Units in the ring: 64 rows of Q pass through it on their way to registers."""
SLOTS_ALONE, MOST_ALONE = 8, 8
"""Slots for KV units where one request has up to so many query rows: small blocks start and end sooner."""
WIDE_MEGABYTES = 1024
"""Most scratch memory for widened rows, in units of 2^20 bytes; the macro KD_WIDE_MB overrules it."""
WIDEN_THREADS, WIDEN_ROWS = 288, 4
"""Threads of a block of the widening kernel, and rows that they write at a time."""


class Many(NamedTuple):
    """A kernel for many query rows that widens KV rows of one format itself."""

    form: Rows
    rows: int = 64
    unit: int = UNIT
    file: str = FILE

    @property
    def kernel(self) -> str:
        """Its name."""
        return f"verify_attn_{self.form.name}_rows64"

    @property
    def sizes(self) -> tuple[str, tuple[int, ...]]:
        """The macro that sets the number of units in the ring, and numbers to try."""
        return "KD_STAGES", tuple(range(MOST_STAGES, LEAST_STAGES - 1, -1))

    def threads(self, stages: int) -> int:
        """Threads of a block: two groups of four warps."""
        return 256

    def shared_bytes(self, stages: int) -> int:
        """Dynamic shared memory: ``Layout::bytes`` of verify_attn_layout.cuh."""
        group = 2 * (4 * 3 * 512 + 32 * ((96 if self.form.scaled else 48) + 4))
        pitch = self.form.bytes + (0 if self.form.bytes // 16 % 2 else 16)
        tail = self.rows * (2 * ROPE + 16) + (2 * stages + 2) * 8 + 144 + 8 * self.rows
        return stages * UNIT * pitch + 2 * group + tail


class Few(variants.Few):
    """A kernel for up to ``rows`` query rows on KV rows of one format."""

    @property
    def form(self) -> Rows:
        """The format."""
        return SCALED if "scaled" in self.kernel else PLAIN

    @property
    def sizes(self) -> tuple[str, tuple[int, ...]]:
        """The macro that sets the number of slots for units, and numbers to try."""
        return "KD_SLOTS", (16, 8)

    def warps(self, slots: int) -> int:
        """Warps of a block: ``FewLayout::warps``."""
        return 4 if slots < 12 else 8

    def shared_bytes(self, slots: int) -> int:
        """Dynamic shared memory of a block: ``FewLayout::bytes``."""
        unit = UNIT * self.form.bytes + (0 if self.form.scaled else 16 * UNIT // 2)
        units = 128 * self.warps(slots) if self.form.scaled else 0
        return slots * unit + 64 * self.warps(slots) + units + (2 * slots + 1) * 8 + 144


FORMS = (SCALED, PLAIN)
FEW = {
    form.name: tuple(Few(f"verify_attn_{form.name}_few{rows}", rows, FILE_FEW) for rows in (8, 16, 32))
    for form in FORMS
}
MANY = {form.name: Many(form) for form in FORMS}
DYNAMIC_SHARED = {one.kernel: one.shared_bytes(LEAST_STAGES) for one in MANY.values()}
DYNAMIC_SHARED |= {one.kernel: one.shared_bytes(8) for three in FEW.values() for one in three}
"""Least dynamic shared memory of each kernel, in bytes: what a card with 100 KB for a block gets."""


def variant_for(form: Rows, query_rows: int, splits: int | str) -> Few | Many:
    """Return the kernel that reads rows of a format; "fixed" splits have one for all query rows."""
    if splits != "fixed":
        for few in FEW[form.name]:
            if query_rows <= few.rows:
                return few
    return MANY[form.name]


def most_scratch(macros: Mapping[str, Any]) -> int:
    """Return the bound on scratch memory, in bfloat16 numbers."""
    return int(macros.get("KD_WIDE_MB", WIDE_MEGABYTES)) << 19


def fits_scratch(a: Any, macros: Mapping[str, Any]) -> bool:
    """Return whether all rows of the cache and of the nodes, widened, fit the bound on scratch memory."""
    rows = math.prod(a.cache.shape[:2]) + (0 if a.tree_kv is None else math.prod(a.tree_kv.shape[:2]))
    return WIDTH * rows <= most_scratch(macros)


def widen(run: Run, a: Any) -> Any:
    """Launch the widening kernel; return the arguments with its rows in place of the 8-bit ones.

    Sizes are powers of two, so that caches which grow leave no more memory behind than the last one takes.
    """
    stream, most_numbers = current_stream(run, a.q), most_scratch(run.library.defines)

    def scratch(name: str, like: Array | None) -> Array | None:
        if like is None:
            return None
        size = math.prod(like.shape[:2]) * WIDTH
        taken = min(1 << max(size - 1, 0).bit_length(), most_numbers)
        return take(run, stream, name, taken, "bfloat16")[:size].reshape((*like.shape[:2], WIDTH))

    wide = a._replace(cache=scratch("wide", a.cache), tree_kv=scratch("wide_tree", a.tree_kv), rows=None)
    batch, nodes, *_ = a.q.shape
    _, page_size, _ = a.cache.shape
    pages = 1 if a.page_table is None else a.page_table.shape[1]
    most = math.ceil((pages * page_size + nodes) / WIDEN_ROWS)
    blocks = min(most, max(1, 6 * variants.card(run.device).multiprocessors // batch))
    run.launch(
        FILE_WIDEN, f"verify_attn_widen_{a.rows.name}", (blocks, batch), WIDEN_THREADS,
        (a.cache, a.tree_kv, a.lengths, a.counts, a.page_table, wide.cache, wide.tree_kv, nodes,
         np.int64(page_size), page_size, pages),
        early=common.starts_early(run),
    )  # fmt: skip
    return wide


def launch(run: Run, arguments: Any, splits: int | str, out: Array, lse: Array) -> None:
    """Run the kernels into ``out`` and ``lse``; does not wait for the device."""
    a, form = arguments, arguments.rows
    if 0 in a.q.shape:
        return
    _, nodes, heads, _ = a.q.shape
    query, result = arrays.handle(a.q).dtype, arrays.handle(out).dtype
    common.check_alignment(a, out)
    if query != "bfloat16":
        run.launch(
            FILE, f"verify_attn_{form.name}_v1", (nodes * heads, len(a.q)), 128,
            (*common.arrays_of(a, out, lse), *common.sizes_of(a), np.float32(a.scale),
             np.float32(a.kv_scale or 1.0)),
            defines={"KD_QUERY": common.CXX[query], "KD_OUT": common.CXX[result], "KD_EXACT_ONLY": 1},
        )  # fmt: skip
        return
    on, macros = variants.card(run.device), run.library.defines
    query_rows = nodes * heads
    variant = variant_for(form, query_rows, splits)
    if isinstance(variant, Many) and splits != "fixed" and fits_scratch(a, macros):
        common.launch(run, widen(run, a), splits, out, lse)
        return
    if len(a.q) == 1 and query_rows <= MOST_ALONE and "KD_SLOTS" not in macros:
        macros = {**macros, "KD_SLOTS": SLOTS_ALONE}
    block = variants.block_for(variant, on, macros)
    defines: dict[str, Any] = {} if result == query else {"KD_OUT": common.CXX[result]}
    defines[f"KD_{form.name.upper()}_ONLY"] = 1
    common.launch_tiles(run, a, splits, (out, lse), variant, block, defines)
