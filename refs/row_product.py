"""Products of rows with a matrix of weights, added up in float64."""

from __future__ import annotations

import numpy as np


def row_product(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Return float32 ``x @ weight^T``.

    Parameters
    ----------
    x : float32 [m, k]
    weight : float32 [n, k]

    Returns
    -------
    float32 [m, n]
    """
    with np.errstate(over="ignore"):  # beyond float32 is infinite
        return (x.astype(np.float64) @ weight.astype(np.float64).T).astype(np.float32)
