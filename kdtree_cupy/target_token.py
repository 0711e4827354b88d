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

import numpy as np

from . import checks, stage_run, stage_scratch
from .library import arrays
from .library.resolve import Run, resolve
from .refs import target_token as reference
from .topk_logprob import CXX, MAX_VOCAB

Array = Any
FILE = "target_token.cu"
_THREADS, _UNROLL, _SLICES, _BINS, _NUCLEUS, _WORDS = 256, 4, 16, 2048, 4, 6148  # KD_* of the kernels
_MOST_THREADS = 1024  # KD_ARGMAX_THREADS, KD_COUNT_THREADS
_SEGMENTS = _THREADS // 32  # of a slice: one a warp


DYNAMIC_SHARED = {"target_token_counts": 4 * _WORDS}
"""Most dynamic shared memory of each kernel, in bytes."""


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
        As in :func:`~kdtree_cupy.tree_build.tree_build`; ``check`` also looks at the values of ``uniforms``.

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
    run = resolve(library, stage_run.placed({"logits": logits, "uniforms": uniforms}, (), targets))
    if run.backend == "numpy":
        ref = reference.target_token(
            run.numpy(logits),
            temperature=temperature,
            top_p=top_p,
            uniforms=None if uniforms is None else run.numpy(uniforms),
            valid_vocab=valid_vocab,
        )
        chosen = TargetTokens(*stage_run.deliver(run, targets, ref))
    else:
        checks.integer(dims["V"], "logits: V", 1, MAX_VOCAB)
        chosen = TargetTokens(*(targets or new_results(run, dims["b"], dims["N"])))
        launch(run, logits, uniforms, chosen, valid_vocab, temperature, top_p)
    if check:
        if temperature > 0:
            _check_uniforms(checks.host(uniforms))
        checks.raise_on_status("target_token", chosen.status)
    return chosen


def new_results(run: Run, batch: int, nodes: int) -> tuple[Array, ...]:
    """Return the two arrays that a kernel writes, uninitialised."""
    return run.empty((batch, nodes), "int32"), run.empty((batch,), "int32")


