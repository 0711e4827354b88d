"""What a batch decodes in: its cache, features and captured calls, kept from one batch to the next.

A new batch of the same shape takes the place of one that has ended, so that its rounds need not be captured
again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Hashable

    from .batch_head import BatchHead
    from .cache import PagedCache
    from .context import Drafter
    from .step import Step

Array = Any


@dataclass
class Place:
    """Where a batch is decoded.

    Parameters
    ----------
    drafter : callable or None
        Kept alive with what was captured of it.
    cache : PagedCache
    step : Step or None
        The device's share of a round, made when the first one runs.
    batched : BatchHead or None
        The drafter for the whole batch, if it has one.
    features : float32 [b, room, F] or None
        Outputs of the target's layers.
    """

    drafter: Drafter | None
    cache: PagedCache
    step: Step | None = None
    batched: BatchHead | None = None
    features: Array | None = None

    def close(self) -> None:
        """Free what was captured now, not when Python next looks for cycles."""
        for captured in (self.step, self.batched):
            if captured:
                captured.close()


class Places:
    """The place of the batch that ended last."""

    def __init__(self) -> None:
        self._free: dict[Hashable, Place] = {}

    def take(self, key: Hashable) -> Place | None:
        """Return the place if it has this key, that of its shape; if not, it is given up."""
        found = self._free.pop(key, None)
        self._give_up()
        return found

    def leave(self, key: Hashable, place: Place) -> None:
        """Keep a place whose requests have all ended; the one before is given up."""
        self._give_up()
        self._free = {key: place}

    def _give_up(self) -> None:
        for place in self._free.values():
            place.close()
        self._free = {}
