"""Verifiers at temperature > 0: how sampled drafts are accepted without changing the target's distribution.

``match`` samples the target's own token and follows it if it was drafted.  For a *deterministic* tree no
lossless verifier accepts more: the emitted text Y follows p, the accepted depth cannot exceed the longest
prefix of Y in the tree, and P(Y begins with u) = p(u), so E[accepted] <= the sum of p(u) over the tree, which
matching attains.  The others use that their drafts were *sampled* from q.

=========== ==================================================================================================
match       deterministic drafts (best k of q) or iid ones, follow the target's own sample
rrs         recursive rejection sampling, iid drafts (SpecInfer, arXiv 2305.09781); k = 1 is Leviathan's rule
rrs_without the same with drafts without replacement (Sequoia, arXiv 2402.12374)
kseq        K-SEQ (SpecTr, arXiv 2310.15141)
transport   optimal transport between iid drafts and p: no rule for iid drafts accepts more
traversal   leaf to root with a sequence-level ratio (Traversal Verification, arXiv 2505.12398)
=========== ==================================================================================================

Exact engines enumerate a small vocabulary (:func:`exact_node`, :func:`exact_traversal`), Monte Carlo engines
are vectorised (:func:`walk`, :func:`traverse`), :func:`losslessness` tests either by chi-square.
"""

from .closed_forms import ACCEPTANCE
from .losslessness import ChiSquare, chi_square, losslessness
from .node import RULES, NodeLaw, Rule, exact_node
from .sampling import Walked, walk
from .toy import ToyModel, random_model, tempered
from .transport import optimal_transport, subset_formula
from .traversal import exact_traversal, traverse

__all__ = [
    "RULES", "Rule", "NodeLaw", "exact_node", "optimal_transport", "subset_formula", "ACCEPTANCE",
    "ToyModel", "random_model", "tempered", "Walked", "walk", "traverse", "exact_traversal", "ChiSquare",
    "chi_square", "losslessness",
]  # fmt: skip
