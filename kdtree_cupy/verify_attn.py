"""Stage 3: attention of every tree node over the prefix and its ancestors, absorbed MLA form.

Examples
--------
>>> import numpy as np, kdtree_cupy as kd
>>> q, row = np.zeros((1, 1, 1, 576), np.float32), np.ones((1, 1, 576), np.float32)
>>> read = kd.verify_attn(q, row, row, np.uint32([[[1]]]), [1], scale=1.0)
>>> read.out.shape, round(float(read.lse[0, 0, 0]), 4)
((1, 1, 1, 512), 0.6931)
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

from . import checks, kv_fp8, stage_run, verify_attn_fp8, verify_attn_launch
from .kv_positions import check_pages, check_positions
from .refs import verify_attn as reference
from .verify_attn_check import self_check as self_check  # for kernels that were edited

Array = Any
DYNAMIC_SHARED = verify_attn_launch.DYNAMIC_SHARED
ARRAYS = ("q", "cache", "tree_kv", "mask", "lengths", "counts", "page_table")
"""Arguments that decide where a call runs."""


class Attention(NamedTuple):
    """Result of :func:`verify_attn`."""

    out: Array
    lse: Array


class Arguments(NamedTuple):
    """Arguments of one call after the checks."""

    q: Array
    cache: Array
    tree_kv: Array | None
    mask: Array
    lengths: Array
    scale: float
    counts: Array | None
    page_table: Array | None
    kv_scale: float | None
    rows: kv_fp8.Rows | None
    """Format of KV rows of 8-bit floats, which are uint8 arrays here; None: rows of q's number type."""


def verify_attn(  # noqa: PLR0913 (the call of the design and what was added to it)
    q: Array,
    cache: Array,
    tree_kv: Array | None,
    mask: Array,
    lengths: Array,
    *,
    scale: float,
    counts: Array | None = None,
    page_table: Array | None = None,
    kv_scale: float | None = None,
    out_dtype: str | None = None,
    splits: int | str = "auto",
    library: Any = None,
    out: Attention | None = None,
    check: bool = False,
) -> Attention:
    """Attend from every node and head to the prefix and to the nodes that the mask shows.

    Parameters
    ----------
    q : float32, float16 or bfloat16 [b, N, H, 576]
        Absorbed queries: 512 latent numbers, then 64 rotary ones.
    cache : same dtype, [b, S, 576] or [pages, page_size, 576]
        KV rows of the prefix; values are the first 512 numbers.  Paged when ``page_table`` is given.  Or rows
        of 8-bit floats, uint8 or float8_e4m3fn (e4m3) with a last axis of 656 (scales in the row, see
        :func:`~kdtree_cupy.kv_fp8.quantize_mla_rows`) or 576 (with ``kv_scale``).
    tree_kv : like cache, [b, N, 576 or 656], or None
        KV rows of the nodes; None: node i lies in the cache at position ``lengths[b] + i``.
    mask : uint32 [b, N, ceil(N/32)]
        Bit j of row i: node i sees node j.  Any pattern is honoured; bits from ``counts[b]`` on are ignored.
    lengths : int32 [b]
        Rows of the prefix; all nodes see all of it.  0 is allowed.
    scale : float
        Factor on q.k, for DeepSeek-like models (128 + 64)**-0.5 with its YaRN factor, not 576**-0.5.
    counts : int32 [b], optional
        Real nodes; default N.
    page_table : int32 [b, max_pages], optional
        Page of each ``page_size`` positions.  Entries that no position needs are not read.
    kv_scale : float, optional
        What all numbers of 8-bit rows of 576 bytes are times; wanted with those and only with those.
    out_dtype : str, optional
        Number type of ``out``: "bfloat16", "float16" or "float32"; default: that of ``out=``, else q's.
    splits : "auto", "fixed" or int
        How kernels divide the KV rows over blocks.  "fixed": chunks of 512, so that a row of the result does
        not depend on N or on the batch beside it.  The numpy backend computes exactly and needs none.
    library, out, check
        As in :func:`~kdtree_cupy.tree_build.tree_build`; ``check`` also looks at the values of ``lengths``,
        ``counts`` and ``page_table``.

    Returns
    -------
    out : out_dtype, [b, N, H, 512]
        Softmax-weighted values; 0 in rows from ``counts[b]`` on and in rows that see nothing.
    lse : float32 [b, N, H]
        ``ln(sum(exp(scale * q.k)))``; -inf in those rows.

    Raises
    ------
    TypeError, ValueError, BackendError
        As in :func:`~kdtree_cupy.tree_build.tree_build`; ``ValueError`` also, on the numpy backend or with
        ``check=True``, for a position that has no row in the cache and for a scale of a row above 2^90.

    Notes
    -----
    KV rows of padding nodes are never read, so they may hold anything; values of nodes that a mask hides must
    be finite, since tensor cores multiply them by 0.  8-bit rows run on tensor cores with queries in
    bfloat16; other queries take the exact kernel, which is slow.  More than 32 (node, head) pairs read them
    through bfloat16 rows in scratch memory of the size of the cache, up to 1 GB (docs/verify_attn.md).

    Source: DeepSeek-V2, arXiv 2405.04434, section 2.1 (multi-head latent attention, absorbed matrices).
    """
    arguments = check_arguments(q, cache, tree_kv, mask, lengths, scale, counts, page_table, kv_scale)
    check_splits(splits)
    batch, slots, heads, _ = q.shape
    result = check_out_dtype(out_dtype, out, checks.dtype_name(q))
    targets = None if out is None else check_out(out, batch, slots, heads, result)
    inputs = {name: getattr(arguments, name) for name in ARRAYS}
    kernels = verify_attn_fp8 if arguments.rows else verify_attn_launch
    results = stage_run.attend(
        library, inputs, targets, (batch, slots, heads, 512), result,
        check=check, check_values=partial(check_values, arguments),
        launch=lambda run, *to: kernels.launch(run, arguments, splits, *to),
        reference=partial(reference.verify_attn, scale=arguments.scale, kv_scale=arguments.kv_scale),
    )  # fmt: skip
    return Attention(*results)


