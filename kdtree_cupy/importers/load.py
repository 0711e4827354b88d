"""Tell a file's kind by what is in it, and read it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import KdtrError
from ..files import open_regular
from .record import Measured, from_histograms
from .torch_file import Plain, read_torch

_MAX_JSON = 512 << 20
_LONGEST = 4096  # tokens per round that are believable
_BONUS = "The file counts accepted drafts without the bonus token; one was added per round."


def load_measured(path: str | Path) -> list[Measured]:
    """Return the measured runs of a file; a DDTree run file holds one per method.

    Parameters
    ----------
    path : path-like
        ``.pt`` of DDTree's benchmark, or JSON or JSON lines of SGLang, vLLM, AIPerf, EAGLE or Medusa.

    Raises
    ------
    KdtrError
        Unreadable, none of these kinds, or numbers that contradict each other; names the file.
    """
    path = Path(path)
    with open_regular(path) as handle:
        start = handle.read(2)
    if start == b"PK":
        return ddtree_run(path)
    values = _json_values(path)
    found = list(_histograms(path, values))
    if found:
        out = []
        for system in dict.fromkeys(kind for kind, _ in found):
            mine = [h for kind, h in found if kind == system]
            out.append(from_histograms(path, path.stem, system, _BONUS, mine))
        return out
    turns = list(_turns(path, values))
    if turns:
        return [_answers(path, turns)]
    raise KdtrError(
        f"{path}: no spec_accept_histogram, acceptance_histogram, or idxs with new_tokens inside: "
        "wanted responses of SGLang, vLLM or AIPerf, or answers of EAGLE or Medusa"
    )


def ddtree_run(path: Path) -> list[Measured]:
    """Return the methods of a run file of DDTree's benchmark (``responses``, ``args``)."""
    data = read_torch(path)
    responses = data.get("responses") if isinstance(data, dict) else None
    if not isinstance(responses, list) or not responses or not all(isinstance(r, dict) for r in responses):
        raise KdtrError(f"{path}: no list 'responses' of methods inside: not a DDTree run")
    facts = {k: v for k, v in data.items() if isinstance(v, str | int | float)}
    out = []
    for method in responses[0]:
        rows = [_lengths(path, i, method, response) for i, response in enumerate(responses)]
        rows = [row for row in rows if row.size]
        if not rows or method == "baseline":
            continue
        budget = re.search(r"_tb(\d+)$", str(method))
        tokens, rounds = np.array([r.sum() for r in rows], float), np.array([r.size for r in rows], float)
        counts = np.bincount(np.concatenate(rows))
        note = "acceptance_lengths count the bonus token: taken as they are."
        size = int(budget[1]) if budget else None
        out.append(Measured(str(method), "DDTree", note, tokens, rounds, counts, size, facts))
    if not out:
        raise KdtrError(f"{path}: no method with acceptance_lengths")
    return out


def _lengths(path: Path, index: int, method: Any, response: dict[Any, Any]) -> np.ndarray:
    one = response.get(method)
    values = one.__dict__.get("acceptance_lengths") if isinstance(one, Plain) else None
    row = np.asarray(values if values is not None else [])
    if row.size and (
        row.dtype.kind not in "iuf" or row.ndim != 1 or (row < 0).any() or (row > _LONGEST).any()
    ):
        raise KdtrError(f"{path}: responses[{index}][{method!r}].acceptance_lengths: wanted counts of tokens")
    return row.astype(np.int64)


def _json_values(path: Path) -> list[Any]:
    """Return the values of a JSON file, or of the lines of a JSON-lines file."""
    with open_regular(path) as handle:
        raw = handle.read(_MAX_JSON + 1)
    if len(raw) > _MAX_JSON:
        raise KdtrError(f"{path}: more than {_MAX_JSON >> 20} MiB of JSON")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise KdtrError(
            f"{path}: not UTF-8 text at byte {error.start}: neither JSON nor a torch file"
        ) from error
    try:
        return [json.loads(text)]
    except (ValueError, RecursionError):
        pass
    values = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                values.append(json.loads(line))
            except (ValueError, RecursionError) as error:
                raise KdtrError(f"{path}: line {number}: not JSON: {error}") from error
    return values


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    """Yield every JSON object inside, outermost first."""
    stack = [value]
    while stack:
        one = stack.pop()
        if isinstance(one, dict):
            yield one
        if isinstance(one, dict | list):
            stack.extend(reversed(list(one.values() if isinstance(one, dict) else one)))


def _histograms(path: Path, values: list[Any]) -> Iterator[tuple[str, np.ndarray]]:
    """Yield (system, rounds by tokens committed) of every request that carries a histogram."""
    for one in _objects(values):
        for key, system in (
            ("spec_correct_drafts_histogram", "SGLang"),  # the newer name; both may be there
            ("spec_accept_histogram", "SGLang"),
            ("acceptance_histogram", "vLLM/AIPerf"),
        ):
            if one.get(key):
                drafts = _counts(path, key, one[key])
                _check_mean(path, one, drafts)
                yield system, np.concatenate([[0], drafts])
                break


def _counts(path: Path, key: str, value: Any) -> np.ndarray:
    """Return rounds by accepted drafts from a list or from a sparse {"drafts": rounds} object."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    try:
        table = {int(n): int(c) for n, c in pairs if c == int(c)}
    except (TypeError, ValueError, OverflowError) as error:
        raise KdtrError(f"{path}: {key}: wanted counts by number of drafts, got {value!r:.60}") from error
    if len(table) != len(value) or min(table) < 0 or max(table) >= _LONGEST or min(table.values()) < 0:
        raise KdtrError(f"{path}: {key}: wanted counts by number of drafts, got {value!r:.60}")
    out = np.zeros(max(table) + 1, np.int64)
    out[list(table)] = list(table.values())
    return out


def _check_mean(path: Path, one: dict[str, Any], drafts: np.ndarray) -> None:
    """Raise if the object's own mean says that its histogram counts something else."""
    mean = one.get("mean_acceptance_length")
    if isinstance(mean, int | float) and drafts.sum():
        ours = 1.0 + float((drafts * np.arange(drafts.size)).sum() / drafts.sum())
        if abs(ours - mean) > 0.01:
            raise KdtrError(
                f"{path}: mean_acceptance_length {mean} is not 1 + mean of the histogram ({ours:.3f}): "
                "an unknown convention"
            )


def _turns(path: Path, values: list[Any]) -> Iterator[tuple[float, float]]:
    """Yield (tokens, rounds) of every answer: its turns added up."""
    for one in _objects(values):
        if "idxs" in one and "new_tokens" in one:
            idxs, tokens = (np.asarray(one[k]) for k in ("idxs", "new_tokens"))
            if idxs.shape != tokens.shape or idxs.dtype.kind not in "iuf" or tokens.dtype.kind not in "iuf":
                raise KdtrError(
                    f"{path}: idxs and new_tokens: wanted numbers, as many of one as of the other"
                )
            if idxs.size and (idxs >= 0).all() and (tokens >= 0).all():
                yield float(tokens.sum()), float((idxs + 1).sum())


def _answers(path: Path, turns: list[tuple[float, float]]) -> Measured:
    tokens, rounds = np.array(turns).T
    note = "idxs is the index of the last decoding step: rounds = idxs + 1; new_tokens count the bonus."
    return Measured(path.stem, "EAGLE/Medusa", note, tokens, rounds)
