"""Recompute published numbers from published inputs: ``kdtree reproduce NAME|all``.

Inputs and results lie in ``kdtree_cupy/published``; everything in between is this package's own code, so a
wrong formula shows as a digit that differs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from . import positional
from .acceptance import expected_tokens, survival
from .cost import CostTable, load_cost, round_in_ar_steps, speedup
from .published import load, medusa_choices
from .verifiers import ToyModel, exact_node, exact_traversal, subset_formula


class Row(NamedTuple):
    """One published number and ours.

    Attributes
    ----------
    name : str
    published : float or list of int
        As printed.
    ours : float, list of int, or [low, high]
        Two bounds where the published input is not known in full.
    digits : int
        Decimals that were printed.
    note : str
    """

    name: str
    published: Any
    ours: Any
    digits: int
    note: str = ""

    @property
    def agrees(self) -> bool:
        """Whether ours is the published value within its printed digits, or bounds that hold it."""
        half = 0.5 * 10.0**-self.digits * (1 + 1e-9)
        if isinstance(self.published, list):
            return self.published == self.ours
        if isinstance(self.ours, list):
            return self.ours[0] - half <= self.published <= self.ours[1] + half
        return abs(self.ours - self.published) <= half

    def to_json(self) -> dict[str, Any]:
        """Return name, published, ours, digits and, where there is one, the note."""
        out = {"name": self.name, "published": self.published, "ours": self.ours, "digits": self.digits}
        return out | ({"note": self.note} if self.note else {})


def ddtree_figures() -> Iterator[Row]:
    """DDTree Fig. 3 (speedup, round cost, best budget) and Fig. 4 (histogram, survival)."""
    data = load("ddtree")
    table = load_cost("ddtree-h200-8b")
    tau, budgets = np.array(data["tau"]), np.array(data["budgets"])
    for b, t, gain, cost in zip(budgets, tau, data["speedup"], data["round_ar"], strict=True):
        yield Row(f"Fig. 3, B = {b}: round / AR step", cost, float(t / gain), 3)
        ours = float(speedup(t, table, float(b)))
        # the cost table holds three decimals of the ratio, which leaves two of the speedup
        yield Row(f"Fig. 3, B = {b}: speedup from tau and the cost table", gain, ours, 2)
    chain = data["chain"]
    yield Row("Fig. 3, chain: round / AR step", chain["round_ar"], chain["tau"] / chain["speedup"], 3)
    best = budgets[int(np.argmax(speedup(tau, table, budgets.astype(float))))]
    yield Row("Fig. 3: best budget", data["best_budget"], int(best), 0)
    for name, percent in data["histogram"].items():
        share = np.array(percent) / 100
        total = float(share.sum() * 100)
        yield Row(f"Fig. 4, {name}: sum of the histogram", 100.0, total, 1)
        mean = float((share * np.arange(1, 17)).sum())
        yield Row(f"Fig. 4, {name}: pooled mean", data["pooled_mean"][name], mean, 2)
    alive = survival(np.array(data["histogram"]["chain"]))[1:]
    for d, (ours, wanted) in enumerate(zip(alive, data["chain_survival"], strict=True), 1):
        yield Row(f"Fig. 4, chain: share of rounds with {d} drafts or more", wanted, float(ours), 4)
    passed = alive / np.concatenate([[1.0], alive[:-1]])
    for d, (ours, wanted) in enumerate(zip(passed, data["chain_conditional"], strict=True), 1):
        yield Row(f"Fig. 4, chain: acceptance at depth {d}", wanted, float(ours), 2)


def sequoia() -> Iterator[Row]:
    """Sequoia's acceptance vector: F table, demo tree, hardware optimum."""
    data = load("sequoia")
    counts = np.array(data["acceptance_counts"], float)
    vector = counts / data["nodes_seen"]
    for i, printed in enumerate(data["printed_vector"], 1):
        yield Row(f"vector, child {i}", printed, float(vector[i - 1]), 6)
    nodes, levels = data["max_nodes"], data["max_levels"]
    table = positional.depth_table(vector, nodes, levels)
    times = {int(n): t for n, t in data["target_time"].items()}
    best = positional.hardware_optimum(table, times, data["draft_time"])
    wanted = data["best"]
    yield Row("demo tree: nodes", wanted["nodes"], best.nodes, 0)
    yield Row("demo tree: levels", wanted["levels"], best.levels, 0)
    yield Row("demo tree: tokens", wanted["tokens"], best.tokens, 6)
    yield Row("demo tree: time per token", wanted["time_per_token"], best.time_per_token, 6)
    yield Row("demo tree: speedup", wanted["speedup"], best.speedup, 6)
    paths = positional.best_tree(table, best.nodes, best.levels)
    parents = [-1, *(0 if len(p) == 1 else 1 + paths.index(p[:-1]) for p in paths)]
    yield Row("demo tree: parents", wanted["parents"], parents, 0)
    for n, tokens in data["tokens"].items():
        yield Row(f"F({n}), 10 levels", tokens, float(table.tokens[levels, int(n)]), 4)
    greedy = positional.grow_greedily(np.tile(vector, (levels - 1, 1)), nodes - 1)
    ours = positional.expected_tokens(greedy, vector)
    yield Row("best-first, 128 nodes", data["best_first_tokens_128"], ours, 4)
    full = np.append(counts, data["unknown_count"]) / data["nodes_seen"]
    above = positional.depth_table(full, nodes, levels)
    for level, tokens in data["tokens_128_by_levels"].items():
        low, high = float(table.tokens[int(level), nodes]), float(above.tokens[int(level), nodes])
        note = "bounds: entries 17.. of the vector are not known; their sum is"
        exact = round(low, 4) == tokens
        yield Row(f"F(128), {level} levels", tokens, low if exact else [low, high], 4, "" if exact else note)


