"""Look into one trace by hand: a tree, its mask, the tau curve, the predicted speedup, for any setting.

>>> from kdtree_cupy.explorer import Explorer
>>> explorer = Explorer()                        # the bundled traces
>>> explorer.round(Setting(budget=4)).tree.counts.tolist()
[5]
"""

from .model import BUDGETS, Curve, Explorer, Round, Setting, default_policies
from .show import explore

__all__ = ["BUDGETS", "Curve", "Explorer", "Round", "Setting", "default_policies", "explore"]
