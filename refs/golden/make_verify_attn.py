"""Golden cases of verify_attn; results are float32, so that every processor writes the same file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import golden_file as golden
import ml_dtypes
import numpy as np

from kdtree_cupy.refs.masks import pack_mask
from kdtree_cupy.refs.verify_attn import verify_attn

SCALE = 0.0721875  # about 192**-0.5, an exact float64 in every language


def visible(batch: int, nodes: int, seed: int) -> np.ndarray:
    """Return a packed mask of random bits, no triangle."""
    return pack_mask(golden.integers(0, 2, (batch, nodes, nodes), seed).astype(bool))


def rows(shape: tuple[int, ...], seed: int, dtype: Any) -> np.ndarray:
    """Return rows of about N(0, 1)."""
    return golden.bell(shape, seed).astype(dtype)


def contiguous() -> dict[str, Any]:
    """Return a ragged bfloat16 batch: an empty prefix, a padded tree, rows that must not be read."""
    dtype = ml_dtypes.bfloat16
    case = {
        "q": rows((2, 5, 2, 576), 1, dtype),
        "cache": rows((2, 13, 576), 2, dtype),
        "tree_kv": rows((2, 5, 576), 3, dtype),
        "mask": visible(2, 5, 4),
        "lengths": np.int32([0, 13]),
        "counts": np.int32([5, 3]),
        "scale": SCALE,
    }
    case["cache"][0], case["tree_kv"][1, 3:] = np.nan, np.nan
    case["mask"][0, 2] = 0  # with the empty prefix: a row that sees nothing
    return case


def paged_in_cache() -> dict[str, Any]:
    """Return a float16 batch whose nodes lie in the pages behind the prefix; page 3 belongs to nobody."""
    pages = rows((6, 4, 576), 12, np.float16)
    pages[3] = np.nan
    return {
        "q": rows((2, 3, 2, 576), 11, np.float16),
        "cache": pages,
        "tree_kv": None,
        "mask": visible(2, 3, 13),
        "lengths": np.int32([6, 4]),
        "page_table": np.int32([[5, 0, 4], [2, 1, -1]]),
        "scale": SCALE,
    }


def fp8_scaled() -> dict[str, Any]:
    """Return a bfloat16 batch on rows of 656 bytes in pages; what must not be read is NaN."""
    latent = rows((6, 4, 512), 32, ml_dtypes.float8_e4m3fn).view(np.uint8)
    scales = (golden.uniform((6, 4, 4), 33) + 0.5).astype(np.float32).view(np.uint8)
    rope = rows((6, 4, 64), 34, ml_dtypes.bfloat16).view(np.uint8)
    pages = np.concatenate([latent, scales, rope], axis=-1)
    pages[3], pages[4, 1:] = 0xFF, 0xFF
    return {
        "q": rows((2, 3, 2, 576), 31, ml_dtypes.bfloat16),
        "cache": pages,
        "tree_kv": None,
        "mask": visible(2, 3, 35),
        "lengths": np.int32([6, 4]),
        "counts": np.int32([3, 2]),
        "page_table": np.int32([[5, 0, 4], [2, 1, -1]]),
        "scale": SCALE,
    }


def fp8_plain() -> dict[str, Any]:
    """Return one bfloat16 request on rows of 576 bytes, all times one scale."""
    case = {
        "q": rows((1, 5, 3, 576), 41, ml_dtypes.bfloat16),
        "cache": rows((1, 21, 576), 42, ml_dtypes.float8_e4m3fn).view(np.uint8),
        "tree_kv": rows((1, 5, 576), 43, ml_dtypes.float8_e4m3fn).view(np.uint8),
        "mask": visible(1, 5, 44),
        "lengths": np.int32([19]),
        "scale": SCALE,
        "kv_scale": 1.1875,
    }
    case["cache"][0, 19:] = 0x7F
    return case


def many_nodes() -> dict[str, Any]:
    """Return one float32 request with 33 nodes: mask rows of two words."""
    return {
        "q": rows((1, 33, 1, 576), 21, np.float32),
        "cache": rows((1, 7, 576), 22, np.float32),
        "tree_kv": rows((1, 33, 576), 23, np.float32),
        "mask": visible(1, 33, 24),
        "lengths": np.int32([7]),
        "scale": SCALE,
    }


def run(**arguments: Any) -> dict[str, np.ndarray]:
    """Return the reference's results as float32."""
    exact = verify_attn(**arguments)
    return {"out": exact.out.astype(np.float32), "lse": exact.lse.astype(np.float32)}


def make(folder: Path = golden.HERE) -> Path:
    """Write verify_attn.kdtr into ``folder``."""
    cases = {
        "contiguous": contiguous(),
        "paged_in_cache": paged_in_cache(),
        "fp8_scaled": fp8_scaled(),
        "fp8_plain": fp8_plain(),
        "many_nodes": many_nodes(),
    }
    return golden.save(folder, "verify_attn", cases, run)


if __name__ == "__main__":
    print(make())
