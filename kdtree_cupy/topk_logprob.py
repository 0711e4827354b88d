"""Stage 1: the drafter's best K tokens at each position and their log-probs.

Examples
--------
>>> import numpy as np, kdtree_cupy as kd
>>> top = kd.topk_logprob(np.float32([[[0.0, 2.0, 2.0, 1.0]]]), 3)
>>> top.ids[0, 0].tolist(), [round(float(v), 3) for v in top.logprobs[0, 0]]
([1, 2, 3], [-0.918, -0.918, -1.918])
"""

from __future__ import annotations

import math
import weakref
from typing import Any, NamedTuple

import numpy as np

from . import checks, stage_run, stage_scratch, topk_logprob_cut
from .library import arrays
from .library.resolve import Run, resolve
from .limits import MAX_WIDTH
from .refs import topk_logprob as reference

Array = Any
FILE = "topk_logprob.cu"
MAX_VOCAB = 1 << 20
"""Largest vocabulary that kernels take: ids have 20 bits in the numbers that they sort."""

DYNAMIC_SHARED = {"topk_logprob_v2": 8 * (topk_logprob_cut.MOST_ROOM + 2 * MAX_WIDTH)}
"""Most dynamic shared memory of each kernel, in bytes."""

CXX = {"float32": "float", "float16": "__half", "bfloat16": "__nv_bfloat16"}
"""C++ name of each number type of logits."""


class TopK(NamedTuple):
    """Result of :func:`topk_logprob`."""

    ids: Array
    logprobs: Array
    status: Array


def topk_logprob(
    logits: Array,
    k: int,
    *,
    temperature: float = 1.0,
    valid_vocab: int | None = None,
    vocab_map: Array | None = None,
    library: Any = None,
    out: TopK | None = None,
    check: bool = False,
) -> TopK:
    """Select the k best ids of every row, in order, with the log-probs of the full softmax.

    Parameters
    ----------
    logits : float32, float16 or bfloat16 [b, D, V]
        Drafter logits of D positions.
    k : int
        Ranks to keep, 1..valid_vocab and at most ``MAX_WIDTH``.  For a tree of budget B,
        ``min(B, valid_vocab)`` loses nothing.
    temperature : float
        Logits are divided by it before the softmax; above 0.
    valid_vocab : int, optional
        Ids from here on are padding of the vocabulary and take no part; default V.
    vocab_map : int32 [V], optional
        Target id of each drafter id; applied to the chosen ids, after ties are settled.  An array is looked
        at once, the first time that it is given: no negative id, none twice among the valid ones.
    library, out, check
        As in :func:`~kdtree_cupy.tree_build.tree_build`.

    Returns
    -------
    ids : int32 [b, D, k]
        Ids by float32(logit) descending, equal logits by the lower drafter id.
    logprobs : float32 [b, D, k]
        ``min(0, (x - max) - log(sum(exp(x - max))))`` with ``x = logit / temperature``.
    status : int32 [b]
        Bit 0: a row holds NaN or +inf; its ids are 0..k-1 (mapped) and its log-probs NaN.

    Raises
    ------
    TypeError, ValueError, BackendError
        As in :func:`~kdtree_cupy.tree_build.tree_build`; ``ValueError`` also for k > valid_vocab.

    Notes
    -----
    A row of -inf only gives ids 0..k-1 with log-probs -inf and sets no bit.  Ids are the same on every
    backend; log-probs may differ by ``2**-21 * max(1, abs(value))`` from float64.

    Source: DDTree, arXiv 2604.12989, lemma 1 (K = B suffices).
    """
    dims = checks.Dims()
    logits = checks.array(logits, "logits", checks.FLOATS, "b D V", dims)
    valid_vocab = checks.valid_vocab(valid_vocab, dims["V"])
    k = checks.integer(k, "k", 1, min(valid_vocab, MAX_WIDTH))
    temperature = checks.number(temperature, "temperature", "a finite number above 0", _is_temperature)
    if vocab_map is not None:
        vocab_map = checks.array(vocab_map, "vocab_map", "int32", "V", dims)
    targets = None if out is None else check_out(out, dims["b"], dims["D"], k)
    run = resolve(library, stage_run.placed({"logits": logits, "vocab_map": vocab_map}, (), targets))
    if vocab_map is not None:
        _validate_map(vocab_map, valid_vocab)
    if run.backend == "numpy":
        ref = reference.topk_logprob(
            run.numpy(logits),
            k,
            temperature=temperature,
            valid_vocab=valid_vocab,
            vocab_map=None if vocab_map is None else run.numpy(vocab_map),
        )
        top = TopK(*stage_run.deliver(run, targets, ref))
    else:
        checks.integer(dims["V"], "logits: V", 1, MAX_VOCAB)
        top = TopK(*(targets or new_results(run, dims["b"], dims["D"], k)))
        launch(run, logits, vocab_map, top, valid_vocab, temperature)
    if check:
        checks.raise_on_status("topk_logprob", top.status)
    return top


_seen_maps: dict[tuple[int, int], weakref.ref] = {}