def launch(
    run: Run,
    logits: Array,
    uniforms: Array | None,
    results: TargetTokens,
    valid: int,
    temperature: float,
    top_p: float,
    *,
    version: int = 2,
) -> None:
    """Run the kernels of ``version`` on checked arguments."""
    batch, nodes, vocab = logits.shape
    dtype = arrays.handle(logits).dtype
    defines = {"KD_LOGIT": CXX[dtype]}
    rows = batch * nodes
    extreme = temperature > 0 and not 1e-30 < temperature < 1e30  # v2 scales in float32
    if rows == 0 or version == 1 or extreme:
        args = (logits, uniforms, *results, nodes, vocab, valid, np.float64(temperature), np.float64(top_p))
        run.launch(FILE, "target_token_v1", batch, 256, args, defines=defines)
        return
    chunks = -(-valid // (16 // arrays.numpy_dtype(dtype).itemsize))
    multiprocessors = stage_scratch.multiprocessors(run.device)
    stream = stage_scratch.current_stream(run, logits)

    def scratch(name: str, size: int, kind: str, *, zeros: bool = False) -> Array:
        return stage_scratch.take(run, stream, f"target_{name}", rows * size, kind, zeros=zeros)

    def start(kernel: str, cut: tuple[int, int], *args: Any, shared: int = 0) -> None:
        run.launch(FILE, kernel, rows * cut[0], cut[1], args, shared_bytes=shared, defines=defines)

    tickets = stage_scratch.take(run, stream, "target_tickets", rows + batch, "uint64", zeros=True)
    sizes = (nodes, vocab, valid)
    large, small = cut_large(rows, chunks, multiprocessors), cut_small(rows, chunks, multiprocessors)
    if temperature == 0:
        bests = scratch("bests", large[0], "uint64", zeros=True)
        start("target_token_argmax", large, logits, *results, bests, tickets, *sizes, large[0])
        return
    scale, share = np.float32(math.log2(math.e) / temperature), np.float64(top_p)
    if top_p < 1 and dtype == "bfloat16":
        totals = scratch("counts", _WORDS, "uint32", zeros=True) if large[0] > 1 else None
        args = (logits, uniforms, *results, tickets, totals, *sizes, large[0], scale, share)
        shared = 4 * _WORDS if large[0] > 1 else 0
        start("target_token_counts", large, *args, shared=shared)
        return
    segments = [scratch(n, small[0] * _SEGMENTS, d) for n, d in _SEGMENT_ARRAYS]
    states = scratch("states", _NUCLEUS, "uint64")
    drawn = (logits, uniforms, *results, *segments, tickets, states, *sizes, small[0])
    if top_p == 1:
        start("target_token_draw", small, *drawn, 0, scale)
        return
    start("target_token_draw", small, *drawn, 1, scale)
    totals = scratch("totals", _BINS, "uint64", zeros=True)
    rounds = 3 if dtype == "float32" else 2
    for number in range(rounds):
        args = (logits, tickets, states, totals, *sizes, small[0], number, rounds, scale, share)
        start("target_token_nucleus", small, *args)
    start("target_token_draw", small, *drawn, 2, scale)


_SEGMENT_ARRAYS = (("peaks", "float32"), ("sums", "float32"), ("ties", "int32"))


def cut_small(rows: int, chunks: int, multiprocessors: int) -> tuple[int, int]:
    """Return in how many slices to cut a row and threads of a block: enough blocks, none without a tile."""
    tiles = -(-chunks // (_THREADS * _UNROLL))
    return max(1, min(tiles, 4 * multiprocessors // rows, _SLICES)), _THREADS


def cut_large(rows: int, chunks: int, multiprocessors: int) -> tuple[int, int]:
    """Return the same for argmax and counts; slices are a power of 2.

    Few rows get blocks as large as a multiprocessor, because what blocks say to each other takes time.
    """
    few = rows <= multiprocessors
    threads = _MOST_THREADS if few and chunks > _THREADS * _UNROLL else _THREADS
    most = (1 if few else 4) * multiprocessors // rows
    tiles = -(-chunks // (threads * _UNROLL))
    slices = max(1, min(most, tiles, _SLICES))
    return 1 << (slices.bit_length() - 1), threads


def self_check(library: Any) -> None:
    """Raise ``ValueError`` unless the kernels choose the reference's tokens on small rows.

    Parameters
    ----------
    library : KernelLibrary
        With backend "cuda" or "host".
    """
    rng = np.random.default_rng(0)
    for vocab, options in ((9, {}), (20_001, {}), (1001, {"top_p": 0.7}), (20_001, {"top_p": 0.9})):
        logits = np.round(3 * rng.standard_normal((2, 3, vocab)), 2).astype(np.float32)
        logits[0, 1, vocab // 2] = np.nan
        uniforms = rng.random((2, 3), np.float32)
        stage_run.compare(target_token, library, logits)
        stage_run.compare(target_token, library, logits, temperature=0.8, uniforms=uniforms, **options)


def check_out(out: TargetTokens, batch: int, num_nodes: int) -> tuple[Array, ...]:
    """Return the two arrays of ``out``, or raise."""
    tokens, status = checks.output(out, TargetTokens._fields)
    dims = checks.Dims(b=batch, N=num_nodes)
    return (
        checks.target(tokens, "out.tokens", "int32", "b N", dims),
        checks.target(status, "out.status", "int32", "b", dims),
    )


def _check_uniforms(uniforms: np.ndarray) -> None:
    bad = np.argwhere(~((uniforms >= 0) & (uniforms < 1)))
    if bad.size:
        b, i = bad[0]
        raise ValueError(f"uniforms[{b}, {i}]: got {uniforms[b, i]}, wanted a number in [0, 1)")


def _is_temperature(value: float) -> bool:
    return 0 <= value < math.inf
