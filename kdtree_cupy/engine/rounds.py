"""Records of decoding: what a batch was asked for, and what each round did."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ..tree import DraftTree


class Round(NamedTuple):
    """One round of one request.

    Attributes
    ----------
    index : int
        0 for the prompt's own pass, which gives the first token; rounds proper count from 1.
    request : int
    root : int
        Place of the root in the response; -1 for the prompt's pass.
    tree : DraftTree or None
        A batch of one, on the host.
    path : list of int
        Accepted nodes, root included.
    tokens : list of int
        What the round adds to the response: drafts on the path, then the target's own token; cut at a stop
        token and at ``max_new``.
    """

    index: int
    request: int
    root: int
    tree: DraftTree | None
    path: list[int]
    tokens: list[int]


@dataclass(frozen=True)
class Settings:
    """Arguments of :func:`~kdtree_cupy.engine.generate.generate`; nodes of a round; seeds by request."""

    mode: str
    nodes: int
    max_new: int
    temperature: float
    top_p: float
    seeds: tuple[tuple[int, int], ...]
    stop_tokens: tuple[int, ...]
    page_size: int

    @property
    def shape(self) -> tuple[object, ...]:
        """Return what a captured round depends on."""
        return self.mode, self.nodes, self.max_new, self.temperature, self.top_p, self.page_size
