"""Acceptance of one node for many distributions at once: closed forms, [..., V] in, [...] out.

They take vocabularies that enumeration cannot, such as the best tokens of a recorded trace.
"""

from __future__ import annotations

import numpy as np

from .node import kseq_rho, normalised, without
from .toy import check_pair
from .transport import subset_formula


def match(p: np.ndarray, q: np.ndarray, k: int) -> np.ndarray:
    """Return p(best k tokens of q): the deterministic tree."""
    p, q = check_pair(p, q, k)
    best = np.argsort(-q, axis=-1, kind="stable")[..., :k]
    return np.take_along_axis(p, best, -1).sum(-1)


def match_iid(p: np.ndarray, q: np.ndarray, k: int) -> np.ndarray:
    """Return the probability that the target's sample is among k iid drafts."""
    p, q = check_pair(p, q, k)
    return (p * (1.0 - (1.0 - np.minimum(q, 1.0)) ** k)).sum(-1)


def rrs(p: np.ndarray, q: np.ndarray, k: int) -> np.ndarray:
    """Return the acceptance of recursive rejection sampling: residuals do not depend on what was rejected."""
    p, q = check_pair(p, q, k)
    residual, left = p, np.ones(p.shape[:-1])
    for _ in range(k):
        accepted = np.minimum(residual, q).sum(-1)
        left = left * np.maximum(0.0, 1.0 - accepted)
        residual = normalised(np.maximum(residual - q, 0.0))
    return 1.0 - left


def rrs_without(p: np.ndarray, q: np.ndarray, k: int, *, draws: int = 64, seed: int = 0) -> np.ndarray:
    """Return the acceptance without replacement, averaged over ``draws`` sampled sets of rejected drafts.

    Given what was rejected the next acceptance is sum min(r, q'); only the rejected tokens are sampled, so
    the variance is small, and k = 1 is exact.
    """
    p, q = check_pair(p, q, k)
    rng = np.random.default_rng(seed)
    shape = p.shape[:-1]
    total = np.zeros(shape)
    for _ in range(draws if k > 1 else 1):
        residual, proposal, left = p, q, np.ones(shape)
        for _ in range(min(k, p.shape[-1])):
            accepted = np.minimum(residual, proposal)
            left = left * np.clip(1.0 - accepted.sum(-1), 0.0, 1.0)
            rejected = normalised(
                np.maximum(proposal - accepted, 0.0)
            )  # the draft, given that it is rejected
            edges = np.cumsum(rejected, axis=-1)
            token = (edges < rng.random(shape)[..., None] * edges[..., -1:]).sum(-1)
            token = np.minimum(token, p.shape[-1] - 1)
            residual = normalised(np.maximum(residual - proposal, 0.0))
            proposal = without(proposal, token)
        total += 1.0 - left
    return total / (draws if k > 1 else 1)


def kseq(p: np.ndarray, q: np.ndarray, k: int) -> np.ndarray:
    """Return K-SEQ's acceptance, 1 - (1 - b)^k."""
    p, q = check_pair(p, q, k)
    b = np.minimum(p / kseq_rho(p, q, k)[..., None], q).sum(-1)
    return 1.0 - (1.0 - np.minimum(b, 1.0)) ** k


ACCEPTANCE = {
    "match": match, "match_iid": match_iid, "rrs": rrs, "rrs_without": rrs_without, "kseq": kseq,
    "transport": subset_formula,
}  # fmt: skip
"""Acceptance of one node by rule name."""
