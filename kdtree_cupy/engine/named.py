"""Drafters by the words of the command line: ``ngram``, ``head``, ``module:function``."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

from ..trace import load_trace
from .block_head import load_block_head
from .context import Drafter, depth_of
from .model import Model
from .ngram import NGramDrafter


def named_drafter(
    name: str, model: Model, *, depth: int = 15, corpus: Path | None = None, head: Path | None = None
) -> Drafter:
    """Return a drafter.

    Parameters
    ----------
    name : str
        ``ngram``; ``head`` with the file ``head``; or ``module:attribute``, a drafter or a function that
        takes the model and returns one.
    model : Model
        The target.
    depth : int
        Positions of the n-gram drafter.
    corpus : path, optional
        A trace whose responses the n-gram drafter counts in too.
    head : path, optional
        Weights of the block drafter.

    Raises
    ------
    ValueError
        An unknown name, a module without that attribute, ``head`` without its file or its file without it.
    TypeError
        What the module offers is no drafter.
    """
    if head is not None and name != "head":
        raise ValueError(f"head: got {head}, but the drafter is {name!r}; --head goes with --drafter head")
    if name == "ngram":
        texts = []
        if corpus is not None:
            trace = load_trace(corpus)
            offsets = trace.sequence_offsets
            texts = [trace.tokens[offsets[s] : offsets[s + 1]] for s in range(trace.sequences)]
        return NGramDrafter(model.vocab_size, depth, texts)
    if name == "head":
        if head is None:
            raise ValueError("drafter head: needs its weights, --head FILE.safetensors")
        return load_block_head(head, model)
    module, colon, attribute = name.partition(":")
    if not colon:
        raise ValueError(f"drafter: got {name!r}, wanted ngram, head or module:function")
    return _imported(module, attribute, model)


def _imported(module: str, attribute: str, model: Model) -> Drafter:
    """Return what ``module:attribute`` offers; the current folder is looked into as well."""
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        found: Any = getattr(importlib.import_module(module), attribute)
    except (ModuleNotFoundError, AttributeError) as error:
        raise ValueError(f"drafter {module}:{attribute}: {error}") from error
    finally:
        sys.path.remove(here)
    if not callable(found):
        raise TypeError(
            f"drafter {module}:{attribute}: got {type(found).__name__}, wanted something callable"
        )
    drafter = found if hasattr(found, "depth") else found(model)
    depth_of(drafter)
    return drafter