def medusa() -> Iterator[Row]:
    """Medusa's nine trees, expected lengths from its accuracies, greedy growth, and its runs."""
    data = load("medusa")
    for name, wanted in data["depth_histograms"].items():
        ours = positional.depth_histogram(medusa_choices(name))
        yield Row(f"{name}: nodes per depth", wanted, ours, 0)
        yield Row(f"{name}: nodes", 63, len(medusa_choices(name)), 0)
    tree = medusa_choices("mc_sim_7b_63")
    for model, top in data["accuracy_top"].items():
        accuracy = np.diff(np.array(top), axis=1, prepend=0.0)
        fixed = positional.expected_tokens(tree, accuracy)
        yield Row(f"{model}: E[len] of mc_sim_7b_63", data["expected_length"][model], fixed, 4)
        grown = positional.expected_tokens(positional.grow_greedily(accuracy, 63), accuracy)
        yield Row(f"{model}: E[len] of 63 nodes grown greedily", data["grown_length"][model], grown, 4)
        chain = positional.expected_tokens([(0,) * d for d in range(1, 6)], accuracy)
        yield Row(f"{model}: E[len] of the chain of 5", data["chain_length"][model], chain, 4)
        run = data["runs"][model]
        yield Row(f"{model}: MT-Bench tokens / idx", run["ratio"], run["new_tokens"] / run["idxs"], 3)
    accuracy = np.diff(np.array(data["accuracy_top"]["7b"]), axis=1, prepend=0.0)
    for budget, wanted in data["by_budget_7b"].items():
        ours = positional.expected_tokens(positional.grow_greedily(accuracy, int(budget)), accuracy)
        yield Row(f"7b: E[len] of {budget} nodes grown greedily", wanted, ours, 4)


def single_node() -> Iterator[Row]:
    """Compare the acceptance of every verifier at one node of three tokens."""
    columns = {"match_best": "match"}
    for i, row in enumerate(load("single_node")["rows"]):
        for column in ("match_best", "match_iid", "rrs", "rrs_without", "kseq", "transport"):
            rule = columns.get(column, column)
            if rule == "transport":  # the dual needs no linear program, hence no scipy
                ours = float(subset_formula(row["p"], row["q"], row["k"]))
            else:
                ours = float(exact_node(rule, row["p"], row["q"], row["k"]).acceptance)
            digits = len(row[column].partition(".")[2])
            name = f"pair {1 + i // 3}, k = {row['k']}: {column}"
            yield Row(name, float(row[column]), ours, digits)


