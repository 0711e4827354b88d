"""Draft traces: what a drafter offered and what the target committed, at every position (docs/traces.md)."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .certificate import PRECISION
from .convert import read_arrays
from .files import encodable
from .npz import MAX_BYTES
from .trace_check import OPTIONAL, REQUIRED, check_arrays, check_header
from .vocabulary import piece, readable

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Mapping

LOOP_THRESHOLD = 0.25
"""A sequence loops if distinct bigrams / bigrams is at most this (small greedy models repeat themselves)."""


@dataclass(frozen=True, repr=False, eq=False)
class Trace:
    """One recorded trace; arrays may be memory-mapped and must not be written to.

    Parameters
    ----------
    name : str
        Short name, for tables and figures.
    header : dict
        ``target, drafter, vocab_size, temperature, task, stop_tokens, source, licence, ...``.
    sequence_offsets : int [S + 1]
        Response tokens of sequence s are ``tokens[o[s]:o[s + 1]]``.
    tokens : int32 [T]
        Tokens that the target committed; the first of a sequence is its first root.
    draft_ids : int [T, D, K]
        For a round whose root is ``tokens[t]``: the drafter's K best tokens for t+1 .. t+D.
    draft_logprobs : float32 [T, D, K]
        Their log-probs over the full vocabulary, descending.
    draft_next_logprob : float32 [T, D] or None
        Log-prob of rank K (the first one left out): sharpens the certificate of truncated rows.
    extra : dict
        Prompts, the target's own best tokens and the vocabulary, where recorded.
    path : Path or None
        File it came from.
    precision : float
        Error of the recorded log-probs, relative to max(1, abs(value)); larger if they were float16.
    """

    name: str
    header: Mapping[str, Any]
    sequence_offsets: np.ndarray
    tokens: np.ndarray
    draft_ids: np.ndarray
    draft_logprobs: np.ndarray
    draft_next_logprob: np.ndarray | None = None
    extra: Mapping[str, np.ndarray] = field(default_factory=dict)
    path: Path | None = None
    precision: float = PRECISION

    @property
    def depth(self) -> int:
        """Drafted positions D."""
        return self.draft_ids.shape[1]

    @property
    def width(self) -> int:
        """Ranks K kept per position."""
        return self.draft_ids.shape[2]

    @property
    def sequences(self) -> int:
        """Number of sequences S."""
        return self.sequence_offsets.size - 1

    @property
    def vocab_size(self) -> int | None:
        """Vocabulary size V, if the header has it."""
        return self.header.get("vocab_size")

    @property
    def lengths(self) -> np.ndarray:
        """Response tokens n of each sequence, int64 [S]."""
        return np.diff(self.sequence_offsets.astype(np.int64))

    def sequence_of(self) -> np.ndarray:
        """Return the sequence of every position, int64 [T]."""
        return np.repeat(np.arange(self.sequences), self.lengths)

    def ended(self) -> np.ndarray:
        """Return which sequences end with a stop token of the header, bool [S].

        Without ``stop_tokens`` none is known to have ended, and the last D rounds of each are censored.
        """
        out = np.zeros(self.sequences, bool)
        filled = self.lengths > 0
        last = self.tokens[self.sequence_offsets[1:][filled].astype(np.int64) - 1]
        out[filled] = np.isin(last, np.asarray(self.header.get("stop_tokens", []), np.int64))
        return out

    def looping(self) -> np.ndarray:
        """Return which sequences loop (:data:`LOOP_THRESHOLD`), bool [S]."""
        return self.distinct_bigrams() <= LOOP_THRESHOLD

    def distinct_bigrams(self) -> np.ndarray:
        """Return distinct bigrams / bigrams of each sequence, float64 [S]; 1 where there is no bigram."""
        out = np.ones(self.sequences)
        for s in range(self.sequences):
            part = self.tokens[self.sequence_offsets[s] : self.sequence_offsets[s + 1]].astype(np.int64)
            if part.size > 1:
                out[s] = np.unique(part[:-1] << 32 | part[1:]).size / (part.size - 1)
        return out

    def true_ranks(self) -> np.ndarray:
        """Return the rank of the target's own token in each drafted row, int16 [T, D].

        -1: not among the K kept ranks; -2: the sequence ends before that position.
        """
        total, depth, _ = self.draft_ids.shape
        ranks = np.full((total, depth), -1, np.int16)
        end = np.repeat(self.sequence_offsets[1:].astype(np.int64), self.lengths)
        position = np.arange(total)
        for d in range(depth):
            inside = position + d + 1 < end
            hit = self.draft_ids[:, d] == self.tokens[np.minimum(position + d + 1, total - 1)][:, None]
            ranks[:, d] = np.where(hit.any(1), hit.argmax(1), -1)
            ranks[~inside, d] = -2
        return ranks

    def text(self, token: int) -> str:
        """Return a token as a label: its text, in quotes if blanks matter; its id without a vocabulary."""
        return readable(self._piece(token)) if self._piece(token) else str(int(token))

    def decode(self, tokens: Iterable[int]) -> str:
        """Return the text of a run of tokens; tokens without text come as ``<id>``."""
        raw = b"".join(self._piece(token) or b"<%d>" % token for token in tokens)
        return raw.decode("utf-8", errors="replace")

    def _piece(self, token: int) -> bytes:
        if "vocab_bytes" not in self.extra:
            return b""
        return piece(self.extra["vocab_offsets"], self.extra["vocab_bytes"], int(token))

    def summary(self) -> dict[str, Any]:
        """Return plain facts for ``kdtree trace info`` and reports."""
        lengths = self.lengths
        return {
            "name": self.name,
            "target": self.header.get("target", "unknown"),
            "drafter": self.header.get("drafter", "unknown"),
            "task": self.header.get("task", "unknown"),
            "temperature": self.header.get("temperature"),
            "vocab_size": self.vocab_size,
            "depth": self.depth,
            "width": self.width,
            "sequences": self.sequences,
            "sequences_skipped": int((lengths < 2).sum()),
            "sequences_ended": int(self.ended().sum()),
            "sequences_looping": int(self.looping().sum()),
            "tokens": int(self.tokens.size),
            "longest_sequence": int(lengths.max(initial=0)),
            "source": self.header.get("source", "unknown"),
            "licence": self.header.get("licence", "unknown"),
        }

    def __repr__(self) -> str:
        shape = f"D={self.depth}, K={self.width}, V={self.vocab_size}"
        return f"Trace({self.name!r}, {self.sequences} sequences, {self.tokens.size} tokens, {shape})"


def make_trace(
    name: str, header: Mapping[str, Any], arrays: Mapping[str, np.ndarray], path: Path | None = None
) -> Trace:
    """Check arrays and header against the schema and return the record.

    Raises
    ------
    KdtrError
        Names ``name``, the array and the index of the first fault.
    """
    check_header(name, header, arrays)
    check_arrays(name, arrays, header.get("vocab_size"))
    extra = {k: arrays[k] for k in OPTIONAL if k in arrays and k != "draft_next_logprob"}
    required = {k: arrays[k] for k in REQUIRED}
    rest = arrays.get("draft_next_logprob")
    half = required["draft_logprobs"].dtype == np.float16
    required["draft_logprobs"] = required["draft_logprobs"].astype(np.float32, copy=False)  # exact
    required["tokens"] = np.asarray(required["tokens"]).astype(np.int32, copy=False)
    return Trace(
        name=encodable(str(header.get("name") or name)),
        header=dict(header),
        draft_next_logprob=None if rest is None else rest.astype(np.float32, copy=False),
        extra=extra,
        path=path,
        precision=2.0**-10 if half else PRECISION,
        **required,
    )


def load_trace(
    path: str | os.PathLike[str], *, stop_tokens: list[int] | None = None, max_bytes: int = MAX_BYTES
) -> Trace:
    """Read and check a trace (``.kdtr``, ``.npz`` or ``.safetensors``).

    Parameters
    ----------
    path : path-like
        File to read; KDTR files are memory-mapped.
    stop_tokens : list of int, optional
        Overrides the header's ``stop_tokens``: which tokens end a response.
    max_bytes : int
        For ``.npz``: refuse archives that declare more decompressed bytes.

    Raises
    ------
    KdtrError
        Missing, truncated, corrupt or foreign file, or a fault of the schema: file, array and index named.
    """
    path = Path(path)
    header, arrays = read_arrays(path, max_bytes=max_bytes)
    header = dict(header)
    if stop_tokens is not None:
        header["stop_tokens"] = list(stop_tokens)
    header.setdefault("name", path.stem)
    return make_trace(str(path), header, arrays, path)


def bundled_traces() -> list[Path]:
    """Return the recorded traces that come with the package (``data/``), sorted by name.

    Raises
    ------
    FileNotFoundError
        There is none: the installation is incomplete.
    """
    here = Path(__file__).resolve().parent
    for folder in (here / "data", here.parent / "data"):  # installed, or in a checkout
        found = sorted(path for path in folder.glob("*") if path.suffix in (".npz", ".kdtr"))
        if found:
            return found
    raise FileNotFoundError(f"no trace in {here / 'data'} or {here.parent / 'data'}: incomplete installation")
