"""Golden cases of target_token; uniforms keep away from the edges between tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import golden_file as golden
import ml_dtypes
import numpy as np

from kdtree_cupy.refs.target_token import masses, target_token

MARGIN = 1e-5  # ten times what backends may differ by


def cases() -> golden.Cases:
    """Return the arguments of every case."""
    faults = golden.bell((3, 3, 20), 5).astype(np.float32)
    faults[0, 1, 3], faults[1, 0, 19], faults[1, 2] = np.nan, np.inf, -np.inf
    faults[2, 1, 1:] = -np.inf
    return {
        "argmax": {"logits": golden.bell((2, 5, 1001), 1).astype(np.float32)},
        "argmax_ties": {"logits": golden.integers(-3, 3, (2, 4, 60), 2).astype(ml_dtypes.bfloat16)},
        "draw": {
            "logits": (2 * golden.bell((2, 8, 64), 3)).astype(np.float32),
            "temperature": 0.75,
            "uniforms": golden.uniform((2, 8), 4).astype(np.float32),
        },
        "top_p": {
            "logits": (2 * golden.bell((2, 8, 64), 6)).astype(np.float16),
            "temperature": 1.0,
            "top_p": 0.8125,
            "uniforms": golden.uniform((2, 8), 7).astype(np.float32),
        },
        "faults": {"logits": faults},
        "faults_draw": {
            "logits": faults,
            "temperature": 1.0,
            "uniforms": golden.uniform((3, 3), 8).astype(np.float32),
        },
        "vocabulary": {"logits": golden.bell((1, 3, 48), 9).astype(np.float32), "valid_vocab": 10},
    }


def run(**arguments: Any) -> Any:
    """Return the reference's results; refuse a draw that another backend may rightly see otherwise."""
    result = target_token(**arguments)
    if arguments.get("temperature"):
        for at in np.argwhere(result.tokens >= 0):
            row = arguments["logits"][tuple(at)].astype(np.float32)
            mass = masses(row, arguments["temperature"], arguments.get("top_p", 1.0))
            edges = np.cumsum(mass) / mass.sum()
            if np.abs(edges[:-1] - arguments["uniforms"][tuple(at)]).min(initial=1) < MARGIN:
                raise ValueError(f"uniforms{at.tolist()} lies on an edge; take another seed")
    return result


def make(folder: Path = golden.HERE) -> Path:
    """Write target_token.kdtr into ``folder``."""
    return golden.save(folder, "target_token", cases(), run)


if __name__ == "__main__":
    print(make())
