"""Record a trace sequence by sequence; an interrupted recording continues where it stopped.

While it is recorded, ``run.kdtr`` is the folder ``run.kdtr.parts``: ``header.kdtr`` and one file per
sequence, ``000000.kdtr``, ``000001.kdtr``, ...  A killed process loses at most the sequence that it was
appending.  ``close`` joins them, puts ``run.kdtr`` in place in one step and removes the folder.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .convert import SUFFIXES, write_arrays
from .kdtr_write import prepare
from .trace_check import SCHEMA, check_arrays, check_header
from .trace_parts import Parts, sweep
from .vocabulary import pack_vocabulary

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Mapping
    from types import TracebackType


class TraceWriter:
    """Append sequences to a trace, checked one by one.

    Parameters
    ----------
    path : path-like
        The trace to write: ``.kdtr``, ``.npz`` or ``.safetensors``.
    header : mapping
        Header of docs/traces.md: ``target, drafter, vocab_size, temperature, stop_tokens, ...``.  When a
        recording is continued it must be the one that it was started with.
    vocabulary : iterable of bytes, optional
        Raw text of each token, for readable trees (:func:`kdtree_cupy.vocabulary.gpt2_bytes`).
    overwrite : bool
        Replace an existing trace at ``path`` when this one is closed.

    Raises
    ------
    KdtrError
        The header breaks the schema, or the folder of parts is damaged or foreign.
    ValueError
        Another suffix, or the header differs from that of the recording to be continued.
    FileExistsError
        There is a trace at ``path`` already.
    OSError
        The folder cannot be written, or another writer is at work in it.

    Examples
    --------
    >>> with TraceWriter("run.kdtr", {"vocab_size": 100, "stop_tokens": [2]}) as writer:  # doctest: +SKIP
    ...     for prompt in prompts[writer.sequences :]:
    ...         writer.append(*record(prompt))
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        header: Mapping[str, Any],
        *,
        vocabulary: Iterable[bytes] | None = None,
        overwrite: bool = False,
    ) -> None:
        self.path = Path(path)
        if self.path.suffix.lower() not in SUFFIXES:
            raise ValueError(f"{path}: suffix {self.path.suffix!r}, wanted one of {', '.join(SUFFIXES)}")
        _, self.header = prepare({}, {"schema": SCHEMA, **header})
        check_header(str(path), self.header, {})
        packed = () if vocabulary is None else pack_vocabulary(vocabulary)
        self._vocabulary = dict(zip(("vocab_offsets", "vocab_bytes"), packed, strict=False))
        check_arrays(str(path), {**_no_sequence(), **self._vocabulary}, self.header.get("vocab_size"))
        folder = self.path.with_name(self.path.name + ".parts")
        if self.path.exists() and not folder.exists() and not overwrite:
            raise FileExistsError(17, "exists already: remove it (overwrite=True does)", str(path))
        self._parts = Parts(folder, self.header, self._vocabulary)
        sweep(self.path.parent, re.escape(self.path.name))

    @property
    def sequences(self) -> int:
        """Sequences recorded so far, those of an interrupted run included: where to continue."""
        return self._parts.count

    def append(
        self,
        tokens: np.ndarray,
        draft_ids: np.ndarray,
        draft_logprobs: np.ndarray,
        *,
        prompt_tokens: np.ndarray | None = None,
        target_ids: np.ndarray | None = None,
        target_logprobs: np.ndarray | None = None,
        draft_next_logprob: np.ndarray | None = None,
    ) -> int:
        """Check one sequence of n tokens and store it durably; return its index.

        Parameters
        ----------
        tokens : int [n]
            Response tokens; the first is the first root.
        draft_ids : int [n, D, K]
            Drafter tokens for a round whose root is ``tokens[t]``, best first.
        draft_logprobs : float32 or float16 [n, D, K]
            Their log-probs over the whole vocabulary.
        prompt_tokens : int [p], optional
        target_ids, target_logprobs : int [n, R], float [n, R], optional
            The target's best tokens for position t itself.
        draft_next_logprob : float [n, D], optional
            Log-prob of rank K, the first one left out; dtype as ``draft_logprobs``.

        Raises
        ------
        KdtrError
            A fault of the schema; names sequence, array and index.
        ValueError
            Shapes, dtypes or optional arrays that differ from those of the sequences before, or the writer
            is closed.
        OSError
            The disk is full or gone; nothing of this sequence is kept, the earlier ones are.
        """
        if not self._parts.open:
            raise ValueError(f"{self.path}: the writer is closed")
        given = {
            "tokens": tokens, "draft_ids": draft_ids, "draft_logprobs": draft_logprobs,
            "prompt_tokens": prompt_tokens, "target_ids": target_ids, "target_logprobs": target_logprobs,
            "draft_next_logprob": draft_next_logprob,
        }  # fmt: skip
        arrays = {name: np.asarray(value) for name, value in given.items() if value is not None}
        where = f"{self.path}: sequence {self.sequences}"
        alone = {**arrays, "sequence_offsets": np.array([0, arrays["tokens"].size])}
        if "prompt_tokens" in arrays:
            alone["prompt_offsets"] = np.array([0, arrays["prompt_tokens"].size])
        check_header(where, self.header, alone)
        check_arrays(where, alone, self.header.get("vocab_size"))
        for name, array in arrays.items():
            if array.dtype.kind in "iu":
                arrays[name] = array.astype(self._id_type(name), copy=False)
        self._parts.add(where, arrays)
        return self.sequences - 1

    def close(self) -> Path:
        """Write the trace, remove the parts and return the path; a second call does nothing.

        Needs memory for the whole trace once.

        Raises
        ------
        ValueError
            No sequence was appended.
        OSError
            The trace cannot be written; the parts are kept, and closing again tries again.
        """
        if not self._parts.open:
            return self.path
        if self.sequences == 0:
            raise ValueError(f"{self.path}: no sequence was appended, a trace has at least one")
        write_arrays(self.path, self._joined(), self.header)
        self._parts.remove()
        return self.path

    def __enter__(self) -> TraceWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close; after an exception keep the parts instead, so that the recording can be continued."""
        try:
            if kind is None:
                self.close()
        finally:
            self._parts.release()

    def __repr__(self) -> str:
        state = "open" if self._parts.open else "closed"
        return f"TraceWriter({str(self.path)!r}, {self.sequences} sequences, {state})"

    def _id_type(self, name: str) -> type:
        if name in ("tokens", "prompt_tokens"):
            return np.int32
        return np.uint16 if self.header.get("vocab_size", 1 << 31) <= 1 << 16 else np.uint32

    def _joined(self) -> dict[str, np.ndarray]:
        parts = self._parts.read()
        arrays = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        for tokens, offsets in (("tokens", "sequence_offsets"), ("prompt_tokens", "prompt_offsets")):
            if tokens in arrays:
                ends = np.cumsum([0, *(part[tokens].size for part in parts)])
                arrays[offsets] = ends.astype(np.int32 if ends[-1] < 1 << 31 else np.int64)
        return {**arrays, **self._vocabulary}


def _no_sequence() -> dict[str, np.ndarray]:
    ids = np.zeros((0, 1, 1), np.int32)
    return {
        "sequence_offsets": np.array([0, 0]),
        "tokens": np.zeros(0, np.int32),
        "draft_ids": ids,
        "draft_logprobs": ids.astype(np.float32),
    }
