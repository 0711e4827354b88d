"""Kernels of verify_attn, and the block of each that a card has room for.

``kernels_cu/verify_attn.cu`` explains them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from .library import KernelLibrary

NOTHING: Mapping[str, Any] = MappingProxyType({})
FILE, FILE_SM90, FILE_FEW = "verify_attn.cu", "verify_attn_sm90.cu", "verify_attn_few.cu"
LATENT, WIDTH, UNIT = 512, 576, 16
PITCH = 2 * WIDTH + 16
"""Bytes from row to row in shared memory."""
HOST_BLOCKS = 5
"""Blocks on the host: few, but enough that tiles are cut."""


class Variant(NamedTuple):
    """One kernel: ``rows`` query rows a block, ``groups`` groups of four warps, units of ``unit`` KV rows."""

    file: str
    kernel: str
    rows: int
    groups: int
    unit: int = UNIT

    @property
    def sizes(self) -> tuple[str, tuple[int, ...]]:
        """The macro that sets the number of units in the ring, and numbers to try; "" if it is fixed."""
        return ("", (3,)) if self.file == FILE_SM90 else ("KD_STAGES", (8, 7, 6, 5, 4, 3))

    def threads(self, stages: int) -> int:
        """Threads of a block."""
        return 128 * self.groups

    def shared_bytes(self, stages: int) -> int:
        """Dynamic shared memory: ``Layout::bytes`` of verify_attn_tile.cuh, or of verify_attn_groups.cuh."""
        if self.file == FILE_SM90:
            ring, q = stages * self.unit * WIDTH * 2, self.rows * (WIDTH - 128) * 2
            tail = 2 * (stages + 4) * 8 + 2 * 144 + stages * self.rows * 8
            return ring + q + 128 * (3 * 16 + 8) + tail
        tiles = self.rows // (16 * self.groups)
        group = 2 * (4 * 3 * 512 + 16 * tiles * (48 + 4))
        rope = self.rows * (2 * (WIDTH - LATENT) + 16)
        tail = (2 * stages + 2) * 8 + 144 + 8 * self.rows
        return stages * UNIT * PITCH + self.groups * group + rope + tail


class Few(NamedTuple):
    """A kernel for up to ``rows`` query rows, bound by memory."""

    kernel: str
    rows: int
    file: str = FILE_FEW
    unit: int = UNIT

    @property
    def sizes(self) -> tuple[str, tuple[int, ...]]:
        """The macro that sets the number of slots for units, and numbers to try."""
        return "KD_SLOTS", (12, 8, 5) if self.rows == 32 else (8, 5)

    def warps(self, slots: int) -> int:
        """Warps of a block: ``FewLayout::warps``."""
        return 4 if slots < 12 else 6 if self.rows == 8 else 8

    def threads(self, slots: int) -> int:
        """Threads of a block."""
        return 32 * self.warps(slots)

    def shared_bytes(self, slots: int) -> int:
        """Dynamic shared memory of a block: ``FewLayout::bytes``."""
        unit = UNIT // 2 * (4 * WIDTH + 16)
        return slots * unit + 64 * self.warps(slots) + (2 * slots + 1) * 8 + 144


ROWS64 = Variant(FILE, "verify_attn_rows64", 64, 2)
WGMMA = Variant(FILE_SM90, "verify_attn_wgmma", 64, 3, 48)
FEW = tuple(Few(f"verify_attn_few{rows}", rows) for rows in (8, 16, 32))
DYNAMIC_SHARED = {one.kernel: one.shared_bytes(3) for one in (ROWS64, WGMMA)}
DYNAMIC_SHARED |= {one.kernel: one.shared_bytes(5) for one in FEW}
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


def variant_for(rows: int, splits: int | str, warp_groups: bool) -> Variant | Few:
    """Return the kernel for ``rows`` (node, head) pairs; one for all if results must not depend on N."""
    if splits != "fixed":
        for few in FEW:
            if rows <= few.rows:
                return few
        if warp_groups:
            return WGMMA
    return ROWS64


def uses_warp_groups(library: KernelLibrary, on: Card) -> bool:
    """Return whether the sm_90a kernel may run; the macro KD_WARP_GROUPS (0, 1) overrules the card."""
    return bool(int(library.defines.get("KD_WARP_GROUPS", on.capability == (9, 0))))


class Block(NamedTuple):
    """Threads, dynamic shared memory and macros of one block."""

    threads: int
    shared_bytes: int
    defines: dict[str, int]


def block_for(variant: Any, on: Card, macros: Mapping[str, Any] = NOTHING) -> Block:
    """Return the largest block of ``variant`` that the card has room for.

    The macros KD_STAGES (units in the ring of the portable kernel) and KD_SLOTS (units in a block of the
    kernels for few rows) ask for a size.
    """
    name, sizes = variant.sizes
    if name in macros:
        sizes = (int(macros[name]),)
    for size in sizes:
        needed = variant.shared_bytes(size)
        if needed <= on.block_shared:
            return Block(variant.threads(size), needed, {name: size} if name else {})
    raise ValueError(
        f"{variant.kernel} needs {needed} bytes of shared memory, the card has {on.block_shared}"
    )
