"""Golden cases of kv_commit; the caches after the call are part of the results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import golden_file as golden
import numpy as np

from kdtree_cupy.refs.kv_commit import kv_commit

PATH = np.int32([[0, 1, 4, 6], [0, -1, -1, -1], [-1, -1, -1, -1], [0, 2, 3, -1]])
LENGTH = np.int32([4, 1, 0, 3])


def rows(shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Return rows of random bytes."""
    return golden.integers(0, 256, shape, seed).astype(np.uint8)


def cases() -> golden.Cases:
    """Return the arguments of every case."""
    table = golden.integers(0, 2**30, (4, 5), 3).reshape(-1).argsort().astype(np.int32).reshape(4, 5)
    missing = table.copy()
    missing[0, 2], missing[3, 1] = -1, 1000
    path = {"path": PATH, "path_length": LENGTH}
    return {
        "contiguous": {
            "caches": rows((2, 4, 12, 6), 1),
            **path,
            "lengths": np.int32([5, 11, 12, 9]),  # request 3 has room for 3 rows: 9, 10, 11
            "tree_kv": rows((2, 4, 7, 6), 2),
        },
        "contiguous_in_cache": {"caches": rows((2, 4, 20, 6), 4), **path, "lengths": np.int32([2, 0, 9, 16])},
        "paged_in_cache": {
            "caches": rows((3, 20, 3, 5), 5),
            **path,
            "lengths": np.int32([1, 14, 3, 7]),
            "page_table": table,
        },
        "missing_page": {
            "caches": rows((1, 20, 3, 5), 6),
            **path,
            "lengths": np.int32([4, 14, 3, 0]),
            "page_table": missing,
        },
        "full": {
            "caches": rows((2, 4, 8, 4), 7),
            **path,
            "lengths": np.int32([5, 7, 9, 6]),
            "tree_kv": rows((2, 4, 7, 4), 8),
        },
    }


def run(**arguments: Any) -> dict[str, Any]:
    """Return the reference's results and the caches after it."""
    caches = arguments.pop("caches").copy()
    committed = kv_commit(caches, **arguments)
    return committed._asdict() | {"caches": caches}


def make(folder: Path = golden.HERE) -> Path:
    """Write kv_commit.kdtr into ``folder``."""
    return golden.save(folder, "kv_commit", cases(), run)


if __name__ == "__main__":
    print(make())
