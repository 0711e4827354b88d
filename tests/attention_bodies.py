"""Test bodies that hold for both attentions; each brings its own ``make`` (a case), ``attend`` (a call)."""

from __future__ import annotations

import ml_dtypes
import numpy as np


def check_fixed_splits(backend, make, attend):
    """Assert that a row with splits="fixed" depends neither on the number of nodes nor on other requests."""
    wide = make(14, [700, 30, 513], 33, 4, dtype=ml_dtypes.bfloat16)
    one_of = type(wide)
    narrow = one_of(*(x[:, :9].copy() if x.ndim > 1 and x.shape[1] == 33 else x.copy() for x in wide))
    narrow = narrow._replace(counts=np.full(3, 9, np.int32), mask=wide.mask[:, :9, :1].copy())
    for case in (wide, narrow):
        case.mask[:, :9] &= np.uint32(0x1FF)
    wide.mask[:, :9, 1:] = 0
    whole = attend(backend, wide, splits="fixed")
    for b in range(3):
        alone = one_of(*(x[b : b + 1].copy() for x in narrow))
        part = attend(backend, alone, splits="fixed")
        np.testing.assert_array_equal(part.out[0], whole.out[b, :9])
        np.testing.assert_array_equal(part.lse[0], whole.lse[b, :9])
