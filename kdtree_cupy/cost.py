"""Cost tables: what a round takes, so that acceptance becomes a predicted speedup.

A table is a JSON file of one of two kinds.  *Times*: ``verify_ms[context][n]`` with ``ar_ms[context]``,
``draft_ms``, ``build_ms`` and ``commit_ms``.  *Ratios*: ``round_ar[context][n]``, the whole round in units of
one autoregressive step.  ``nodes`` lists n, the draft nodes verified; between entries and contexts values are
linear, below the first n they stay flat, beyond the last n they go on with the last slope.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .errors import KdtrError

_FOLDER = Path(__file__).resolve().parent / "costs"
_NUMBERS = ("draft_ms", "build_ms", "commit_ms", "chain_round_ar", "default_context")


@dataclass(frozen=True)
class CostTable:
    """One table; see the module's text.

    Parameters
    ----------
    name, kind, hardware, model, source, note : str
        ``kind`` is "published" or "measured".
    nodes, contexts : float64 [n], float64 [c]
        Ascending.
    verify_ms : float64 [c, n] or None
        Milliseconds; None for a ratio table.
    ar_ms : float64 [c] or None
        Milliseconds of one autoregressive step.
    round_ar : float64 [c, n] or None
        Round / AR step of a ratio table.
    draft_ms, build_ms, commit_ms : float
    chain_round_ar : float or None
        A ratio table's own figure for the chain.
    default_context : float
    path : Path or None
        The file it was read from.
    """

    name: str
    kind: str
    hardware: str
    model: str
    source: str
    note: str
    nodes: np.ndarray
    contexts: np.ndarray
    verify_ms: np.ndarray | None = None
    ar_ms: np.ndarray | None = None
    round_ar: np.ndarray | None = None
    draft_ms: float = 0.0
    build_ms: float = 0.0
    commit_ms: float = 0.0
    chain_round_ar: float | None = None
    default_context: float = 0.0
    path: Path | None = None

    def label(self, context: float | None = None) -> str:
        """Return hardware, model, context and kind in one line, for figures."""
        at = self.default_context if context is None else context
        where = f", context {at:g}" if self.contexts.size > 1 else ""
        return f"{self.hardware}; {self.model}{where} ({self.kind})"


def available() -> list[str]:
    """Return the names of the tables that come with the package."""
    return sorted(path.stem for path in _FOLDER.glob("*.json"))


def load_cost(name: str | Path) -> CostTable:
    """Load a table by name or from a JSON file.

    Raises
    ------
    KdtrError
        Unknown name, or a file that is no cost table; the message lists the names or names the field.
    """
    path = Path(name)
    if path.suffix != ".json":
        path = _FOLDER / f"{name}.json"
        if str(name) not in available():
            raise KdtrError(
                f"cost table {str(name)!r}: unknown; have {', '.join(available())}, or give a .json file"
            )
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise KdtrError(f"{path}: not a readable cost table: {error}") from error
    return _parse(path, data)


def _parse(path: Path, data: Any) -> CostTable:
    if not isinstance(data, dict):
        raise KdtrError(f"{path}: got {type(data).__name__}, wanted a JSON object")
    nodes, contexts = _numbers(path, data, "nodes", (None,)), _numbers(path, data, "contexts", (None,))
    for key, axis in (("nodes", nodes), ("contexts", contexts)):
        if axis.size == 0 or (np.diff(axis) <= 0).any():
            raise KdtrError(f"{path}: {key}: wanted at least one value, ascending")
    shape = (contexts.size, nodes.size)
    fields: dict[str, Any] = {
        key: str(data.get(key, "unknown")) for key in ("name", "hardware", "model", "source", "note")
    }
    fields["kind"] = data.get("kind")
    if fields["kind"] not in ("published", "measured"):
        raise KdtrError(f"{path}: kind: got {fields['kind']!r}, wanted 'published' or 'measured'")
    if "round_ar" in data:
        fields["round_ar"] = _numbers(path, data, "round_ar", shape)
    else:
        fields["verify_ms"] = _numbers(path, data, "verify_ms", shape)
        fields["ar_ms"] = _numbers(path, data, "ar_ms", shape[:1])
    for key in _NUMBERS:
        if data.get(key) is not None:
            fields[key] = float(_numbers(path, data, key, ()))
    return CostTable(nodes=nodes, contexts=contexts, path=path, **fields)


def _numbers(path: Path, data: dict[str, Any], key: str, shape: tuple[int | None, ...]) -> np.ndarray:
    try:
        array = np.asarray(data[key])
    except (KeyError, ValueError) as error:
        raise KdtrError(f"{path}: {key}: missing or not rows of one length") from error
    if array.dtype.kind not in "iuf":  # strings and nested objects, too
        raise KdtrError(f"{path}: {key}: wanted numbers")
    array = array.astype(np.float64)
    if array.ndim != len(shape) or any(
        want is not None and want != got for want, got in zip(shape, array.shape, strict=True)
    ):
        raise KdtrError(f"{path}: {key}: got shape {array.shape}, wanted {shape}")
    if (
        not np.isfinite(array).all()
        or (array < 0).any()
        or (key in ("verify_ms", "ar_ms", "round_ar") and (array == 0).any())
    ):
        raise KdtrError(f"{path}: {key}: wanted finite positive numbers")
    return array


def _at(table: CostTable, values: np.ndarray, context: float) -> np.ndarray:
    """Interpolate the first axis (contexts) linearly; flat outside."""
    columns = values.reshape(table.contexts.size, -1)
    out = np.array([np.interp(context, table.contexts, column) for column in columns.T])
    return out.reshape(values.shape[1:])


def _along_nodes(table: CostTable, row: np.ndarray, nodes: np.ndarray) -> np.ndarray:
    value = np.interp(nodes, table.nodes, row)
    if table.nodes.size > 1:
        slope = max(0.0, (row[-1] - row[-2]) / (table.nodes[-1] - table.nodes[-2]))
        value = value + slope * np.maximum(nodes - table.nodes[-1], 0.0)
    return value


def round_in_ar_steps(
    table: CostTable, nodes: np.ndarray | float, *, chain: bool = False, context: float | None = None
) -> np.ndarray:
    """Return what a round of ``nodes`` draft nodes costs, in autoregressive steps.

    Parameters
    ----------
    table : CostTable
    nodes : float or float [n]
        Draft nodes verified, root excluded (as the tables count them).
    chain : bool
        The policy is the chain: a ratio table's own chain figure applies.
    context : float, optional
        Prefix length in tokens (default: the table's own).
    """
    at = table.default_context if context is None else context
    wanted = np.asarray(nodes, np.float64)
    if table.round_ar is not None:
        if chain and table.chain_round_ar is not None:
            return np.full(wanted.shape, table.chain_round_ar)
        return _along_nodes(table, _at(table, table.round_ar, at), wanted)
    assert table.verify_ms is not None and table.ar_ms is not None  # _parse saw to it
    verify = _along_nodes(table, _at(table, table.verify_ms, at), wanted)
    return (table.draft_ms + table.build_ms + table.commit_ms + verify) / _at(table, table.ar_ms, at)


def speedup(
    tau_pooled: np.ndarray | float,
    table: CostTable,
    nodes: np.ndarray | float,
    *,
    chain: bool = False,
    context: float | None = None,
) -> np.ndarray:
    """Return predicted speedup over autoregressive decoding: pooled tau / round cost in AR steps.

    The pooled tau is the right one here: time adds up over rounds, so the ratio of sums counts.
    """
    return np.asarray(tau_pooled) / round_in_ar_steps(table, nodes, chain=chain, context=context)
