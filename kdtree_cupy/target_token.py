"""Stage 4: the token that the target chooses after each node.

Examples
--------
>>> import numpy as np, kdtree_cupy as kd
>>> logits = np.float32([[[0.0, 1.0, 1.0]]])
>>> kd.target_token(logits).tokens.tolist()
[[1]]
>>> kd.target_token(logits, temperature=1.0, uniforms=np.float32([[0.9]])).tokens.tolist()
[[2]]
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from . import checks, numpy_backend
from .refs import target_token as reference

Array = Any


class TargetTokens(NamedTuple):
    """Result of :func:`target_token`."""

    tokens: Array
    status: Array


def target_token(
    logits: Array,
    *,
    temperature: float = 0.0,
    top_p: float = 1.0,
    uniforms: Array | None = None,
    valid_vocab: int | None = None,
    library: Any = None,
    out: TargetTokens | None = None,
    check: bool = False,
) -> TargetTokens:
    """Choose one token per row: the argmax at temperature 0, else a draw steered by ``uniforms``.

    Parameters
    ----------
    logits : float32, float16 or bfloat16 [b, N, V]
        Target logits after each node.
    temperature : float
        0 for argmax; above 0, logits are divided by it.
    top_p : float
        Share of the mass kept, in (0, 1]; read at temperatures above 0 only.
    uniforms : float32 [b, N], optional
        Numbers in [0, 1), one per row; required at temperatures above 0 and not read at 0.
    valid_vocab : int, optional
        Ids from here on are padding of the vocabulary; default V.
    library, out, check
        As in :func:`~kdtree_cupy.tree_build.tree_build`.

    Returns
    -------
    tokens : int32 [b, N]
        Chosen ids; -1 where bit 0 applies.
    status : int32 [b]
        Bit 0: a row holds NaN or +inf, or nothing but -inf.

    Raises
    ------
    TypeError, ValueError, BackendError
        As in :func:`~kdtree_cupy.tree_build.tree_build`; ``ValueError`` also for missing ``uniforms``.

    Notes
    -----
    Argmax takes the lowest id on ties.  A draw takes the smallest id, in ascending order, whose cumulative
    mass exceeds ``u * total``; top-p keeps the shortest prefix of the ids by (logit descending, id
    ascending) that reaches ``top_p``.  Backends may differ where u lies within 1e-6 of an edge.
    """
    dims = checks.Dims()
    logits = checks.array(logits, "logits", checks.FLOATS, "b N V", dims)
    valid_vocab = checks.valid_vocab(valid_vocab, dims["V"])
    temperature = checks.number(temperature, "temperature", "a finite number >= 0", _is_temperature)
    top_p = checks.number(top_p, "top_p", "a number in (0, 1]", lambda v: 0 < v <= 1)
    if uniforms is not None:
        uniforms = checks.array(uniforms, "uniforms", "float32", "b N", dims)
    elif temperature > 0:
        raise ValueError("uniforms: got None, wanted float32 [b, N] because temperature is above 0")
    targets = None if out is None else check_out(out, dims["b"], dims["N"])
    numpy_backend.require("target_token", library, {"logits": logits, "uniforms": uniforms})
    ref = reference.target_token(
        logits, temperature=temperature, top_p=top_p, uniforms=uniforms, valid_vocab=valid_vocab
    )
    chosen = TargetTokens(*numpy_backend.fill(targets, ref))
    if check:
        checks.raise_on_status("target_token", chosen.status)
    return chosen


def check_out(out: TargetTokens, batch: int, num_nodes: int) -> tuple[Array, ...]:
    """Return the two arrays of ``out``, or raise."""
    tokens, status = checks.output(out, TargetTokens._fields)
    dims = checks.Dims(b=batch, N=num_nodes)
    return (
        checks.array(tokens, "out.tokens", "int32", "b N", dims),
        checks.array(status, "out.status", "int32", "b", dims),
    )


def _is_temperature(value: float) -> bool:
    return 0 <= value < math.inf