def caddtree() -> Iterator[Row]:
    """Best budgets of CaDDTree's latency curves with DDTree's tau."""
    data, figure = load("caddtree"), load("ddtree")
    table = load_cost(data["cost"])
    budgets, tau = np.array(figure["budgets"], float), np.array(figure["tau"])
    for context, wanted in data["best"].items():
        gain = speedup(tau, table, budgets, context=float(context))
        best = int(np.argmax(gain))
        yield Row(f"context {context}: best budget", wanted["budget"], int(budgets[best]), 0)
        if "tokens_per_second" in wanted:
            cost = round_ms(table, float(budgets[best]), float(context))
            bounds = [1000 * (tau[best] + e) / (cost - 10 * e) for e in (-0.0005, 0.0005)]
            note = "bounds: the curve is printed to 0.01 ms, tau to 0.001"
            name = f"context {context}: tokens/s"
            yield Row(name, wanted["tokens_per_second"], [float(x) for x in bounds], 1, note)
        if "speedup" in wanted:
            yield Row(f"context {context}: speedup", wanted["speedup"], float(gain[best]), 2)


def round_ms(table: CostTable, nodes: float, context: float) -> float:
    """Return the milliseconds of a round from a table of times."""
    if table.ar_ms is None:
        raise ValueError(f"cost table {table.name!r}: got ratios, wanted times in milliseconds")
    ar = float(np.interp(context, table.contexts, table.ar_ms))
    return ar * float(round_in_ar_steps(table, nodes, context=context))


def leviathan() -> Iterator[Row]:
    """Tokens per round of a chain whose drafts are accepted independently."""
    data = load("single_node")["leviathan"]
    ours = expected_tokens(data["acceptance"], data["drafts"])
    yield Row("acceptance 0.8, 4 drafts: tokens", data["tokens"], ours, 4)


def traversal() -> Iterator[Row]:
    """Compare token and sequence level on a chain of two drafts with ratios 1/2 and 4/3."""
    data = load("single_node")["traversal"]
    model = ToyModel(
        target=(np.array([[0.4, 0.6]]), np.array([[0.8, 0.2]] * 2), np.full((4, 2), 0.5)),
        drafter=(np.array([[0.8, 0.2]]), np.array([[0.6, 0.4]] * 2), np.full((4, 2), 0.5)),
    )
    first = min(1.0, model.target[0][0, 0] / model.drafter[0][0, 0])
    second = min(1.0, model.target[1][0, 0] / model.drafter[1][0, 0])
    yield Row("token level", data["token_level"], float(first * second), 1)
    runs = exact_traversal(model, 1)
    both = sum(mass for run, mass in runs.items() if len(run) == 3 and run[:2] == (0, 0))
    drafted = model.drafter[0][0, 0] * model.drafter[1][0, 0]
    yield Row("sequence level", data["sequence_level"], float(both / drafted), 3)


def eagle() -> Iterator[Row]:
    """EAGLE-1's tree."""
    wanted = load("eagle")["depth_histograms"]["eagle_25"]
    yield Row("eagle_25: nodes per depth", wanted, positional.depth_histogram(medusa_choices("eagle_25")), 0)


CHECKS: dict[str, Callable[[], Iterator[Row]]] = {
    "ddtree": ddtree_figures, "sequoia": sequoia, "medusa": medusa, "eagle": eagle,
    "single_node": single_node, "caddtree": caddtree, "leviathan": leviathan, "traversal": traversal,
}  # fmt: skip
"""What can be reproduced, by name."""


def reproduce(name: str) -> list[Row]:
    """Return the rows of one check, or of all with names prefixed.

    Raises
    ------
    ValueError
        An unknown name.

    Examples
    --------
    >>> reproduce("leviathan")[0].agrees
    True
    """
    if name == "all":
        return [row._replace(name=f"{key}: {row.name}") for key in CHECKS for row in CHECKS[key]()]
    if name not in CHECKS:
        raise ValueError(f"name: got {name!r}, wanted all or one of {', '.join(CHECKS)}")
    return [row._replace(name=f"{name}: {row.name}") for row in CHECKS[name]()]
