"""Golden cases of topk_logprob."""

from __future__ import annotations

from pathlib import Path

import golden_file as golden
import ml_dtypes
import numpy as np

from kdtree_cupy.refs.topk_logprob import topk_logprob


def cases() -> golden.Cases:
    """Return the arguments of every case."""
    faults = golden.bell((6, 2, 40), 4).astype(np.float32)
    faults[0, 1, 7], faults[1, 0, 39] = np.nan, np.inf
    faults[2, 0], faults[3, 1, ::2], faults[4] = -np.inf, -np.inf, 0.0
    return {
        "float32": {"logits": (3 * golden.bell((2, 3, 1003), 1)).astype(np.float32), "k": 32},
        "bfloat16_ties": {"logits": golden.bell((2, 3, 300), 2).astype(ml_dtypes.bfloat16), "k": 64},
        "float16": {"logits": (8 * golden.bell((1, 4, 33), 3)).astype(np.float16), "k": 33},
        "faults": {"logits": faults, "k": 5},
        "temperature": {
            "logits": golden.bell((1, 2, 50), 5).astype(np.float32),
            "k": 8,
            "temperature": 0.625,
        },
        "vocabulary": {
            "logits": golden.bell((1, 2, 64), 6).astype(np.float32),
            "k": 12,
            "valid_vocab": 41,
            "vocab_map": golden.integers(0, 5000, (64,), 7),
        },
    }


def make(folder: Path = golden.HERE) -> Path:
    """Write topk_logprob.kdtr into ``folder``."""
    return golden.save(folder, "topk_logprob", cases(), lambda **arguments: topk_logprob(**arguments))


if __name__ == "__main__":
    print(make())
