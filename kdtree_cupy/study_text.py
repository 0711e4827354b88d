"""Words and numbers of the study report; every sentence is made from the result it describes."""

from __future__ import annotations

from typing import Any

from . import style
from .plots import plot_histogram, plot_nodes, plot_speedup, plot_survival, plot_tau
from .plots_calibration import plot_depth_rank, plot_examples, plot_reliability, plot_surrogate
from .study import BASELINE, StudyResult
from .study_table import tree_policy


def _row(result: StudyResult, policy: str, budget: int | None = None, subset: str = "all") -> dict[str, Any]:
    """Return the table row of the first trace."""
    name = result.traces[0].trace.name
    wanted = result.shown_budget if budget is None else budget
    return result.select(trace=name, policy=policy, budget=wanted, subset=subset)[0]


def cards(result: StudyResult) -> list[dict[str, str]]:
    """Return the headline numbers of the first trace."""
    best, name = tree_policy(result), result.traces[0].trace.name
    tree, chain = _row(result, best), _row(result, BASELINE)
    label = style.policy_label(best)
    out = [
        {
            "value": f"{tree['tau_pooled']:.2f}",
            "what": f"tokens per round, {label}, B = {result.shown_budget}",
            "detail": f"{name}, pooled; chain {chain['tau_pooled']:.2f}",
        },
        {
            "value": f"{tree['surrogate_tau']:.2f}",
            "what": "tokens per round the drafter expected",
            "detail": f"{tree['tau_pooled']:.2f} came: factor {tree['surrogate_tau'] / tree['tau_pooled']:.2f}",
        },
    ]
    mine = [r for r in result.speedups if r["trace"] == name and r["policy"] == best]
    if mine:
        top = max(mine, key=lambda r: r["speedup"])
        cost = next(c for c in result.costs if c.name == top["cost"])
        out.append({
            "value": f"{top['speedup']:.2f}x",
            "what": f"predicted speedup, {label}, B = {top['budget']}",
            "detail": f"acceptance of {name}, round costs of another pair: {cost.label()}",
        })  # fmt: skip
    out.append({
        "value": f"{sum(p.trace.tokens.size for p in result.traces):,}",
        "what": f"recorded positions in {len(result.traces)} trace(s)",
        "detail": f"{sum(p.trace.sequences for p in result.traces)} sequences",
    })  # fmt: skip
    return out


def tables(result: StudyResult) -> list[dict[str, Any]]:
    """Return the rows of the report's tables, formatted."""
    out = []
    for part in result.traces:
        rows = []
        for row in result.select(trace=part.trace.name, subset="all"):
            key = {k: row[k] for k in ("trace", "policy", "budget")}
            other = result.select(**key, subset="no_loops")[0]
            sure = row["certified_share"]
            rows.append({
                "policy": style.policy_label(row["policy"]), "budget": row["budget"], "shown": row["budget"] == result.shown_budget,
                "mean": f"{row['tau_mean']:.3f}", "band": f"{row['tau_low']:.2f} to {row['tau_high']:.2f}",
                "pooled": f"{row['tau_pooled']:.3f}", "pooled_no_loops": f"{other['tau_pooled']:.3f}",
                "rounds": row["rounds"], "nodes": f"{row['nodes_mean']:.1f}", "expected": f"{row['surrogate_tau']:.2f}",
                "certified": "" if sure is None else f"{100 * sure:.0f}%",
            })  # fmt: skip
        out.append({"trace": part.trace.name, "rows": rows})
    return out


_FACTS = {
    "target": "target", "drafter": "drafter", "temperature": "temperature", "depth": "D, drafted positions",
    "width": "K, kept ranks", "sequences": "sequences", "sequences_skipped": "skipped (fewer than 2 tokens)",
    "sequences_ended": "ended by a stop token", "sequences_looping": "looping", "tokens": "recorded positions",
}  # fmt: skip


def facts(result: StudyResult) -> list[list[Any]]:
    """Return the table of traces: a line per fact, a column per trace."""
    best, column = tree_policy(result), [part.column(result.shown_budget) for part in result.traces]
    summaries = [part.trace.summary() for part in result.traces]
    lines: list[list[Any]] = [["", *(part.trace.name for part in result.traces)]]
    lines += [[label, *(summary[key] for summary in summaries)] for key, label in _FACTS.items()]
    lines.append(
        ["oracle tau: a tree that knows the text", *(f"{p.oracle_tau[0]:.2f}" for p in result.traces)]
    )
    lines.append(
        ["oracle tau: the same, kept ranks only", *(f"{p.oracle_tau[1]:.2f}" for p in result.traces)]
    )
    biased = [p.position_average[best][j] for p, j in zip(result.traces, column, strict=True)]
    label = f"tau averaged over positions (biased), {style.policy_label(best)}, B = {result.shown_budget}"
    lines.append([label, *(f"{value:.2f}" for value in biased)])
    return lines


