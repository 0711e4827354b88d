"""What else a trace tells: calibration, truncation, biases, adaptive budgets, verifiers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from . import acceptance as stats
from .cost import load_cost, round_in_ar_steps
from .policies import POLICIES, ddtree
from .policies.calibrated import tempered_rows
from .policy_fit import fit_rate, fit_temperatures
from .replay import acceptance, jump, true_path
from .trace import Trace
from .verifiers import ACCEPTANCE, tempered
from .verifiers.on_trace import node_distributions

WIDE = 256
"""Budget of the one build that all smaller budgets are read from."""

SHOWN = 64
_CHUNK = 512  # positions per build
DRAFTS = 4
CONTEXTS = (1000, 8000)
COST = "caddtree-a800-8b"
TEMPERATURES = (0.1, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5)


@dataclass
class Lab:
    """Further effects on one trace.

    Parameters
    ----------
    name : str
    temperatures : float64 [S, D]
        Fitted, each sequence left out of its own fit.
    error_before, error_after : float64 [D]
        Expected calibration error per depth, with the drafter's own and with tempered log-probs.
    wide_tau : float64 [WIDE]
        Pooled tau of ddtree at every budget 1..WIDE, from one build.
    wide_position_tau : float64 [WIDE]
        The same averaged over positions: biased.
    wide_speedup : dict of context to float64 [WIDE]
        Predicted speedup over one-token steps.
    adaptive : list of dict
        ``policy, context, nodes`` (int [rounds]) ``, tau_pooled, speedup``, cap WIDE.
    truncation : list of dict
        ``setting, tau_pooled, certified_share, changed_share`` at budget SHOWN.
    verifiers : list of dict
        ``rule, temperature, acceptance`` at the first node with DRAFTS drafts; empty without target
        log-probs.
    """

    name: str
    temperatures: np.ndarray
    error_before: np.ndarray
    error_after: np.ndarray
    wide_tau: np.ndarray
    wide_position_tau: np.ndarray
    wide_speedup: dict[int, np.ndarray]
    adaptive: list[dict[str, Any]]
    truncation: list[dict[str, Any]]
    verifiers: list[dict[str, Any]]


def lab(trace: Trace, ranks: np.ndarray) -> Lab:
    """Return the record of one trace.

    Parameters
    ----------
    trace : Trace
    ranks : int16 [T, D]
        :meth:`kdtree_cupy.trace.Trace.true_ranks`.
    """
    temperatures = fit_temperatures(trace, ranks)
    by_position = temperatures[trace.sequence_of()]
    warm = replace(trace, draft_logprobs=tempered_rows(trace.draft_logprobs, by_position))
    paths = wide_paths(trace, WIDE)
    use = stats.uncensored_positions(trace)
    use = use if use.any() else np.ones(use.size, bool)
    accepted = [counterfactual(paths, budget) for budget in range(1, WIDE + 1)]
    tau = np.array([stats.tau_pooled(jump(trace, a)) for a in accepted])
    table = load_cost(COST)
    steps = {c: round_in_ar_steps(table, np.arange(1.0, WIDE + 1), context=c) for c in CONTEXTS}
    return Lab(
        name=trace.name,
        temperatures=temperatures,
        error_before=stats.reliability(trace, ranks).error,
        error_after=stats.reliability(warm, ranks).error,
        wide_tau=tau,
        wide_position_tau=np.array([a[use].mean() for a in accepted]) + 1.0,
        wide_speedup={c: tau / cost for c, cost in steps.items()},
        adaptive=[adaptive_use(trace, name, c) for c in CONTEXTS for name in ("caddtree", "longrun")],
        truncation=truncation_effects(trace),
        verifiers=verifier_acceptance(trace),
    )


def wide_paths(trace: Trace, budget: int) -> np.ndarray:
    """Return the node at each depth of the target's own continuation in a ddtree build, int16 [T, D].

    -1 once it is missed.  Trees are nested, so this one build answers every smaller budget
    (:func:`counterfactual`).
    """
    total = trace.tokens.size
    end = np.repeat(trace.sequence_offsets[1:].astype(np.int64), trace.lengths)
    out = np.full((total, trace.depth), -1, np.int16)
    for start in range(0, total, _CHUNK):
        at = slice(start, min(start + _CHUNK, total))
        rows = np.ascontiguousarray(trace.draft_logprobs[at])
        tree = ddtree(np.asarray(trace.draft_ids[at]), rows, trace.tokens[at], budget)
        out[at] = true_path(tree, trace.tokens, np.arange(at.start, at.stop), end[at], trace.depth)
    return out


def counterfactual(paths: np.ndarray, budget: int) -> np.ndarray:
    """Return what every position accepts at a smaller budget, int [T]; exact for nested policies.

    Parameters
    ----------
    paths : int [T, D]
        From :func:`wide_paths`.
    budget : int
    """
    return ((paths > 0) & (paths <= budget)).sum(1)


def adaptive_use(trace: Trace, name: str, context: float) -> dict[str, Any]:
    """Return how many nodes each round of an adaptive policy used, and what that buys."""
    options: dict[str, Any] = {"cost": COST, "context": context}
    if name == "longrun":
        options["rate"] = fit_rate(trace, COST, context)
    result = acceptance(trace, POLICIES[name], [WIDE], options=options)
    rounds = jump(trace, result.accepted[:, 0])
    nodes = result.nodes_by_depth[rounds.root, 0, 1:].sum(1)
    cost = round_in_ar_steps(load_cost(COST), nodes.astype(float), context=context).mean()
    tau = stats.tau_pooled(rounds)
    return {"policy": name, "context": context, "nodes": nodes, "tau_pooled": tau, "speedup": tau / cost}


def truncation_effects(trace: Trace, budget: int = SHOWN) -> list[dict[str, Any]]:
    """Return what fewer kept ranks, and log-probs stored as float16, do to ddtree at one budget."""
    whole = acceptance(trace, ddtree, [budget])
    settings = [(f"K = {k}", trace, k) for k in (2, 4, 8, 16, 32, 64) if k < trace.width]
    half = trace.draft_logprobs.astype(np.float16).astype(np.float32)
    settings.append((f"K = {trace.width}", trace, trace.width))
    settings.append(("float16", replace(trace, draft_logprobs=half, precision=2.0**-10), trace.width))
    out = []
    for label, used, ranks in settings:
        options = {"max_rank": ranks} if ranks < trace.width else {}
        result = acceptance(used, ddtree, [budget], options=options)
        rounds = jump(trace, result.accepted[:, 0])
        out.append({
            "setting": label, "tau_pooled": stats.tau_pooled(rounds),
            "certified_share": float(result.certified[rounds.root, 0].mean()) if rounds.root.size else np.nan,
            "changed_share": float((result.accepted != whole.accepted).mean()),
        })  # fmt: skip
    return out


def first_node(trace: Trace) -> tuple[np.ndarray, np.ndarray] | None:
    """Return target and drafter at the first drafted position over the tokens that either recorded, [n, V'].

    Both are the recorded best tokens, normalised: the tails are not in the trace.  None without the target's.
    """
    if not {"target_ids", "target_logprobs"} <= set(trace.extra):
        return None
    last = trace.sequence_offsets[1:].astype(np.int64) - 1
    at = np.setdiff1d(np.arange(trace.tokens.size - 1), last)  # positions with a next one in their sequence
    if at.size == 0:
        return None
    p, q, _ = node_distributions(trace, at, 1)
    return p, q


def verifier_acceptance(trace: Trace, drafts: int = DRAFTS) -> list[dict[str, Any]]:
    """Return the acceptance of every rule at the first node, both models at each temperature."""
    pair = first_node(trace)
    if pair is None:
        return []
    p, q = pair
    out = []
    for temperature in TEMPERATURES:
        warm_p, warm_q = tempered(p, temperature), tempered(q, temperature)
        for rule, form in ACCEPTANCE.items():
            more = {"draws": 4} if rule == "rrs_without" else {}
            value = float(form(warm_p, warm_q, drafts, **more).mean())
            out.append({"rule": rule, "temperature": temperature, "acceptance": value})
    return out
