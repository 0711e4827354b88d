"""JetSpec's acceptance profiles: a table by depth and rank."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..errors import KdtrError
from ..files import open_regular


class JetSpecProfile(NamedTuple):
    """A profile.

    Attributes
    ----------
    accept : float64 [D, W]
        ``depth_rank_accept`` as in the file.
    conditional : float64 [D, W] or None
        Acceptance given that the path above was accepted, which ``static`` and ``fan_out`` want; from the
        counts, None without them.
    meaning : str
        What ``accept`` counts.
    """

    accept: np.ndarray
    conditional: np.ndarray | None
    meaning: str


def load_profile(path: str | Path) -> JetSpecProfile:
    """Read a profile JSON ``{"depth_rank_accept": [[...]], "meta": {...}}``.

    Notes
    -----
    Two tools write this name with two meanings.  With ``presence_counts`` and ``accepted_counts`` a cell is
    accepted / present: the survival of the path above is in it.  Then rounds that reached depth d - 1 are
    the accepted nodes of that depth (of depth 1: the rounds), and ``conditional`` divides by them.  Without
    counts a cell is the share of all expanded parents, on or off the path.

    Raises
    ------
    KdtrError
        Unreadable, no such table, or values outside [0, 1].
    """
    with open_regular(path) as handle:
        raw = handle.read(64 << 20)
    try:
        data = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise KdtrError(f"{path}: not JSON: {error}") from error
    if not isinstance(data, dict) or "depth_rank_accept" not in data:
        raise KdtrError(f"{path}: no depth_rank_accept inside: not a JetSpec profile")
    accept = _table(path, "depth_rank_accept", data["depth_rank_accept"])
    if not ((accept >= 0) & (accept <= 1)).all():
        raise KdtrError(f"{path}: depth_rank_accept: got values outside [0, 1]")
    meta = data.get("meta") if isinstance(data.get("meta"), dict) else {}
    if not {"presence_counts", "accepted_counts"} <= set(meta):
        return JetSpecProfile(
            accept, None, "share of the target's picks at all expanded parents, on and off the path"
        )
    present, accepted = (_table(path, k, meta[k]) for k in ("presence_counts", "accepted_counts"))
    if present.shape != accept.shape or accepted.shape != accept.shape or (accepted > present).any():
        raise KdtrError(f"{path}: meta: counts that do not fit the table")
    reached = np.concatenate([[present[0].max()], accepted.sum(1)[:-1]])
    conditional = accepted / np.maximum(reached, 1.0)[:, None]
    return JetSpecProfile(
        accept, np.minimum(conditional, 1.0), "accepted nodes / nodes of that depth and rank"
    )


def _table(path: str | Path, name: str, value: object) -> np.ndarray:
    try:
        table = np.asarray(value, np.float64)
    except (TypeError, ValueError) as error:
        raise KdtrError(f"{path}: {name}: wanted rows of numbers of one length") from error
    if table.ndim != 2 or table.size == 0 or not np.isfinite(table).all() or (table < 0).any():
        raise KdtrError(f"{path}: {name}: got shape {table.shape}, wanted [depth, rank] of numbers >= 0")
    return table