def check_arguments(
    q: Array,
    cache: Array,
    tree_kv: Array | None,
    mask: Array,
    lengths: Array,
    scale: float,
    counts: Array | None,
    page_table: Array | None,
    kv_scale: float | None = None,
) -> Arguments:
    """Return the arguments of :func:`verify_attn`, or raise; values of arrays are not looked at."""
    dims = checks.Dims()
    q = checks.array(q, "q", checks.FLOATS, "b N H 576", dims)
    dtype = checks.dtype_name(q)
    rows = kv_fp8.format_of(cache, "cache") if _is_fp8(cache) else None
    kv_scale = kv_fp8.check_scale_of(rows, kv_scale)
    width, dtypes = (rows.bytes, kv_fp8.DTYPES) if rows else (576, (dtype,))
    if page_table is not None:
        page_table = checks.array(page_table, "page_table", "int32", "b max_pages", dims)
    layout = "b S" if page_table is None else "pages size"
    cache = checks.array(cache, "cache", (*dtypes, *kv_fp8.DTYPES), f"{layout} {width}", dims)
    check_pages(cache, "cache", page_table)
    if tree_kv is not None:
        tree_kv = checks.array(tree_kv, "tree_kv", dtypes, f"b N {width}", dims)
    if rows:
        cache, tree_kv = kv_fp8.as_bytes(cache), None if tree_kv is None else kv_fp8.as_bytes(tree_kv)
    dims["W"] = -(-dims["N"] // 32)
    mask = checks.array(mask, "mask", "uint32", "b N W", dims)
    lengths = checks.int_vector(lengths, "lengths", dims["b"], 0)
    if counts is not None:
        counts = checks.int_vector(counts, "counts", dims["b"], 0, dims["N"])
    scale = check_scale(scale, kv_scale)
    return Arguments(q, cache, tree_kv, mask, lengths, scale, counts, page_table, kv_scale, rows)


def check_scale(scale: float, kv_scale: float | None = None, name: str = "kv_scale") -> float:
    """Return ``scale`` if it is finite and kernels, which multiply it in float32, can hold it."""
    scale = checks.number(scale, "scale", "a finite number", math.isfinite)
    if abs(scale) * (kv_scale or 1.0) > 2.0**127:  # kernels multiply by log2(e) as well, below 2
        times = "" if kv_scale is None else f" times {name} ({kv_scale})"
        raise ValueError(f"scale: got {scale}{times}, wanted a magnitude up to 2**127")
    return scale


def _is_fp8(cache: Array) -> bool:
    return checks.kind(cache) is not None and checks.dtype_name(cache) in kv_fp8.DTYPES


def check_out_dtype(out_dtype: str | None, out: Any, default: str) -> str:
    """Return the number type of the result: as asked for, or that of ``out``, or ``default``."""
    if out_dtype is None:
        given = out[0] if isinstance(out, tuple | list) and out else None
        return default if checks.kind(given) is None else _one_of(checks.dtype_name(given), "out.out: dtype")
    if not isinstance(out_dtype, str):
        raise TypeError(f"out_dtype: got {type(out_dtype).__name__}, wanted a str")
    return _one_of(out_dtype, "out_dtype")


def _one_of(dtype: str, name: str) -> str:
    if dtype not in checks.FLOATS:
        kind = TypeError if name.startswith("out.") else ValueError
        raise kind(f"{name}: got {dtype}, wanted one of {', '.join(checks.FLOATS)}")
    return dtype


def check_splits(splits: int | str) -> int | str:
    """Return ``splits`` if it is "auto", "fixed" or a number of splits from 1 to 1024."""
    if isinstance(splits, str):
        if splits not in ("auto", "fixed"):
            raise ValueError(f'splits: got {splits!r}, wanted "auto", "fixed" or an int')
        return splits
    return checks.integer(splits, "splits", 1, 1024)


def check_values(arguments: Arguments) -> None:
    """Raise ``ValueError`` if a count, a position or a scale is out of range (waits for the device)."""
    a = arguments
    nodes, in_cache = a.q.shape[1], a.tree_kv is None
    found = check_positions(a.lengths, a.counts, nodes, in_cache, a.cache.shape, a.page_table)
    if a.rows is not None and a.rows.scaled:
        kv_fp8.check_row_scales(a.cache, a.tree_kv, *found)


def check_out(out: Attention, batch: int, slots: int, heads: int, dtype: str) -> tuple[Array, ...]:
    """Return the two arrays of ``out``, or raise."""
    result, lse = checks.output(out, Attention._fields)
    dims = checks.Dims(b=batch, N=slots, H=heads)
    return (
        checks.target(result, "out.out", dtype, "b N H 512", dims),
        checks.target(lse, "out.lse", "float32", "b N H", dims),
    )
