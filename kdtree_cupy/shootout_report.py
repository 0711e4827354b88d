"""Write the shoot-out's page: shootout.html, shootout.csv, and its figures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import style
from .plots_lab import plot_calibration, plot_truncation, plot_verifiers
from .plots_shootout import (
    plot_adaptive,
    plot_contest,
    plot_differences,
    plot_kinds,
    plot_wide,
    shown_budget,
)
from .policies import POLICIES
from .report_parts import draw_figures, render, write_csv
from .shootout import COLUMNS, REFERENCE, Shootout
from .version import __version__


def _best_text(result: Shootout) -> str:
    budget = shown_budget(result)
    parts = []
    for trace in result.traces:
        rows = result.select(trace=trace.name, budget=budget)
        top = max(rows, key=lambda r: r["tau_mean"])
        parts.append(f"{trace.name}: {style.policy_label(top['policy'])} {top['tau_mean']:.2f}")
    return f"Highest mean at B = {budget}. " + "; ".join(parts) + "."


def _verifier_text(result: Shootout) -> str:
    return (
        "For a fixed tree, sampling the target and following it is the best any lossless rule can do (solid line); "
        "rules for sampled drafts can beat it where the best k tokens hold little of the target's mass. "
        "Rejection without replacement becomes the best k at low temperature."
    )


FIGURES = (
    ("contest", "Contest", "Every policy at equal budgets", plot_contest, _best_text),
    ("differences", "In pairs", "Paired differences to DDTree", plot_differences, (
        "Sequences differ more than policies do, so policies are compared sequence by sequence. With a dozen sequences a sign "
        "test is blunt, and with so many policies some p below 0.05 come by chance.")),
    ("kinds", "Kinds", "Prompt kinds and target temperature", plot_kinds, (
        "A target that samples leaves the drafter's best path sooner; prompt kinds differ as much.")),
    ("calibration", "Calibration", "Would an honest drafter build better trees?", plot_calibration, (
        "A temperature per depth, fitted on the other sequences, makes the drafter's numbers match what comes; the policy "
        "'calibrated' builds the tree from them.")),
    ("wide", "Budgets", "Every budget from one wide trace", plot_wide, (
        "Trees are nested, so one build at the largest budget tells what every smaller one accepts. The best budget moves with "
        "the context; averaging over positions instead of rounds overstates tau.")),
    ("adaptive", "Adaptive", "How many nodes adaptive policies use", plot_adaptive, (
        "caddtree maximises each round's own tokens per time, longrun uses one price of time for all rounds. Both trust the "
        "drafter's expected acceptance.")),
    ("truncation", "Truncation", "What fewer ranks and half precision do", plot_truncation, (
        "Kept ranks limit the tree before they limit the budget: K below the budget can change it, and the certificate says "
        "where it provably does not.")),
    ("verifiers", "Verifiers", "Verifiers of sampled drafts", plot_verifiers, _verifier_text),
)  # fmt: skip
"""Figures of the page in order: file name, short title, title, function, text."""


def cards(result: Shootout) -> list[dict[str, str]]:
    """Return the headline numbers of the first trace."""
    budget, trace = shown_budget(result), result.traces[0].name
    rows = sorted(result.select(trace=trace, budget=budget), key=lambda r: -r["tau_mean"])
    base = next(r for r in rows if r["policy"] == REFERENCE)
    part = result.labs[0]
    gain = part.wide_speedup[min(part.wide_speedup)]
    return [
        {
            "value": style.policy_label(rows[0]["policy"]),
            "what": f"highest mean tau, {rows[0]['tau_mean']:.2f}, at B = {budget}",
            "detail": f"{trace}; DDTree {base['tau_mean']:.2f}, sign test p = {rows[0]['sign_p']:.2g}",
        },
        {
            "value": f"{100 * base['oracle_share']:.0f}%",
            "what": "of the drafts an all-knowing tree accepts",
            "detail": f"DDTree, B = {budget}; oracle tau {base['oracle_tau']:.2f} on the kept ranks",
        },
        {
            "value": f"B = {int(gain.argmax()) + 1}",
            "what": f"pays best at context {min(part.wide_speedup)}",
            "detail": f"predicted {gain.max():.2f}x with published A800 costs of another pair",
        },
    ]


def tables(result: Shootout) -> list[dict[str, Any]]:
    """Return the rows of the page's tables, formatted; a table per trace and per pooled group."""
    out = []
    for label in dict.fromkeys(row["trace"] for row in result.rows):
        rows = [
            {
                "policy": style.policy_label(r["policy"]), "budget": r["budget"], "reference": r["policy"] == REFERENCE,
                "nodes": f"{r['nodes_mean']:.1f}", "mean": f"{r['tau_mean']:.3f}",
                "band": f"{r['tau_low']:.2f} to {r['tau_high']:.2f}", "pooled": f"{r['tau_pooled']:.3f}",
                "difference": f"{r['difference']:+.3f}",
                "gap_band": f"{r['difference_low']:+.2f} to {r['difference_high']:+.2f}",
                "split": f"{r['better']} : {r['worse']} : {r['equal']}", "p": f"{r['sign_p']:.2g}",
                "oracle": f"{100 * r['oracle_share']:.0f}%",
            }
            for r in sorted(result.select(trace=label), key=lambda r: (r["budget"], -r["tau_mean"]))
        ]  # fmt: skip
        out.append({"trace": label, "rows": rows})
    return out


def write_page(
    result: Shootout, folder: Path, command: str, progress: Callable[[int], object] | None = None
) -> None:
    """Write page, table and figures into an existing folder with a sub-folder ``figures``."""
    figures = list(draw_figures(result, FIGURES, folder / "figures", progress))
    write_csv(folder / "shootout.csv", COLUMNS, result.rows)
    lines = [
        {
            "name": name,
            "text": (POLICIES[name].__doc__ or "").partition("\n")[0].replace(":func:", "").replace("`", ""),
        }
        for name in result.policies
    ]
    context = {
        "names": [trace.name for trace in result.traces], "policies": result.policies, "cards": cards(result),
        "figures": figures, "tables": tables(result), "policy_lines": lines, "command": command,
        "version": __version__,
    }  # fmt: skip
    page = render("shootout.html.j2", context, html=True)
    (folder / "shootout.html").write_text(page, encoding="utf-8")
