"""Golden cases of verify_attn_gqa; results are float32, so that every processor writes the same file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import golden_file as golden
import ml_dtypes
import numpy as np
from make_verify_attn import rows, visible

from kdtree_cupy.refs.verify_attn_gqa import verify_attn_gqa

SCALE = 0.125


def contiguous() -> dict[str, Any]:
    """Return a ragged bfloat16 batch, 3 heads a KV head: an empty prefix, a padded tree."""
    dtype = ml_dtypes.bfloat16
    case = {
        "q": rows((2, 5, 6, 64), 31, dtype),
        "k_cache": rows((2, 13, 2, 64), 32, dtype),
        "v_cache": rows((2, 13, 2, 64), 33, dtype),
        "tree_k": rows((2, 5, 2, 64), 34, dtype),
        "tree_v": rows((2, 5, 2, 64), 35, dtype),
        "mask": visible(2, 5, 36),
        "lengths": np.int32([0, 13]),
        "counts": np.int32([5, 3]),
        "scale": SCALE,
    }
    for name in ("k_cache", "v_cache"):
        case[name][0] = np.nan
    for name in ("tree_k", "tree_v"):
        case[name][1, 3:] = np.nan
    case["mask"][0, 2] = 0  # with the empty prefix: a row that sees nothing
    return case


def paged_in_cache() -> dict[str, Any]:
    """Return a float16 batch of 4 heads a KV head, nodes in the pages behind the prefix."""
    pages = [rows((6, 4, 1, 128), seed, np.float16) for seed in (42, 43)]
    for page in pages:
        page[3] = np.nan
    return {
        "q": rows((2, 3, 4, 128), 41, np.float16),
        "k_cache": pages[0],
        "v_cache": pages[1],
        "tree_k": None,
        "tree_v": None,
        "mask": visible(2, 3, 44),
        "lengths": np.int32([6, 4]),
        "page_table": np.int32([[5, 0, 4], [2, 1, -1]]),
        "scale": SCALE,
    }


def many_nodes() -> dict[str, Any]:
    """Return one float32 request with 33 nodes and a KV head for each head: mask rows of two words."""
    return {
        "q": rows((1, 33, 2, 64), 51, np.float32),
        "k_cache": rows((1, 7, 2, 64), 52, np.float32),
        "v_cache": rows((1, 7, 2, 64), 53, np.float32),
        "tree_k": rows((1, 33, 2, 64), 54, np.float32),
        "tree_v": rows((1, 33, 2, 64), 55, np.float32),
        "mask": visible(1, 33, 56),
        "lengths": np.int32([7]),
        "scale": SCALE,
    }


def run(**arguments: Any) -> dict[str, np.ndarray]:
    """Return the reference's results as float32."""
    exact = verify_attn_gqa(**arguments)
    return {"out": exact.out.astype(np.float32), "lse": exact.lse.astype(np.float32)}


def make(folder: Path = golden.HERE) -> Path:
    """Write verify_attn_gqa.kdtr into ``folder``."""
    cases = {"contiguous": contiguous(), "paged_in_cache": paged_in_cache(), "many_nodes": many_nodes()}
    return golden.save(folder, "verify_attn_gqa", cases, run)


if __name__ == "__main__":
    print(make())
