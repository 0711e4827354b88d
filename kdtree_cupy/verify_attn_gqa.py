"""Stage 3 for grouped-query models (Llama, Qwen): attention of every tree node over prefix and ancestors.

Examples
--------
>>> import numpy as np, kdtree_cupy as kd
>>> q, rows = np.zeros((1, 1, 4, 64), np.float32), np.ones((1, 1, 2, 64), np.float32)
>>> read = kd.verify_attn_gqa(q, rows, rows, rows, rows, np.uint32([[[1]]]), [1], scale=0.125)
>>> read.out.shape, round(float(read.lse[0, 0, 3]), 4)
((1, 1, 4, 64), 0.6931)
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

from . import checks, kv_fp8, stage_run, verify_attn_gqa_launch
from .kv_positions import check_pages, check_positions
from .refs import verify_attn_gqa as reference
from .verify_attn import Attention, check_out_dtype, check_scale, check_splits
from .verify_attn_gqa_check import self_check as self_check  # for kernels that were edited
from .verify_attn_gqa_variants import SIZES

Array = Any
HEAD_SIZES = SIZES
MOST_GROUP = 16
DYNAMIC_SHARED = verify_attn_gqa_launch.DYNAMIC_SHARED


class Arguments(NamedTuple):
    """Arguments of one call after the checks."""

    q: Array
    k_cache: Array
    v_cache: Array | None
    tree_k: Array | None
    tree_v: Array | None
    mask: Array
    lengths: Array
    scale: float
    counts: Array | None
    page_table: Array | None
    k_scale: float | None
    v_scale: float | None
    """Scales of 8-bit floats, whose arrays are uint8 here; None: keys and values of q's number type."""

    @property
    def arrays(self) -> dict[str, Array | None]:
        """What decides where a call runs, by name."""
        return {n: x for n, x in self._asdict().items() if n not in ("scale", "k_scale", "v_scale")}


def verify_attn_gqa(  # noqa: PLR0913 (verify_attn's, with keys and values apart)
    q: Array,
    k_cache: Array,
    v_cache: Array | None,
    tree_k: Array | None,
    tree_v: Array | None,
    mask: Array,
    lengths: Array,
    *,
    scale: float,
    counts: Array | None = None,
    page_table: Array | None = None,
    k_scale: float | None = None,
    v_scale: float | None = None,
    out_dtype: str | None = None,
    splits: int | str = "auto",
    library: Any = None,
    out: Attention | None = None,
    check: bool = False,
) -> Attention:
    """Attend from every node and head to the prefix and to the nodes that the mask shows.

    Parameters
    ----------
    q : float32, float16 or bfloat16 [b, N, H, D]
        Queries after RoPE; D is 64 or 128, and H = group * Hkv with a group of 1 to 16.  Head h reads KV head
        ``h // group``.
    k_cache, v_cache : same dtype, [b, S, Hkv, D] or [pages, page_size, Hkv, D]
        Keys (after RoPE) and values of the prefix.  Paged when ``page_table`` is given.  ``v_cache`` None: a
        row of ``k_cache`` holds both, [.., 2 * Hkv, D]: the keys of all KV heads, then the values.  Or 8-bit
        floats (e4m3) in uint8 or float8_e4m3fn arrays, with ``k_scale`` and ``v_scale``.
    tree_k, tree_v : same dtype, [b, N, Hkv, D], or None
        Keys and values of the nodes; None: node i lies in the caches at position ``lengths[b] + i``.  With
        ``v_cache`` None also ``tree_v`` is, and ``tree_k`` is [b, N, 2 * Hkv, D].
    mask : uint32 [b, N, ceil(N/32)]
        Bit j of row i: node i sees node j.  Any pattern is honoured; bits from ``counts[b]`` on are ignored.
    lengths : int32 [b]
        Rows of the prefix; all nodes see all of it.  0 is allowed.
    scale : float
        Factor on q.k, D**-0.5 for most models.
    counts : int32 [b], optional
        Real nodes; default N.
    page_table : int32 [b, max_pages], optional
        Page of each ``page_size`` positions.  Entries that no position needs are not read.
    k_scale, v_scale : float, optional
        What all numbers of 8-bit keys and of 8-bit values are times; wanted with those and only with those.
    out_dtype : str, optional
        Number type of ``out``, as in :func:`~kdtree_cupy.verify_attn.verify_attn`.
    splits : "auto", "fixed" or int
        As in :func:`~kdtree_cupy.verify_attn.verify_attn`.
    library, out, check
        As in :func:`~kdtree_cupy.tree_build.tree_build`; ``check`` also looks at the values of ``lengths``,
        ``counts`` and ``page_table``.

    Returns
    -------
    out : out_dtype, [b, N, H, D]
        Softmax-weighted values; 0 in rows from ``counts[b]`` on and in rows that see nothing.
    lse : float32 [b, N, H]
        ``ln(sum(exp(scale * q.k)))``; -inf in those rows.

    Raises
    ------
    TypeError, ValueError, BackendError
        As in :func:`~kdtree_cupy.verify_attn.verify_attn`.

    Notes
    -----
    KV rows of padding nodes are never read, so they may hold anything; values of nodes that a mask hides must
    be finite, since tensor cores multiply them by 0.  8-bit floats run on tensor cores with queries in
    bfloat16; other queries take the exact kernel, which is slow.

    Source: Ainslie et al., GQA, arXiv 2305.13245.
    """
    arguments = check_arguments(
        q, k_cache, v_cache, tree_k, tree_v, mask, lengths, scale, counts, page_table, k_scale, v_scale
    )
    check_splits(splits)
    dtype = check_out_dtype(out_dtype, out, checks.dtype_name(q))
    targets = None if out is None else check_out(out, q, dtype)
    scales = {"scale": arguments.scale, "k_scale": arguments.k_scale, "v_scale": arguments.v_scale}
    results = stage_run.attend(
        library, arguments.arrays, targets, q.shape, dtype,
        check=check, check_values=partial(check_values, arguments),
        launch=lambda run, *to: verify_attn_gqa_launch.launch(run, arguments, splits, *to),
        reference=partial(reference.verify_attn_gqa, **scales),
    )  # fmt: skip
    return Attention(*results)


