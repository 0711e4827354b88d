"""Tree policies: which B candidate tokens to verify.

A policy is a function with the leading arguments of :func:`kdtree_cupy.tree_build`
(``ids, logprobs, root_tokens, budget, *, num_nodes, max_depth, max_rank``) that returns a
:class:`kdtree_cupy.DraftTree`.  A policy whose tree of budget B is the first B nodes of any larger tree says
so with an attribute ``nested = True``: replay then builds once for all budgets.  ``exact = True`` says that
the tree is the best one that its rows allow, so that replay can certify it.  ``max_budget`` is the largest
budget it takes, ``adaptive = True`` says that a budget is a cap and the rounds use fewer nodes.

Options that must be fitted on a trace (``table``, ``vector``, ``caps``, ``temperatures``, ``gains``,
``rate``) come from :mod:`kdtree_cupy.policy_fit`.
"""

from .accum_logp import accum_logp
from .beam import beam
from .caddtree import caddtree
from .calibrated import calibrated
from .chain import chain
from .conditioned import conditioned
from .ddtree import ddtree
from .depth_bonus import depth_bonus
from .edge import edge
from .fan_out import fan_out
from .kary import kary
from .longrun import longrun
from .medusa import medusa
from .opt_tree import opt_tree
from .padded import padded
from .sequoia import sequoia
from .spine import spine
from .static import static

POLICIES = {
    policy.__name__: policy
    for policy in (
        chain, ddtree, static, kary, accum_logp, edge, depth_bonus, padded, spine, fan_out, medusa, sequoia,
        beam, opt_tree, calibrated, conditioned, caddtree, longrun,
    )
}  # fmt: skip
"""Policies by the name that ``kdtree study --policies`` takes."""

__all__ = ["POLICIES", *POLICIES]
