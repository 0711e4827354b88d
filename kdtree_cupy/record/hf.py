"""Record any causal language model of Hugging Face (needs torch and transformers).

The example of docs/traces.md is complete; a drafter is a callable as for the engine
(:data:`kdtree_cupy.engine.context.Drafter`), its features are numpy arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..engine.context import Drafter
from ..engine.topk import best_tokens
from ..trace_writer import TraceWriter
from .engine import TARGET_RANKS
from .rows import checksum, draft_rows


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
    batch: int = 1,
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
        torch is seeded with ``seed + i`` for a batch that begins with prompt i.
    batch : int
        Prompts decoded together, padded on the left, and read together, padded on the right.

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
        "prompts": checksum(prompts), "max_new": max_new,  # a recording goes on only with the same ones
    }  # fmt: skip
    options: dict[str, Any] = {"do_sample": False}
    if temperature > 0:
        options = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
    if batch < 1:
        raise ValueError(f"batch: got {batch}, wanted at least 1")
    tell = progress or (lambda _: None)
    width = min(width, vocab_size)
    layers = tuple(getattr(drafter, "features", ()))
    with TraceWriter(path, fields, vocabulary=vocabulary) as writer, torch.inference_mode():
        done = writer.sequences
        tell(done)
        for start in range(done // batch * batch, len(prompts), batch):  # as before an interruption
            part = [np.asarray(prompt, np.int64) for prompt in prompts[start : start + batch]]
            torch.manual_seed(seed + start)
            texts = _decode(model, part, max_new, list(fields["stop_tokens"]), options)
            for i, (logits, features) in enumerate(_read(model, texts, layers)):
                if start + i >= done:
                    first, text = part[i].size, texts[i].astype(np.int32)
                    writer.append(**_sequence(text, first, logits[:, :vocab_size], features, drafter, width))
                    tell(1)
    return writer.path


def _decode(
    model: Any, prompts: list[np.ndarray], max_new: int, stops: list[int], options: Mapping[str, Any]
) -> list[np.ndarray]:
    """Return prompts and responses; a stop token that ended a response is its last one."""
    import torch

    filler, longest = stops[0] if stops else 0, max(prompt.size for prompt in prompts)
    ids, mask = (np.full((len(prompts), longest), value, np.int64) for value in (filler, 0))
    for row, prompt in enumerate(prompts):
        ids[row, longest - prompt.size :], mask[row, longest - prompt.size :] = prompt, 1
    found = model.generate(
        torch.as_tensor(ids, device=model.device), attention_mask=torch.as_tensor(mask, device=model.device),
        max_new_tokens=max_new, eos_token_id=stops or None, pad_token_id=filler, **options,
    )  # fmt: skip
    texts = []
    for prompt, response in zip(prompts, found[:, longest:].cpu().numpy(), strict=True):
        ends = np.flatnonzero(np.isin(response, stops))
        texts.append(np.concatenate([prompt, response[: ends[0] + 1] if ends.size else response]))
    return texts


def _read(
    model: Any, texts: list[np.ndarray], layers: tuple[int, ...]
) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
    """Yield logits float32 [n, V] and features [n, F] of each text from one pass over all of them."""
    import torch

    ids, mask = (np.zeros((len(texts), max(text.size for text in texts)), np.int64) for _ in range(2))
    for row, text in enumerate(texts):
        ids[row, : text.size], mask[row, : text.size] = text, 1
    out = model(
        torch.as_tensor(ids, device=model.device), attention_mask=torch.as_tensor(mask, device=model.device),
        output_hidden_states=bool(layers), use_cache=False,
    )  # fmt: skip
    if layers and max(layers) + 2 >= len(out.hidden_states):
        raise ValueError(f"drafter: features {layers}, wanted layers below {len(out.hidden_states) - 2}")
    for row, text in enumerate(texts):
        states = [out.hidden_states[layer + 1][row, : text.size].float().cpu().numpy() for layer in layers]
        logits = out.logits[row, : text.size].float().cpu().numpy()
        yield logits, np.concatenate(states, axis=-1) if states else None


def _sequence(
    text: np.ndarray,
    first: int,
    logits: np.ndarray,
    features: np.ndarray | None,
    drafter: Drafter,
    width: int,
) -> dict[str, np.ndarray]:
    """Return the arrays of one sequence: prompt and response, the response from ``first`` on."""
    vocab_size = logits.shape[1]
    rows = draft_rows(drafter, text, features, first, width, vocab_size)
    ids, logprobs = best_tokens(logits[first - 1 : -1], min(TARGET_RANKS, vocab_size))
    arrays = {
        "tokens": text[first:], "draft_ids": rows.ids, "draft_logprobs": rows.logprobs,
        "prompt_tokens": text[:first], "target_ids": ids, "target_logprobs": logprobs,
    }  # fmt: skip
    return arrays if rows.next_logprob is None else arrays | {"draft_next_logprob": rows.next_logprob}