def method(result: StudyResult) -> list[str]:
    """Return the statements a reader needs to trust or doubt the numbers."""
    out = [
        "A round starts at a root (the last committed token), verifies the tree and commits the accepted path plus the "
        "target's own next token. Replay jumps from round to round; averaging over all positions instead overstates tau, "
        "because long accepts skip positions (the biased figure is in the table of traces).",
        "For T = 0 the replay is what a live run of the same pair would accept; for T > 0 it has the same distribution, because a "
        "deterministic tree is verified by matching the token that the target samples.",
        "tau is given as the mean over sequences and pooled (tokens / rounds). Predicted speedups use the pooled value.",
        "Rounds whose last position lies beyond a recording that did not end by a stop token are censored: they count in tau, "
        "not in histograms, survival, (depth, rank) tables or calibration.",
        "static: one tree shape per sequence, grown best-first on acceptance by (depth, rank) given the path above, fitted on "
        "all other sequences of the trace.",
    ]
    for part in result.traces:
        if (part.trace.lengths >= 2).sum() < 2:
            out.append(
                f"{part.trace.name}: one sequence only, so there is no interval, and policies that are fitted on other "
                "sequences (static and its kin) fall back to what they assume without data: do not read them as measured."
            )
        if not part.trace.header.get("stop_tokens"):
            out.append(
                f"{part.trace.name}: no stop tokens are recorded, so the last rounds of every sequence are censored "
                "(give --stop-tokens to say which tokens end a response)."
            )
    out += [f"Overlay: {m.describe()}" for m in result.overlays]
    sources = {
        (p.trace.header.get("source", "not recorded"), p.trace.header.get("licence", "not recorded"))
        for p in result.traces
    }
    out += [f"Trace source: {source}. Licence: {licence}." for source, licence in sorted(sources)]
    out += [f"Cost table {c.name} ({c.kind}): {c.source}. {c.note}." for c in result.costs]
    if result.costs:
        out.append(
            "Speedups combine the acceptance of this model pair with the round costs of another one: they show the trade-off, "
            "they are not a measurement of either."
        )
        out.append(
            "Costs beyond the largest node count of a table go on with its last slope: "
            + ", ".join(f"{c.name} ends at {c.nodes[-1]:g} nodes" for c in result.costs)
            + "."
        )
    return out


def _tau_text(result: StudyResult) -> str:
    best = tree_policy(result)
    parts = []
    for part in result.traces:
        row = result.select(trace=part.trace.name, policy=best, budget=result.shown_budget, subset="all")[0]
        chain = result.select(
            trace=part.trace.name, policy=BASELINE, budget=result.shown_budget, subset="all"
        )[0]
        parts.append(
            f"{part.trace.name}: {row['tau_mean']:.2f} against {chain['tau_mean']:.2f} for the chain"
        )
    return (
        f"{style.policy_label(best)} at B = {result.shown_budget}, mean over sequences. "
        + "; ".join(parts)
        + "."
    )


FIGURES = (
    ("tau", "Tau", "Tokens per round against budget", plot_tau, _tau_text),
    ("speedup", "Speedup", "Predicted speedup against budget", plot_speedup, (
        "Acceptance grows with the budget, and so does the cost of verifying. The best budget moves with the machine and the "
        "context length.")),
    ("histogram", "Histogram", "Tokens per round: how they spread", plot_histogram, (
        "A mean hides its shape: the share of rounds that commit only the bonus token is where a tree helps most.")),
    ("survival", "Survival", "How deep rounds get", plot_survival, (
        "The sum of a curve over d = 1, 2, ... is the mean number of accepted drafts of uncensored rounds.")),
    ("depth_rank", "Depth and rank", "Acceptance by depth and rank", plot_depth_rank, (
        "Three definitions that are often confused: how often the true token has that rank at all positions; how often a path "
        "that got there goes on at that rank; how often a round's path goes through that cell.")),
    ("surrogate", "Surrogate", "Does the tree get what it expects?", plot_surrogate, (
        "DDTree maximises 1 + sum exp(score), the tokens it expects if the drafter's marginals were right and independent. "
        "Points below the line: the drafter is overconfident.")),
    ("reliability", "Reliability", "Is the drafter calibrated?", plot_reliability, (
        "Drafted tokens grouped by the drafter's own probability; error: the gaps between predicted and observed counts, added up over the bins and divided by the predicted count (a relative error).")),
    ("nodes", "Shape", "Where the nodes go", plot_nodes, "Mean number of nodes per depth over the rounds that happened."),
    ("examples", "Trees", "Two real rounds", plot_examples, (
        "The trees DDTree would have verified at these positions, and the path the target then took.")),
)  # fmt: skip
"""Figures of the report in order: file name, short title, title, function, text (or a function of the study)."""
