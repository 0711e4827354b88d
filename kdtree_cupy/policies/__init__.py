"""Tree policies: which B candidate tokens to verify.

A policy is a function with the leading arguments of :func:`kdtree_cupy.tree_build`
(``ids, logprobs, root_tokens, budget, *, num_nodes, max_depth, max_rank``) that returns a
:class:`kdtree_cupy.DraftTree`.  A policy whose tree of budget B is the first B nodes of any larger tree says
so with an attribute ``nested = True``: replay then builds once for all budgets.  ``exact = True`` says that
the tree is the best one that its rows allow, so that replay can certify it.
"""

from .chain import chain
from .ddtree import ddtree
from .static import static

POLICIES = {"chain": chain, "ddtree": ddtree, "static": static}
"""Policies by the name that ``kdtree study --policies`` takes."""

__all__ = ["POLICIES", "chain", "ddtree", "static"]