def check_arguments(
    q: Array,
    k_cache: Array,
    v_cache: Array | None,
    tree_k: Array | None,
    tree_v: Array | None,
    mask: Array,
    lengths: Array,
    scale: float,
    counts: Array | None,
    page_table: Array | None,
    k_scale: float | None = None,
    v_scale: float | None = None,
) -> Arguments:
    """Return the arguments of :func:`verify_attn_gqa`, or raise; values of arrays are not looked at."""
    dims = checks.Dims()
    q = checks.array(q, "q", checks.FLOATS, "b N H D", dims)
    if dims["D"] not in HEAD_SIZES:
        raise ValueError(f"q: got head size {dims['D']}, wanted {' or '.join(map(str, HEAD_SIZES))}")
    narrow = checks.kind(k_cache) is not None and checks.dtype_name(k_cache) in kv_fp8.DTYPES
    dtype = kv_fp8.DTYPES if narrow else checks.dtype_name(q)
    k_scale, v_scale = (
        check_kv_scale(scale_of, name, narrow)
        for scale_of, name in ((k_scale, "k_scale"), (v_scale, "v_scale"))
    )
    if page_table is not None:
        page_table = checks.array(page_table, "page_table", "int32", "b max_pages", dims)
    rows, fused = "Hkv" if v_cache is not None else "2*Hkv", v_cache is None
    layout = f"b S {rows} D" if page_table is None else f"pages size {rows} D"
    k_cache = checks.array(k_cache, "k_cache", dtype, layout, dims)
    if fused and dims[rows] % 2:
        raise ValueError(f"k_cache: got {dims[rows]} rows of keys and values, wanted an even number")
    if not fused:
        v_cache = checks.array(v_cache, "v_cache", dtype, layout, dims)
    check_pages(k_cache, "k_cache", page_table)
    heads, shared = dims["H"], dims[rows] // (2 if fused else 1)
    if shared == 0 or heads % shared or not 0 < heads // shared <= MOST_GROUP:
        raise ValueError(
            f"q: got {heads} heads for {shared} KV heads, wanted 1 to {MOST_GROUP} heads for each KV head"
        )
    if fused and tree_v is not None:
        raise ValueError("tree_v: got an array, wanted None as for v_cache: tree_k holds both")
    if not fused and (tree_k is None) != (tree_v is None):
        raise ValueError("tree_k, tree_v: got only one of the two, wanted both or None for both")
    if tree_k is not None:
        tree_k = checks.array(tree_k, "tree_k", dtype, f"b N {rows} D", dims)
    if tree_v is not None:
        tree_v = checks.array(tree_v, "tree_v", dtype, f"b N {rows} D", dims)
    dims["W"] = -(-dims["N"] // 32)
    mask = checks.array(mask, "mask", "uint32", "b N W", dims)
    lengths = checks.int_vector(lengths, "lengths", dims["b"], 0)
    if counts is not None:
        counts = checks.int_vector(counts, "counts", dims["b"], 0, dims["N"])
    scale = check_scale(scale, k_scale, "k_scale")
    if narrow:
        k_cache, v_cache, tree_k, tree_v = (
            None if x is None else kv_fp8.as_bytes(x) for x in (k_cache, v_cache, tree_k, tree_v)
        )
    return Arguments(
        q, k_cache, v_cache, tree_k, tree_v, mask, lengths, scale, counts, page_table, k_scale, v_scale
    )


def check_kv_scale(value: float | None, name: str, narrow: bool) -> float | None:
    """Return the scale of 8-bit floats, or None for other numbers; or raise."""
    if not narrow and value is not None:
        raise ValueError(f"{name}: got {value}, wanted None: these keys and values are no 8-bit floats")
    if narrow and value is None:
        raise ValueError(f"{name}: got None, wanted a number: 8-bit floats have a scale")
    return None if value is None else kv_fp8.check_scale(value, name)


def check_values(arguments: Arguments) -> None:
    """Raise ``ValueError`` if a count is out of range or a position has no row (waits for the device)."""
    a = arguments
    check_positions(a.lengths, a.counts, a.q.shape[1], a.tree_k is None, a.k_cache.shape, a.page_table)


def check_out(out: Attention, q: Array, dtype: str) -> tuple[Array, ...]:
    """Return the two arrays of ``out``, or raise."""
    result, lse = checks.output(out, Attention._fields)
    dims = checks.Dims(zip("bNHD", q.shape, strict=True))
    return (
        checks.target(result, "out.out", dtype, "b N H D", dims),
        checks.target(lse, "out.lse", "float32", "b N H", dims),
    )
