"""Record with the engine of this package."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..engine.context import Drafter
from ..engine.generate import generate
from ..engine.model import Model
from ..engine.rounds import Settings
from ..engine.session import CHUNK, Session
from ..engine.topk import best_tokens
from ..trace_writer import TraceWriter
from .rows import draft_rows

Array = Any
TARGET_RANKS = 16
"""The target's own best tokens that are kept at every position."""


def record(
    model: Model,
    prompts: Sequence[np.ndarray],
    drafter: Drafter,
    path: str | Path,
    *,
    width: int = 256,
    max_new: int = 192,
    temperature: float = 0.0,
    seed: int = 0,
    batch: int = 8,
    header: Mapping[str, Any] | None = None,
    vocabulary: Iterable[bytes] | None = None,
    progress: Callable[[int], object] | None = None,
) -> Path:
    """Decode prompts plainly, record the drafter at every position and write the trace at ``path``.

    Parameters
    ----------
    model : Model
        The target.
    prompts : sequence of int arrays
        Token ids.
    drafter : callable
        See :data:`kdtree_cupy.engine.context.Drafter`.
    path : path-like
        ``.kdtr``, ``.npz`` or ``.safetensors``.
    width : int
        Ranks K; trees of up to K nodes are exact.  Cut to V.
    max_new : int
        Most tokens of a response.
    temperature : float
        Of the target.
    seed : int
        Prompt i draws from numpy's default generator seeded with ``(seed, i)``, whatever the batch.
    batch : int
        Prompts decoded together.
    header : mapping, optional
        Fields of the trace's header: ``target``, ``drafter``, ``stop_tokens``, ``source``, ``licence``, ...
        Stop tokens end responses.
    vocabulary : iterable of bytes, optional
        Text of each token, for readable trees.
    progress : callable, optional
        Called with the number of prompts done since the last call, those of an interrupted run first.

    Returns
    -------
    Path
        The trace.

    Raises
    ------
    ValueError, OSError, KdtrError
        As :class:`~kdtree_cupy.trace_writer.TraceWriter` and :func:`~kdtree_cupy.engine.generate.generate`.

    Notes
    -----
    The drafter is asked teacher-forced, after a text is known.  Its rows depend on committed tokens only, so
    they are those that it would have given while the text was written.  ``target_logprobs`` are those of the
    model itself, at temperature 1.
    """
    fields = {
        "vocab_size": model.vocab_size, "temperature": float(temperature),
        "seed": seed if temperature > 0 else None, "stop_tokens": [], **(header or {}),
    }  # fmt: skip
    tell = progress or (lambda _: None)
    width = min(width, model.vocab_size)
    with TraceWriter(path, fields, vocabulary=vocabulary) as writer:
        tell(writer.sequences)
        for start in range(writer.sequences, len(prompts), batch):
            part = prompts[start : start + batch]
            done = generate(
                model, part, mode="ar", max_new=max_new, temperature=temperature,
                stop_tokens=fields["stop_tokens"], seed=[(seed, start + i) for i in range(len(part))],
            )  # fmt: skip
            for prompt, response in zip(part, done.tokens, strict=True):
                writer.append(**_sequence(model, np.asarray(prompt, np.int32), response, drafter, width))
                tell(1)
    return writer.path


def _sequence(
    model: Model, prompt: np.ndarray, response: np.ndarray, drafter: Drafter, width: int
) -> dict[str, np.ndarray]:
    """Return the arrays of one sequence."""
    text = np.concatenate([prompt, response])
    hidden, features = read_text(model, text, drafter)
    rows = draft_rows(drafter, text, features, prompt.size, width, model.vocab_size)
    ranks = min(TARGET_RANKS, model.vocab_size)
    ids, logprobs = best_tokens(model.logits(hidden[prompt.size - 1 : -1]), ranks, model.library)
    arrays = {
        "tokens": response, "draft_ids": rows.ids, "draft_logprobs": rows.logprobs, "prompt_tokens": prompt,
        "target_ids": ids, "target_logprobs": logprobs,
    }  # fmt: skip
    return arrays if rows.next_logprob is None else arrays | {"draft_next_logprob": rows.next_logprob}


def read_text(model: Model, text: np.ndarray, drafter: Drafter) -> tuple[Array, Array | None]:
    """Return hidden rows [n, C] of a text, and the features [n, F] that the drafter wants."""
    settings = Settings("ar", 0, 1, 0.0, 1.0, ((0, 0),), (), 16)
    session = Session(model, [text], settings, drafter)
    parts = [session.prompt_pass(0, at, min(at + CHUNK, text.size))[0] for at in range(0, text.size, CHUNK)]
    features = session.features
    return model.xp.concatenate(parts), None if features is None else features[0]
