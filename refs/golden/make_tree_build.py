"""Golden cases of tree_build; log-probs are multiples of 2**-10, so that sums tie exactly."""

from __future__ import annotations

from pathlib import Path

import golden_file as golden
import numpy as np

from kdtree_cupy.refs.tree_build import tree_build


def rows(shape: tuple[int, ...], seed: int, step: int) -> np.ndarray:
    """Return float32 rows, descending and below 0: multiples of ``step`` / 1024 that fall ever faster."""
    falls = step * (1 + golden.integers(0, 2048 // step, shape, seed).astype(np.int64))
    return (-np.cumsum(falls, axis=-1) / 1024).astype(np.float32)


def table(shape: tuple[int, int, int], seed: int, step: int = 1) -> dict[str, np.ndarray]:
    """Return ids, log-probs and roots of a batch."""
    return {
        "ids": golden.integers(0, 160_000, shape, seed + 100),
        "logprobs": rows(shape, seed, step),
        "root_tokens": golden.integers(0, 160_000, shape[:1], seed + 200),
    }


def faults() -> dict[str, np.ndarray]:
    """Return a batch with one fault a request, and one without."""
    batch = table((7, 4, 4), 30)
    logprobs = batch["logprobs"]
    logprobs[0, 2, 3], logprobs[1, 0, 0] = np.nan, np.inf
    logprobs[2, 1, 1] = logprobs[2, 1, 0] + 1
    logprobs[3, 3, 0] = 0.5
    logprobs[4, :, 2:], logprobs[5, 1] = -np.inf, -np.inf
    return batch


def cases() -> golden.Cases:
    """Return the arguments of every case."""
    # Sums in float32 would pick other nodes from four rows like this one.
    same = np.array([-1.0597379207611084, -1.391593098640442, -1.5942354202270508, -1.6009200811386108], "f4")
    return {
        "random": table((3, 7, 16), 1) | {"budget": 63, "lengths": np.int32([0, 17, 4096])},
        "ties": table((2, 5, 8), 2, step=512) | {"budget": 40},
        "flat": table((1, 4, 4), 3) | {"logprobs": np.full((1, 4, 4), -1.5, np.float32), "budget": 64},
        "identical_rows": table((1, 4, 4), 4)
        | {"logprobs": np.broadcast_to(same, (1, 4, 4)).copy(), "budget": 40},
        "wide": table((1, 15, 64), 5) | {"budget": 256},
        "chain": table((1, 9, 1), 6) | {"budget": 12},
        "per_request": table((6, 5, 6), 7)
        | {
            "budget": np.int32([-1, 0, 1, 31, 32, 20]),
            "max_depth": np.int32([5, 5, 5, 5, 0, 2]),
            "max_rank": np.int32([6, 6, 6, 3, 6, 1]),
            "num_nodes": 40,
        },
        "faults": faults() | {"budget": 12},
        "token_zero": table((1, 3, 3), 8) | {"ids": np.zeros((1, 3, 3), np.int32), "budget": 9},
    }


def make(folder: Path = golden.HERE) -> Path:
    """Write tree_build.kdtr into ``folder``."""
    return golden.save(folder, "tree_build", cases(), lambda **arguments: tree_build(**arguments))


if __name__ == "__main__":
    print(make())
