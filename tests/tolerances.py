"""Every number that a test of floating-point results allows, with its reason."""

from __future__ import annotations

import numpy as np

LOGPROB_RELATIVE = 2.0**-21
"""Log-probs: |error| <= this times max(1, |value|).  Float32 sums of up to 2**18 terms in blocks, one log and
one subtraction cost about 2**-22; twice that."""

UNIFORM_EDGE = 1e-6
"""Draws: backends may differ only for u within this of an edge between two ids (float32 cumulative sums)."""

ATTENTION_FACTOR = 2.0
"""Attention: at most this many times the error of a naive evaluation in the same number type."""

ATTENTION_FLOAT32 = 5e-8
"""Attention in float32 on 0.5 * N(0, 1) inputs at H = 64, prefix 2048, budget 32: largest error."""

BFLOAT16_FROBENIUS, BFLOAT16_COSINE, BFLOAT16_LSE = 4e-3, 1e-5, 1e-4
"""Attention in bfloat16: relative Frobenius error, 1 - cosine, largest lse error.  Rounding the output alone
costs 1.7e-3 of the first."""

AVERAGE_ROUNDINGS = 2
"""Attention with equal scores and one-hot values: roundings in the output type."""

LSE_RELATIVE = 1e-6
"""ln n in float32 for up to 1000 equal scores: a few float32 roundings."""

GOLDEN_ATTENTION = {"float32": 2.0**-20, "float16": 2.0**-9, "bfloat16": 2.0**-6}
"""Attention against golden files: error relative to the largest value; about two roundings of the type."""

FLOAT64_SUM = 1e-12
"""Two float64 evaluations of one formula in different orders, values of order 1 and up to 1e4 terms."""


REFERENCE_LOGITS = 1e-5
"""Golden logits, stored as float32: a few roundings of values up to 3, whatever the order of float64 sums."""

ENGINE_LOGITS = 1e-5
"""Float32 decoders of two or three layers against float64: error relative to the largest logit."""

LOSSLESS_LOGITS = 1e-5
"""Tree against plain decoding in float32, tiny models: largest difference of a logit."""

LOSSLESS_REAL = 2e-4
"""The same for SmolLM2: 30 layers, logits up to 30."""

RECORDED_HEAD = 0.1
"""Log-probs of a block drafter whose float32 weights were rounded to bfloat16 after the recording."""

CHI_SQUARE = 1e-3
"""Least p-value of a chi-square test with fixed seeds: passes once, passes always."""


def assert_no_worse(got: np.ndarray, exact: np.ndarray, naive: np.ndarray) -> None:
    """Fail if ``got`` errs more than ATTENTION_FACTOR times a naive evaluation in the storage type.

    The allowance has a floor of one float32 rounding of the largest value, for naive results that happen
    to be exact.
    """
    got, naive = (np.asarray(x).astype(np.float64) for x in (got, naive))
    assert np.isfinite(got).all(), "NaN or inf in the output"
    allowed = ATTENTION_FACTOR * np.abs(naive - exact).max(initial=0)
    allowed += np.finfo(np.float32).eps * np.abs(exact).max(initial=0)
    worst = np.abs(got - exact).max(initial=0)
    assert worst <= allowed, f"largest error {worst:.3e} > {allowed:.3e}"


def assert_logprobs(got: np.ndarray, exact: np.ndarray) -> None:
    """Fail if a log-prob errs more than LOGPROB_RELATIVE; infinities and NaN must agree."""
    finite = np.isfinite(exact)
    np.testing.assert_array_equal(np.where(finite, 0, got), np.where(finite, 0, exact))
    error = np.abs(got[finite].astype(np.float64) - exact[finite])
    allowed = LOGPROB_RELATIVE * np.maximum(1.0, np.abs(exact[finite]))
    assert (error <= allowed).all(), f"largest error {(error / allowed).max():.2f} of the allowance"
