"""What an explorer shows: the tree of a round, and the curves of a whole replay, kept once computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from ..acceptance import tau_pooled
from ..cost import CostTable, available, load_cost, round_in_ar_steps
from ..policies import POLICIES
from ..policies.calibrated import tempered_rows
from ..policy_fit import fit
from ..replay import Rounds, acceptance, check_budgets, jump, true_path
from ..trace import Trace, bundled_traces, load_trace
from ..tree import DraftTree

BUDGETS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
MOST_POSITIONS = 1600
"""Curves come from the first sequences of a trace, so many positions at most: a replay stays a moment."""
_KEPT = 256


@dataclass(frozen=True)
class Setting:
    """What can be chosen.

    Parameters
    ----------
    trace : int
        Which of the explorer's traces.
    policy : str
    budget : int
        Draft nodes, root excluded.
    position : int
        Root of the round shown: a position of the trace.
    max_rank, max_depth : int or None
        Ranks and depths that the policy may use; None: all that were recorded.
    temperature : float
        Of the drafter's rows before the tree is built; 1 leaves them as recorded.
    """

    trace: int = 0
    policy: str = "ddtree"
    budget: int = 16
    position: int = 0
    max_rank: int | None = None
    max_depth: int | None = None
    temperature: float = 1.0


class Round(NamedTuple):
    """One round: its tree, the nodes the target agrees with (root first, -1 behind), what it accepts."""

    tree: DraftTree
    path: np.ndarray
    accepted: int
    expected: float


class Curve(NamedTuple):
    """A replay by budget: pooled tau, nodes of the rounds (as a ratio of sums needs them), roots."""

    budgets: np.ndarray
    tau: np.ndarray
    nodes: tuple[np.ndarray, ...]
    rounds: tuple[Rounds, ...]


def default_policies() -> tuple[str, ...]:
    """Return the policies whose trees are nested, so that one build answers all budgets."""
    usable = {n for n, p in POLICIES.items() if getattr(p, "nested", False) and not hasattr(p, "adaptive")}
    return tuple(name for name in POLICIES if name in usable)


class Explorer:
    """Traces, cost tables, and every tree and replay asked for so far.

    Parameters
    ----------
    traces : Trace, path, or sequence of them, optional
        Default: the bundled traces.
    policies : sequence of str, optional
        Default: :func:`default_policies`.
    costs : sequence of CostTable, optional
        Default: all that come with the package.
    budgets : sequence of int
        Of the curves.

    Raises
    ------
    ValueError
        Unknown policy, budget out of range, no trace, or a trace without a round.
    """

    def __init__(
        self,
        traces: Any = None,
        *,
        policies: Sequence[str] | None = None,
        costs: Sequence[CostTable] | None = None,
        budgets: Sequence[int] = BUDGETS,
    ) -> None:
        given = bundled_traces() if traces is None else traces
        if not isinstance(given, list | tuple):
            given = [given]
        self.traces = [one if isinstance(one, Trace) else load_trace(one) for one in given]
        if not self.traces:
            raise ValueError("traces: got none, wanted at least one")
        for trace in self.traces:
            if not (trace.lengths >= 2).any():
                raise ValueError(f"{trace.name}: no sequence has two tokens, so there is no round to show")
        self.policies = tuple(default_policies() if policies is None else policies)
        for name in self.policies:
            if name not in POLICIES or getattr(POLICIES[name], "adaptive", False):
                raise ValueError(f"policies: got {name!r}, wanted some of {', '.join(default_policies())}")
        self.costs = [load_cost(name) for name in available()] if costs is None else list(costs)
        self.budgets = check_budgets(budgets)
        self.round = lru_cache(_KEPT)(self._round)
        self._curves: dict[Setting, Curve] = {}
        self._fit = lru_cache(_KEPT)(self._fitted)
        self._warm = lru_cache(8)(self._tempered)

    def curve(self, setting: Setting) -> Curve:
        """Return the replay that a setting belongs to; kept, whatever budget and position."""
        key = replace(setting, budget=0, position=0)
        if key not in self._curves:
            self._curves[key] = self._curve(key)
        return self._curves[key]

    def knows(self, setting: Setting) -> bool:
        """Return whether :meth:`curve` answers at once."""
        return replace(setting, budget=0, position=0) in self._curves

    def budgets_of(self, policy: str) -> np.ndarray:
        """Return the budgets that a policy takes."""
        most = getattr(POLICIES[policy], "max_budget", None)
        return self.budgets if most is None else self.budgets[self.budgets <= most]

    def positions(self, trace: int) -> np.ndarray:
        """Return the positions at which a round can start, int64."""
        one = self.traces[trace]
        last = one.sequence_offsets[1:].astype(np.int64) - 1
        return np.setdiff1d(np.arange(one.tokens.size), last)

    def roots(self, setting: Setting) -> np.ndarray:
        """Return the roots of the replay's rounds at a setting's budget, ascending."""
        curve = self.curve(setting)
        at = min(int(np.searchsorted(curve.budgets, setting.budget)), curve.budgets.size - 1)
        return curve.rounds[at].root

    def following(self, setting: Setting) -> int | None:
        """Return the root of the round after this one, in the next sequence if need be; None at the end."""
        found = setting.position + self.round(setting).accepted + 1
        possible = self.positions(setting.trace)
        later = possible[possible >= found]
        return int(later[0]) if later.size else None

    def speedup(self, setting: Setting, cost: CostTable, context: float | None = None) -> np.ndarray:
        """Return predicted speedup over one-token steps at each budget of the curve."""
        curve = self.curve(setting)
        chain = setting.policy == "chain"
        steps = [
            round_in_ar_steps(cost, used.astype(float), chain=chain, context=context).mean()
            for used in curve.nodes
        ]
        return curve.tau / np.array(steps)

    def text(self, setting: Setting, before: int = 40) -> str:
        """Return the recorded text that ends with the root of a round."""
        trace = self.traces[setting.trace]
        s = int(trace.sequence_of()[setting.position])
        start = max(int(trace.sequence_offsets[s]), setting.position - before)
        return trace.decode(trace.tokens[start : setting.position + 1])

    def _tempered(self, trace: int, temperature: float) -> Trace:
        one = self.traces[trace]
        if temperature == 1.0:
            return one
        if not temperature > 0:
            raise ValueError(f"temperature: got {temperature}, wanted > 0")
        rows = tempered_rows(one.draft_logprobs, np.full(one.depth, temperature))
        return replace(one, draft_logprobs=rows)

    def _fitted(self, trace: int, policy: str) -> Any:
        one = self.traces[trace]
        return fit(policy, one, one.true_ranks())

    def fit_all(self) -> None:
        """Fit what policies need on every trace, on the rows as recorded, so that no choice waits for it."""
        for trace in range(len(self.traces)):
            for policy in self.policies:
                self._fit(trace, policy)

    def _options(self, setting: Setting) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        options, per_position = self._fit(setting.trace, setting.policy)
        limits = {"max_rank": setting.max_rank, "max_depth": setting.max_depth}
        return {**options, **{k: v for k, v in limits.items() if v is not None}}, dict(per_position)

    def _round(self, setting: Setting) -> Round:
        trace = self._warm(setting.trace, setting.temperature)
        if not 0 <= setting.position < trace.tokens.size:
            raise ValueError(f"position: got {setting.position}, wanted 0..{trace.tokens.size - 1}")
        options, per_position = self._options(setting)
        root = np.array([setting.position])
        rows = np.ascontiguousarray(trace.draft_logprobs[root])
        more = {name: values[root] for name, values in per_position.items()}
        tree = POLICIES[setting.policy](
            np.asarray(trace.draft_ids[root]), rows, trace.tokens[root], setting.budget, **options, **more
        )
        s = int(trace.sequence_of()[setting.position])
        end = trace.sequence_offsets[s + 1 : s + 2].astype(np.int64)
        path = np.concatenate([[0], true_path(tree, trace.tokens, root, end, trace.depth)[0]])
        expected = 1.0 + float(np.exp(tree.scores[0, 1 : int(tree.counts[0])]).sum())
        return Round(tree, path, int((path > 0).sum()), expected)

    def _curve(self, setting: Setting) -> Curve:
        options, per_position = self._options(setting)
        trace = first_sequences(self._warm(setting.trace, setting.temperature), MOST_POSITIONS)
        budgets = self.budgets_of(setting.policy)
        part = {name: values[: trace.tokens.size] for name, values in per_position.items()}
        policy = POLICIES[setting.policy]
        result = acceptance(trace, policy, budgets, options=options, per_position=part)
        rounds = tuple(jump(trace, result.accepted[:, j]) for j in range(budgets.size))
        nodes = tuple(result.nodes_by_depth[r.root, j, 1:].sum(1) for j, r in enumerate(rounds))
        return Curve(budgets, np.array([tau_pooled(r) for r in rounds]), nodes, rounds)


def first_sequences(trace: Trace, most: int) -> Trace:
    """Return the first sequences of a trace, ``most`` positions at most, but one sequence at least."""
    offsets = trace.sequence_offsets.astype(np.int64)
    useful = max(1, int(np.searchsorted(offsets, most, side="right")) - 1)
    while not (np.diff(offsets[: useful + 1]) >= 2).any():
        useful += 1
    if useful == trace.sequences:
        return trace
    stop = int(offsets[useful])
    rest = trace.draft_next_logprob
    return replace(
        trace,
        sequence_offsets=trace.sequence_offsets[: useful + 1],
        tokens=trace.tokens[:stop],
        draft_ids=trace.draft_ids[:stop],
        draft_logprobs=trace.draft_logprobs[:stop],
        draft_next_logprob=None if rest is None else rest[:stop],
    )
