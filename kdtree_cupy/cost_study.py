"""What a cost table makes of acceptance: best budget by prefix and batch, fixed or per-round budgets."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from . import cost as costs
from .cost import CostTable, round_in_ar_steps
from .cost_model import Model
from .errors import KdtrError
from .policies import caddtree, ddtree, longrun
from .replay import Rounds, acceptance, jump
from .trace import Trace

RESAMPLES = 1000


@dataclass(frozen=True)
class Parts:
    """A measured table taken apart; milliseconds by context and nodes, batch 1.

    Parameters
    ----------
    table : CostTable
    attention_ms : float64 [c, n]
    model_ms, tree_ms : float64 [n]
    attention_ar_ms : float64 [c]
        Attention of a step without drafts.
    bytes_per_us, gpus, heads
        What the model's part was computed with.
    """

    table: CostTable
    attention_ms: np.ndarray
    model_ms: np.ndarray
    tree_ms: np.ndarray
    attention_ar_ms: np.ndarray
    bytes_per_us: float
    gpus: int
    heads: int
    model: Model

    def model_at(self, tokens: np.ndarray | float) -> np.ndarray:
        """Return ms of the model without attention for a step of ``tokens`` rows."""
        split = {"gpus": self.gpus, "split_attention": self.heads < self.model.heads}
        read = np.array([self.model.bytes_read(float(t), **split) for t in np.atleast_1d(tokens)])
        return read / self.bytes_per_us / 1e3

    def speedup(self, tau: np.ndarray, context: int, batch: int) -> np.ndarray:
        """Return predicted speedup at each of the table's node counts.

        Attention and tree work of a batch are taken as ``batch`` times those of one request, which is an
        upper bound for the tree; the model reads its weights once.
        """
        c = int(np.searchsorted(self.table.contexts, context))
        rows = (self.table.nodes + 1) * batch
        verify = batch * (self.attention_ms[c] + self.tree_ms) + self.model_at(rows)
        step = batch * self.attention_ar_ms[c] + self.model_at(batch)
        return tau * step / (self.table.draft_ms + verify)


def has_parts(table: CostTable) -> bool:
    """Return whether the table's file holds the parts that :func:`load_parts` reads."""
    return table.path is not None and "parts" in json.loads(table.path.read_text(encoding="utf-8"))


def load_parts(name: str | Path) -> Parts:
    """Load a table that :mod:`kdtree_cupy.cost_build` made, by name or file, with its parts.

    Raises
    ------
    KdtrError
        No such table, or one without parts (a published one).
    """
    table = costs.load_cost(name)
    path = Path(table.path or name)
    data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if "parts" not in data:
        raise KdtrError(f"{path}: has no parts; only tables made from measurements do")
    own = {key: np.array(value, np.float64) for key, value in data["parts"].items()}
    parts = Parts(
        table, own["attention_ms"], own["model_ms"], own["tree_ms"], np.zeros(0),
        float(data["bytes_per_us"]), int(data["gpus"]), int(data["heads"]), Model(),
    )  # fmt: skip
    ar = table.ar_ms - parts.model_at(1)
    return Parts(**{**vars(parts), "attention_ar_ms": ar})


def tau_by_budget(trace: Trace, budgets: Sequence[int]) -> np.ndarray:
    """Return pooled tokens per round of ddtree at each budget."""
    result = acceptance(trace, ddtree, budgets)
    rounds = [jump(trace, result.accepted[:, j]) for j in range(len(budgets))]
    return np.array([r.tokens.sum() / max(1, r.root.size) for r in rounds])


@dataclass(frozen=True)
class Policy:
    """Throughput of one way to choose budgets, in tokens per autoregressive step, with a 95% interval."""

    name: str
    budget: int | None
    speedup: float
    low: float
    high: float
    mean_nodes: float


def fixed_and_per_round(
    trace: Trace, table: CostTable, budgets: Sequence[int], *, context: float | None = None, seed: int = 0
) -> list[Policy]:
    """Replay fixed budgets, and two rules that choose a budget per round, under one cost table.

    Parameters
    ----------
    trace : Trace
    table : CostTable
    budgets : sequence of int
        Fixed budgets; the largest is the cap of the rules.
    context : float, optional
        Prefix for the table.
    seed : int
        Of the bootstrap over sequences.

    Returns
    -------
    list of Policy
        The fixed budgets in order, then "each round's own ratio" (CaDDTree's stop) and "one price of time"
        (Dinkelbach's, the price being the best fixed throughput).  Ratios of sums throughout.
    """
    found, fixed = [], acceptance(trace, ddtree, budgets)
    for j, budget in enumerate(fixed.budgets):
        rounds = jump(trace, fixed.accepted[:, j])
        used = fixed.nodes_by_depth[rounds.root, j, 1:].sum(1)
        price = np.full(rounds.root.size, round_in_ar_steps(table, float(budget), context=context))
        found.append(_policy(f"B = {budget}", int(budget), rounds, price, used, seed))
    rate = max(one.speedup for one in found)
    cap = [int(fixed.budgets[-1])]
    rules = (
        ("each round's own ratio", caddtree, {}),
        ("one price of time", longrun, {"rate": rate}),
    )
    for name, rule, more in rules:
        result = acceptance(trace, rule, cap, options={"cost": table, "context": context, **more})
        rounds = jump(trace, result.accepted[:, 0])
        used = result.nodes_by_depth[rounds.root, 0, 1:].sum(1)
        price = round_in_ar_steps(table, used.astype(np.float64), context=context)
        found.append(_policy(name, None, rounds, price, used, seed))
    return found


def _policy(
    name: str, budget: int | None, rounds: Rounds, price: np.ndarray, used: np.ndarray, seed: int
) -> Policy:
    """Return the ratio of sums, with a bootstrap over sequences."""
    size = int(rounds.sequence.max(initial=0)) + 1
    tokens = np.bincount(rounds.sequence, rounds.tokens, size)
    spent = np.bincount(rounds.sequence, price, size)
    has = np.flatnonzero(spent > 0)
    drawn = has[np.random.default_rng(seed).integers(0, has.size, (RESAMPLES, has.size))]
    low, high = np.percentile(tokens[drawn].sum(1) / spent[drawn].sum(1), (2.5, 97.5))
    return Policy(
        name, budget, float(tokens.sum() / spent.sum()), float(low), float(high), float(used.mean())
    )
