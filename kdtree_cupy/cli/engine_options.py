"""What ``kdtree generate`` and ``kdtree record`` share: the model, the drafter, the prompts."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

if TYPE_CHECKING:
    from ..engine import Model
    from ..engine.tokenizer import Tokenizer


def model_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that choose model, device and drafter."""
    path = click.Path(path_type=Path)
    for option in (
        click.option(
            "--head", type=path, metavar="FILE", help="Weights of the block drafter, for --drafter head."
        ),
        click.option(
            "--corpus", type=path, metavar="TRACE", help="Responses that the n-gram drafter counts in, too."
        ),
        click.option(
            "--depth", type=click.IntRange(1, 32), default=15, help="Positions of the n-gram drafter."
        ),
        click.option(
            "--drafter",
            default="ngram",
            metavar="ngram|head|MODULE:FUNCTION",
            help="Who drafts; a function takes the model and returns a drafter.",
        ),
        click.option("--device", type=click.Choice(["cpu", "gpu"]), default="cpu", help="gpu needs CuPy."),
        click.option(
            "--model",
            default="smollm2",
            metavar="smollm2|FILE.gguf|FOLDER",
            help="The target: SmolLM2-135M from its package, a Llama GGUF, or a folder with safetensors.",
        ),
    ):
        function = option(function)
    return function


def load(model: str, device: str, *, need_text: bool) -> tuple[Model, Tokenizer | None]:
    """Return model and tokenizer; without ``need_text`` there is none if its library is missing."""
    from ..engine.load import load_model

    xp: Any = np
    if device == "gpu":
        try:
            import cupy as xp
        except ModuleNotFoundError as error:
            raise ValueError(
                "--device gpu needs CuPy: pip install 'kdtree-cupy[cuda12]' or [cuda13]"
            ) from error
    text = need_text or importlib.util.find_spec("tokenizers") is not None
    return load_model(model, xp=xp, text=text)


def need_tokenizer(tokenizer: Tokenizer | None) -> Tokenizer:
    """Return the tokenizer, or raise if the model has none."""
    if tokenizer is None:
        raise ValueError("the model has no tokenizer: give token ids instead of text")
    return tokenizer


def encode(tokenizer: Tokenizer, text: str, raw: bool) -> np.ndarray:
    """Return the tokens of a prompt: as a question in the model's chat template, or as it is."""
    tokens = tokenizer.encode(text) if raw else tokenizer.chat(text)
    if tokens.size == 0:
        raise ValueError("prompt: got an empty text, wanted at least one token")
    return tokens


def read_ids(path: Path) -> list[np.ndarray]:
    """Return prompts from a file of token ids: one prompt a line, ids parted by blanks or commas."""
    prompts = []
    for number, line in enumerate(_lines(path), 1):
        try:
            ids = np.array([int(word) for word in line.replace(",", " ").split()], np.int64)
        except (ValueError, OverflowError) as error:
            raise ValueError(f"{path}:{number}: wanted token ids, integers: {error}") from error
        if ids.size:
            prompts.append(ids)
    if not prompts:
        raise ValueError(f"{path}: no token id in it")
    return prompts


def read_prompts(path: Path, tokenizer: Tokenizer | None, raw: bool) -> list[np.ndarray]:
    """Return the prompts of a file as token ids.

    A trace gives its own prompts; ``.jsonl`` has an object a line with ``ids``, ``prompt``, ``question`` or
    ``turns``; any other file has a text a line.
    """
    if path.suffix in (".kdtr", ".npz", ".safetensors"):
        from ..trace import load_trace

        extra = load_trace(path).extra
        if "prompt_offsets" not in extra:
            raise ValueError(f"{path}: the trace holds no prompts")
        offsets, tokens = extra["prompt_offsets"], extra["prompt_tokens"]
        return [np.asarray(tokens[a:b]) for a, b in pairwise(offsets)]
    prompts = []
    for number, line in enumerate(_lines(path), 1):
        if line.strip():
            found = _from_json(line, f"{path}:{number}") if path.suffix == ".jsonl" else line
            text = isinstance(found, str)
            prompts.append(encode(need_tokenizer(tokenizer), found, raw) if text else np.array(found))
    if not prompts:
        raise ValueError(f"{path}: no prompt in it")
    return prompts


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: wanted text in UTF-8: {error}") from error


def _from_json(line: str, where: str) -> str | list[int]:
    try:
        item = json.loads(line)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error
    if isinstance(item, dict):
        turns = item.get("turns")
        if isinstance(turns, list) and turns:
            item = {**item, "prompt": turns[0]}
        for name in ("ids", "prompt", "question"):
            if isinstance(item.get(name), str | list):
                return item[name]
    raise ValueError(f"{where}: wanted an object with ids, prompt, question or turns")
