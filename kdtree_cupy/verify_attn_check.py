"""Is an edited attention kernel still right?  Small shapes through every kernel, against the reference."""

from __future__ import annotations

from typing import Any

import numpy as np

from .checks import host
from .kv_fp8 import quantize_mla_rows
from .library import KernelLibrary
from .library.arrays import numpy_dtype
from .refs.masks import pack_mask
from .stage_run import to_device

_SHAPES = (  # (type, heads, nodes, rows of the prefix): one for each kernel, several tiles, some cut
    ("float32", 2, 5, 40),
    ("bfloat16", 2, 7, 37),
    ("bfloat16", 4, 8, 200),
    ("bfloat16", 8, 17, 130),
    ("float16", 8, 9, 0),
)
_BOUND = {"float32": 2.0**-20, "float16": 2.0**-9, "bfloat16": 2.0**-6}
"""Allowed error of a result, relative to the largest: about two roundings of the type (docs/numerics.md)."""
_LSE = 2.0**-10
"""Allowed error of a logarithm of a sum, absolute; scores are sums of float32."""


def self_check(library: Any) -> None:
    """Raise ``ValueError`` unless the attention kernels give the reference's results on small inputs.

    Parameters
    ----------
    library : KernelLibrary
        With backend "cuda" or "host".
    """
    from .verify_attn import verify_attn

    for number, (dtype, heads, nodes, prefix) in enumerate(_SHAPES):
        if dtype == "float16" and library.backend == "host":  # seconds more of a C++ compiler, same templates
            continue
        arguments = _inputs(number, dtype, heads, nodes, prefix) | {"scale": 192**-0.5}
        what = f"verify_attn: {dtype}, {heads} heads, {nodes} nodes, prefix {prefix}"
        compare(verify_attn, library, arguments, what)


def self_check_fp8(library: Any) -> None:
    """Raise ``ValueError`` unless the kernels for 8-bit rows give the reference's results on small inputs.

    Parameters
    ----------
    library : KernelLibrary
        With backend "cuda" or "host".
    """
    from .verify_attn import verify_attn

    for number, (_, heads, nodes, prefix) in enumerate(s for s in _SHAPES if s[0] == "bfloat16"):
        for size, form in ((656, {"power_of_two": True}), (576, {"kv_scale": 0.01})):
            arguments = _inputs(number, "bfloat16", heads, nodes, prefix) | {"scale": 192**-0.5}
            for name in ("cache", "tree_kv"):
                arguments[name] = quantize_mla_rows(arguments[name].astype(np.float32), **form)
            arguments["kv_scale"] = form.get("kv_scale")
            what = f"verify_attn: rows of {size} bytes, {heads} heads, {nodes} nodes, prefix {prefix}"
            for splits in ("auto", "fixed") if nodes * heads > 32 else ("auto",):
                compare(verify_attn, library, arguments | {"splits": splits}, f"{what}, splits {splits}")


def compare(stage: Any, library: Any, arguments: dict[str, Any], what: str) -> None:
    """Raise ``ValueError``, beginning with ``what``, unless ``stage`` agrees with its numpy backend."""
    wanted = _run(stage, KernelLibrary(backend="numpy"), arguments)
    moved = {name: to_device(value, library) for name, value in arguments.items()}
    got = _run(stage, library, moved)
    bound = _BOUND[str(arguments["q"].dtype)]
    error = np.abs(got[0] - wanted[0]).max(initial=0.0) / np.abs(wanted[0]).max(initial=1e-30)
    if not error <= bound:
        raise ValueError(f"{what}: out is off by {error:.2g} of its largest, allowed {bound:.2g}")
    seen = np.isfinite(wanted[1])
    if not np.array_equal(seen, np.isfinite(got[1])) or not np.array_equal(got[1][~seen], wanted[1][~seen]):
        raise ValueError(f"{what}: lse is not -inf where the reference sees nothing")
    gap = np.abs(got[1][seen] - wanted[1][seen]).max(initial=0.0)
    if not gap <= _LSE:
        raise ValueError(f"{what}: lse is off by {gap:.2g}, allowed {_LSE:.2g}")


def _inputs(seed: int, dtype: str, heads: int, nodes: int, prefix: int) -> dict[str, Any]:
    """Return arguments of two requests: random trees, the second with a padding node."""
    normal = normals(seed, dtype)
    return {
        "q": normal(2, nodes, heads, 576),
        "cache": normal(2, max(prefix, 1), 576),
        "tree_kv": normal(2, nodes, 576),
    } | two_trees(seed, nodes, prefix)


def normals(seed: int, dtype: str) -> Any:
    """Return a function from sizes to an array of N(0, 1)."""
    rng = np.random.default_rng(seed)
    return lambda *shape: rng.standard_normal(shape, dtype=np.float32).astype(numpy_dtype(dtype))


def two_trees(seed: int, nodes: int, prefix: int) -> dict[str, Any]:
    """Return mask, lengths and counts of two requests: random trees, the second with a padding node."""
    rng = np.random.default_rng(seed)
    visible = np.zeros((2, nodes, nodes), bool)
    for tree in visible:
        for i in range(nodes):
            if i:
                tree[i] = tree[rng.integers(i)]
            tree[i, i] = True
    return {
        "mask": pack_mask(visible),
        "lengths": np.array([prefix, prefix // 2], np.int32),
        "counts": np.array([nodes, nodes - 1], np.int32),
    }


def _run(stage: Any, library: Any, arguments: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    return tuple(host(array).astype(np.float64) for array in stage(**arguments, library=library))
