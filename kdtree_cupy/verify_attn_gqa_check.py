"""Is an edited kernel of verify_attn_gqa still right?  Small shapes through every kernel."""

from __future__ import annotations

from typing import Any

from .verify_attn_check import compare, normals, two_trees

_SHAPES = (  # (type, group, numbers of a head, nodes, rows of the prefix): one for each kernel, some cut
    ("float32", 2, 64, 5, 40),
    ("bfloat16", 2, 128, 7, 37),
    ("bfloat16", 4, 128, 8, 200),
    ("bfloat16", 8, 128, 7, 130),
    ("bfloat16", 8, 128, 13, 70),
    ("float16", 3, 64, 11, 0),
    ("bfloat16", 3, 64, 11, 0),
)


def self_check(library: Any) -> None:
    """Raise ``ValueError`` unless the kernels give the reference's results on small inputs.

    Parameters
    ----------
    library : KernelLibrary
        With backend "cuda" or "host".
    """
    from .verify_attn_gqa import verify_attn_gqa

    for seed, (dtype, group, size, nodes, prefix) in enumerate(_SHAPES):
        if dtype == "float16" and library.backend == "host":  # seconds more of a C++ compiler, same templates
            continue
        normal, rows = normals(seed, dtype), max(prefix, 1)
        arguments = {
            "q": normal(2, nodes, 2 * group, size),
            "k_cache": normal(2, rows, 2, size),
            "v_cache": normal(2, rows, 2, size),
            "tree_k": normal(2, nodes, 2, size),
            "tree_v": normal(2, nodes, 2, size),
            "scale": size**-0.5,
        } | two_trees(seed, nodes, prefix)
        what = f"verify_attn_gqa: {dtype}, {group} heads a KV head of {size}, {nodes} nodes, prefix {prefix}"
        compare(verify_attn_gqa, library, arguments, what)
