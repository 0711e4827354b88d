"""Record any causal language model of Hugging Face (needs torch and transformers).

The example of docs/traces.md is complete; a drafter is a callable as for the engine
(:data:`kdtree_cupy.engine.context.Drafter`), its features are numpy arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..engine.context import Drafter
from ..engine.topk import best_tokens
from ..trace_writer import TraceWriter
from .engine import TARGET_RANKS
from .rows import draft_rows


def record(
    model: Any,
    prompts: Sequence[np.ndarray],
    drafter: Drafter,
    path: str | Path,
    *,
    width: int = 256,
    max_new: int = 192,
    temperature: float = 0.0,
    seed: int = 0,
    header: Mapping[str, Any] | None = None,
    vocabulary: Iterable[bytes] | None = None,
    progress: Callable[[int], object] | None = None,
) -> Path:
    """Decode prompts with ``model.generate``, record the drafter at every position, write a trace.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        A causal language model; decoding and the teacher-forced pass run where it is.
    prompts, drafter, path, width, max_new, header, vocabulary, progress
        As for :func:`kdtree_cupy.record.record`; ``stop_tokens`` of the header end responses.
    temperature : float
        0 is greedy; above, plain sampling (no top-k, no top-p).
    seed : int
        torch is seeded with ``seed + i`` for prompt i.

    Returns
    -------
    Path
        The trace.

    Notes
    -----
    Features are ``hidden_states[layer + 1]``, the outputs of the layers that ``drafter.features`` names; the
    last layer's is not offered before the final norm and cannot be had.
    In float32 the greedy tokens are the argmax of the teacher-forced pass; in bfloat16 a few may differ by
    rounding, because the two passes have other shapes.
    """
    import torch

    vocab_size = int(model.config.get_text_config().vocab_size)
    fields = {
        "vocab_size": vocab_size, "temperature": float(temperature),
        "seed": seed if temperature > 0 else None, "stop_tokens": [], **(header or {}),
    }  # fmt: skip
    options: dict[str, Any] = {"do_sample": False}
    if temperature > 0:
        options = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
    tell = progress or (lambda _: None)
    width = min(width, vocab_size)
    with TraceWriter(path, fields, vocabulary=vocabulary) as writer, torch.inference_mode():
        tell(writer.sequences)
        for index in range(writer.sequences, len(prompts)):
            prompt = torch.as_tensor(np.asarray(prompts[index], np.int64), device=model.device)[None]
            torch.manual_seed(seed + index)
            stops = list(fields["stop_tokens"]) or None
            text = model.generate(
                prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=max_new, eos_token_id=stops,
                pad_token_id=stops[0] if stops else 0, **options,
            )  # fmt: skip
            writer.append(**_sequence(model, text, prompt.shape[1], drafter, width, vocab_size))
            tell(1)
    return writer.path


def _sequence(
    model: Any, text: Any, first: int, drafter: Drafter, width: int, vocab_size: int
) -> dict[str, np.ndarray]:
    """Return the arrays of one sequence; ``text`` is a tensor [1, n], prompt and response."""
    layers = tuple(getattr(drafter, "features", ()))
    out = model(text, output_hidden_states=bool(layers), use_cache=False)
    tokens = text[0].cpu().numpy().astype(np.int32)
    features = None
    if layers:
        if max(layers) + 2 >= len(out.hidden_states):
            raise ValueError(f"drafter: features {layers}, wanted layers below {len(out.hidden_states) - 2}")
        chosen = [out.hidden_states[layer + 1][0].float().cpu().numpy() for layer in layers]
        features = np.concatenate(chosen, axis=-1)
    rows = draft_rows(drafter, tokens, features, first, width, vocab_size)
    logits = out.logits[0, first - 1 : -1, :vocab_size].float().cpu().numpy()
    ids, logprobs = best_tokens(logits, min(TARGET_RANKS, vocab_size))
    arrays = {
        "tokens": tokens[first:], "draft_ids": rows.ids, "draft_logprobs": rows.logprobs,
        "prompt_tokens": tokens[:first], "target_ids": ids, "target_logprobs": logprobs,
    }  # fmt: skip
    return arrays if rows.next_logprob is None else arrays | {"draft_next_logprob": rows.next_logprob}
