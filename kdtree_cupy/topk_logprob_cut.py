"""How topk_logprob divides rows among blocks, and how much each block lists."""

from __future__ import annotations

import math
from typing import NamedTuple

from .limits import MAX_WIDTH

THREADS, UNROLL, SLICES, RESIDENT = 256, 5, 32, 4
"""KD_TOPK_THREADS, KD_TOPK_UNROLL, KD_ROW_SLICES, KD_TOPK_RESIDENT of the kernels; a test compares them."""

MOST_ROOM = 8192
"""Most elements that the lists of a row hold together."""


class RowCut(NamedTuple):
    """How rows are divided: slices a row, tiles a slice, and what is listed of them.

    Chunks are dealt to the parts of a row in runs of ``2**group``.  A slice lists up to ``room`` elements:
    those that reach the element number ``rank`` of its first tile.  ``best`` elements are sorted at the end.
    """

    slices: int
    tiles: int
    group: int
    rank: int
    room: int
    best: int


def cut_rows(rows: int, chunks: int, multiprocessors: int, k: int) -> RowCut:
    """Return how to cut rows of so many chunks: enough blocks for the card, none with less than a tile.

    A part of the row has ``k / parts`` of its k best on average.  Five standard deviations more are listed,
    so that one row in a million or so must be looked at again.
    """
    parts = max(1, -(-chunks // (THREADS * UNROLL)))
    slices = max(1, min(parts, RESIDENT * multiprocessors // rows, SLICES))
    tiles = -(-parts // slices)
    share = k / (slices * tiles)
    rank = math.ceil(share + 5 * math.sqrt(share) + 4)
    tops = THREADS * (1 if rank <= THREADS // 4 else UNROLL)  # what the rank is counted among
    reach = -tops * math.log1p(-min(rank / tops, 0.9))  # elements of a tile that reach it
    spread = 1.5 if tiles == 1 else 1 + 5 / math.sqrt(rank)
    room = min(max(math.ceil(spread * reach * tiles) + 24, 64), MOST_ROOM // slices)
    best = 1 << max(8, (k + k // 8).bit_length(), (room // 2 - 1).bit_length())
    return RowCut(slices, tiles, 3 if tiles == 1 else 5, rank, room, min(best, 2 * MAX_WIDTH))