def _validate_map(vocab_map: Array, valid: int) -> None:
    """Raise ``ValueError`` for negative or repeated ids; looks once at each array (waits for the device)."""
    # The object, not its address: a freed array's memory is soon another array's.
    key = (id(vocab_map), valid)
    if key in _seen_maps and _seen_maps[key]() is vocab_map:
        return
    ids = checks.host(vocab_map)[:valid]
    if ids.min() < 0:
        at = int(np.argmax(ids < 0))
        raise ValueError(f"vocab_map[{at}]: got {int(ids[at])}, wanted a token id >= 0")
    order = np.argsort(ids, kind="stable")
    same = np.flatnonzero(ids[order][1:] == ids[order][:-1])
    if same.size:
        one, other = order[same[0]], order[same[0] + 1]
        raise ValueError(f"vocab_map: got {int(ids[one])} at {one} and at {other}, wanted each token once")
    while len(_seen_maps) >= 16:
        del _seen_maps[next(iter(_seen_maps))]
    _seen_maps[key] = weakref.ref(vocab_map)


def new_results(run: Run, batch: int, depth: int, k: int) -> tuple[Array, ...]:
    """Return the three arrays that a kernel writes, uninitialised."""
    shape = (batch, depth, k)
    return run.empty(shape, "int32"), run.empty(shape, "float32"), run.empty((batch,), "int32")


def launch(
    run: Run,
    logits: Array,
    vocab_map: Array | None,
    results: TopK,
    valid: int,
    temperature: float,
    *,
    version: int = 2,
) -> None:
    """Run the kernels of ``version`` on checked arguments."""
    batch, depth, vocab = logits.shape
    k, rows = int(results.ids.shape[2]), batch * depth
    defines = {"KD_LOGIT": CXX[arrays.handle(logits).dtype]}
    if rows == 0 or k == 0:
        return
    if version == 1 or not 1e-30 < temperature < 1e30:  # v2 scales in float32
        sizes = (depth, vocab, valid, k, np.float64(temperature))
        run.launch(
            FILE, "topk_logprob_v1", batch, 256, (logits, vocab_map, *results, *sizes), defines=defines
        )
        return
    pack = 16 // arrays.numpy_dtype(arrays.handle(logits).dtype).itemsize
    cut = topk_logprob_cut.cut_rows(rows, -(-valid // pack), stage_scratch.multiprocessors(run.device), k)
    lists = rows * cut.slices
    stream = stage_scratch.current_stream(run, logits)
    candidates = stage_scratch.take(run, stream, "topk_candidates", lists * cut.room, "uint64")
    parts = stage_scratch.take(run, stream, "topk_parts", lists * 4, "uint32")
    tickets = stage_scratch.take(run, stream, "topk_tickets", rows + batch, "uint64", zeros=True)
    scales = (np.float32(math.log2(math.e) / temperature), np.float32(temperature))
    run.launch(
        FILE, "topk_logprob_v2", lists, topk_logprob_cut.THREADS,
        (logits, vocab_map, *results, candidates, parts, tickets, depth, vocab, valid,
         cut.slices, cut.tiles, cut.group, k, cut.rank, cut.room, cut.best, *scales),
        shared_bytes=8 * (cut.slices * cut.room + cut.best), defines=defines,
    )  # fmt: skip


def self_check(library: Any) -> None:
    """Raise ``ValueError`` unless the kernels agree with the reference on small rows with ties.

    Parameters
    ----------
    library : KernelLibrary
        With backend "cuda" or "host".
    """
    rng = np.random.default_rng(0)
    plain = type(library)(backend="numpy")
    for vocab, k in ((9, 9), (1001, 64), (20_000, 300)):
        logits = np.round(3 * rng.standard_normal((2, 2, vocab)), 1).astype(np.float32)
        logits[0, 1, vocab // 2] = np.nan if vocab == 1001 else -np.inf
        moved = stage_scratch.moved(logits, library)
        got = topk_logprob(moved, k, library=library)
        wanted = topk_logprob(logits, k, library=plain)
        for name, one, other in zip(TopK._fields, got, wanted, strict=True):
            one = checks.host(one)
            margin = 2.0**-21 * np.maximum(1, np.abs(other)) if name == "logprobs" else 0
            with np.errstate(invalid="ignore"):  # -inf - -inf
                same = (one == other) | (np.isnan(one) & np.isnan(other)) | (np.abs(one - other) <= margin)
            if not same.all():
                raise ValueError(f"topk_logprob: {name} is not what the reference gives")


def check_out(out: TopK, batch: int, depth: int, k: int) -> tuple[Array, ...]:
    """Return the three arrays of ``out``, or raise."""
    ids, logprobs, status = checks.output(out, TopK._fields)
    dims = checks.Dims(b=batch, D=depth, k=k)
    return (
        checks.target(ids, "out.ids", "int32", "b D k", dims),
        checks.target(logprobs, "out.logprobs", "float32", "b D k", dims),
        checks.target(status, "out.status", "int32", "b", dims),
    )


def _is_temperature(value: float) -> bool:
    return 0 < value < math.inf
