"""The trace schema, checked array by array: every message names the file, the array and the index."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from .errors import KdtrError
from .limits import MAX_DEPTH, MAX_WIDTH

if TYPE_CHECKING:
    from collections.abc import Mapping

REQUIRED = ("sequence_offsets", "tokens", "draft_ids", "draft_logprobs")
OPTIONAL = (
    "prompt_offsets", "prompt_tokens", "target_ids", "target_logprobs", "draft_next_logprob", "vocab_bytes",
    "vocab_offsets",
)  # fmt: skip
PAIRS = (
    ("prompt_offsets", "prompt_tokens"), ("target_ids", "target_logprobs"), ("vocab_offsets", "vocab_bytes")
)  # fmt: skip
SCHEMA = "kdtrace/1"
FLOATS = (np.float32, np.float16)
_TOP = int(np.iinfo(np.int32).max)  # tokens are int32
_CHUNK = 4096  # positions checked at once: bounds memory on large memory-mapped traces


def check_arrays(name: str, arrays: Mapping[str, np.ndarray], vocab_size: int | None) -> None:
    """Raise :class:`KdtrError` at the first fault of a trace's arrays.

    Parameters
    ----------
    name : str
        File, for the messages.
    arrays : mapping of str to array
        Arrays of docs/traces.md.
    vocab_size : int or None
        Tokens must be below it; None: only non-negative.
    """
    for key in REQUIRED:
        if key not in arrays:
            raise KdtrError(
                f"{name}: array {key!r} is missing: not a draft trace (needs {', '.join(REQUIRED)})"
            )
    for key in (*REQUIRED, *OPTIONAL):
        if key in arrays and not isinstance(arrays[key], np.ndarray):
            got = type(arrays[key]).__name__
            raise KdtrError(f"{name}: array {key!r}: got {got}, wanted a numpy array")
    for one, other in PAIRS:
        if (one in arrays) != (other in arrays):
            raise KdtrError(f"{name}: {one} and {other}: one without the other")
    total = _check_vector(name, "tokens", arrays["tokens"])
    _check_offsets(name, "sequence_offsets", arrays["sequence_offsets"], total)
    _check_tokens(name, "tokens", arrays["tokens"], vocab_size)
    _check_draft(name, arrays, total, vocab_size)
    if "prompt_offsets" in arrays:
        prompts = _check_vector(name, "prompt_tokens", arrays["prompt_tokens"])
        _check_offsets(name, "prompt_offsets", arrays["prompt_offsets"], prompts)
        _check_tokens(name, "prompt_tokens", arrays["prompt_tokens"], vocab_size)
        if arrays["prompt_offsets"].size != arrays["sequence_offsets"].size:
            got = arrays["prompt_offsets"].size
            raise KdtrError(f"{name}: prompt_offsets: got {got} entries, wanted one prompt per sequence")
    if "target_ids" in arrays:
        ids, logprobs = arrays["target_ids"], arrays["target_logprobs"]
        _check_kinds(name, "target", ids, logprobs)
        if ids.ndim != 2 or ids.shape[0] != total or logprobs.shape != ids.shape:
            got = f"target_ids {ids.shape}, target_logprobs {logprobs.shape}"
            raise KdtrError(f"{name}: {got}: wanted [{total}, ranks]")
        _check_rows(name, "target", ids, logprobs, vocab_size)
    if "vocab_offsets" in arrays:
        _check_vocabulary(name, arrays["vocab_offsets"], arrays["vocab_bytes"], vocab_size)


def _check_vocabulary(name: str, offsets: np.ndarray, data: np.ndarray, vocab_size: int | None) -> None:
    if data.ndim != 1 or data.dtype != np.uint8:
        raise KdtrError(f"{name}: array 'vocab_bytes': got {data.dtype} {data.shape}, wanted uint8 [bytes]")
    _check_offsets(name, "vocab_offsets", offsets, data.size)
    if vocab_size is not None and offsets.size != vocab_size + 1:
        got = f"got {offsets.size} entries, wanted vocab_size + 1 = {vocab_size + 1}"
        raise KdtrError(f"{name}: array 'vocab_offsets': {got}")


def _check_kinds(name: str, kind: str, ids: np.ndarray, logprobs: np.ndarray) -> None:
    if ids.dtype.kind not in "iu":
        raise KdtrError(f"{name}: array '{kind}_ids': got {ids.dtype}, wanted integers")
    if logprobs.dtype not in FLOATS:
        got = f"got {logprobs.dtype}, wanted float32 (or float16)"
        raise KdtrError(f"{name}: array '{kind}_logprobs': {got}")


def _check_vector(name: str, key: str, array: np.ndarray) -> int:
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise KdtrError(
            f"{name}: array {key!r}: got {array.dtype} {array.shape}, wanted a vector of integers"
        )
    return array.size


def _check_offsets(name: str, key: str, offsets: np.ndarray, total: int) -> None:
    if _check_vector(name, key, offsets) < 2:
        raise KdtrError(f"{name}: array {key!r}: got {offsets.size} entries, wanted at least one sequence")
    steps = np.diff(offsets.astype(np.int64))
    if (steps < 0).any():
        i = int(np.argmax(steps < 0))
        raise KdtrError(
            f"{name}: {key}[{i + 1}] = {int(offsets[i + 1])} is below {key}[{i}] = {int(offsets[i])}"
        )
    if int(offsets[0]) != 0 or int(offsets[-1]) != total:
        raise KdtrError(
            f"{name}: array {key!r} runs from {int(offsets[0])} to {int(offsets[-1])}, wanted 0 to {total}"
        )


def _check_tokens(name: str, key: str, tokens: np.ndarray, vocab_size: int | None) -> None:
    top = _TOP if vocab_size is None else vocab_size - 1
    for start in range(0, tokens.shape[0], _CHUNK):
        part = tokens[start : start + _CHUNK]
        bad = (part < 0) | (part > top)
        if bad.any():
            at = tuple(int(i[0]) for i in np.nonzero(bad))
            index = ", ".join(map(str, (at[0] + start, *at[1:])))
            raise KdtrError(f"{name}: {key}[{index}] = {int(part[at])}, wanted 0..{top} (vocabulary)")


def _check_draft(name: str, arrays: Mapping[str, np.ndarray], total: int, vocab_size: int | None) -> None:
    ids, logprobs = arrays["draft_ids"], arrays["draft_logprobs"]
    _check_kinds(name, "draft", ids, logprobs)
    if ids.ndim != 3 or ids.shape[0] != total:
        raise KdtrError(f"{name}: array 'draft_ids': got shape {ids.shape}, wanted [{total}, depth, width]")
    if logprobs.shape != ids.shape:
        got = logprobs.shape
        raise KdtrError(f"{name}: array 'draft_logprobs': got shape {got}, wanted {ids.shape} as draft_ids")
    _, depth, width = ids.shape
    if not 1 <= depth <= MAX_DEPTH or not 1 <= width <= MAX_WIDTH:
        raise KdtrError(
            f"{name}: depth D = {depth}, width K = {width}; wanted 1..{MAX_DEPTH} and 1..{MAX_WIDTH}"
        )
    _check_rows(name, "draft", ids, logprobs, vocab_size)
    extra = arrays.get("draft_next_logprob")
    if extra is None:
        return
    if extra.shape != (total, depth) or extra.dtype != logprobs.dtype:  # rounded alike, or the order is lost
        got = f"got {extra.dtype} {extra.shape}, wanted {logprobs.dtype} {(total, depth)} as draft_logprobs"
        raise KdtrError(f"{name}: array 'draft_next_logprob': {got}")
    bad = ~(extra <= logprobs[:, :, -1])
    if bad.any():
        t, d = (int(i[0]) for i in np.nonzero(bad))
        what = "wanted at most the last kept log-prob"
        raise KdtrError(f"{name}: draft_next_logprob[{t}, {d}] = {extra[t, d]}, {what}")


def _check_rows(name: str, kind: str, ids: np.ndarray, logprobs: np.ndarray, vocab_size: int | None) -> None:
    """Check rows of best tokens: finite order, no positives, no repeats, tokens in the vocabulary."""
    key = f"{kind}_logprobs"
    for start in range(0, ids.shape[0], _CHUNK):
        part = np.asarray(logprobs[start : start + _CHUNK])
        tests: list[tuple[np.ndarray, str]] = [(np.isnan(part), "is not a number"), (part > 0, "is above 0")]
        rising = np.zeros(part.shape, bool)
        rising[..., 1:] = part[..., 1:] > part[..., :-1]
        tests.append((rising, "is above the one before it: rows must descend"))
        for bad, what in tests:
            if bad.any():
                at = tuple(int(i[0]) for i in np.nonzero(bad))
                index = ", ".join(map(str, (at[0] + start, *at[1:])))
                raise KdtrError(f"{name}: {key}[{index}] = {part[at]} {what}")
        rows = np.sort(ids[start : start + _CHUNK], axis=-1)
        repeated = (rows[..., 1:] == rows[..., :-1]).any(-1)
        if repeated.any():
            at = tuple(int(i[0]) for i in np.nonzero(repeated))
            index = ", ".join(map(str, (at[0] + start, *at[1:])))
            raise KdtrError(f"{name}: {kind}_ids[{index}] holds a token twice")
    _check_tokens(name, f"{kind}_ids", ids, vocab_size)


_HEADER_TYPES: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("name", "schema", "target", "drafter", "task", "source", "licence"), (str,)),
    **dict.fromkeys(("vocab_size", "depth", "width", "block", "K"), (int,)),
    "temperature": (int, float),
    "seed": (int, type(None)),
    "stop_tokens": (list,),
}  # block and K: older names of depth and width


def check_header(name: str, header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    """Raise :class:`KdtrError` where the JSON header contradicts the schema or the arrays."""
    for key, kinds in _HEADER_TYPES.items():
        value = header.get(key)
        if key in header and (not isinstance(value, kinds) or isinstance(value, bool)):
            wanted = " or ".join(k.__name__ for k in kinds)
            raise KdtrError(f"{name}: header field {key!r}: got {value!r}, wanted {wanted}")
    if header.get("schema", SCHEMA) != SCHEMA:
        raise KdtrError(f"{name}: header field 'schema': got {header['schema']!r}, this reads {SCHEMA!r}")
    vocab_size = header.get("vocab_size", _TOP + 1)
    if not 1 <= vocab_size <= _TOP + 1:
        raise KdtrError(f"{name}: header field 'vocab_size': got {vocab_size}, wanted 1..{_TOP + 1}")
    temperature = header.get("temperature", 0.0)
    if not 0 <= temperature < math.inf:
        raise KdtrError(f"{name}: header field 'temperature': got {temperature}, wanted >= 0")
    for token in header.get("stop_tokens", []):
        if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token < vocab_size:
            wanted = f"wanted token ids in 0..{vocab_size - 1}"
            raise KdtrError(f"{name}: header field 'stop_tokens': got {token!r}, {wanted}")
    if "draft_ids" in arrays and np.ndim(arrays["draft_ids"]) == 3:
        _, depth, width = np.shape(arrays["draft_ids"])
        for keys, have in ((("depth", "block"), depth), (("width", "K"), width)):
            for key in keys:
                if key in header and header[key] != have:
                    raise KdtrError(f"{name}: header field {key!r} = {header[key]}, but draft_ids has {have}")
