"""Figures of a benchmark table: functions from rows to a matplotlib Figure, one machine and backend each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from . import style
from .bench_attention import attention_bytes, attention_flops
from .bench_cases import Shape

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Row = Mapping[str, Any]
ORDER = ("topk_logprob", "tree_build", "verify_attn", "target_token", "tree_accept", "kv_commit", "round")
COLOURS = dict(zip(ORDER, (*style.CYCLE[:6], style.BLACK), strict=True))
AXES = {"budget": style.BUDGET_LABEL, "prefix": "prefix (tokens)", "batch": "batch (requests)"}


def machines(rows: Iterable[Row]) -> list[tuple[str, str]]:
    """Return the (backend, gpu) pairs of a table, references left out: each gets figures of its own."""
    pairs = [(row["backend"], row["gpu"]) for row in rows if row["variant"] != "reference"]
    return list(dict.fromkeys(pairs))


def title(rows: Sequence[Row]) -> str:
    """Return hardware and commit of rows of one machine; a CPU that plays a GPU is called one."""
    row = rows[0]
    name = row["gpu"].removeprefix("none (").removesuffix(")")
    what = {"cuda": name, "host": f"kernels played by a CPU, not a GPU time; {name}"}
    return f"{what.get(row['backend'], 'numpy; ' + name)}; commit {row['commit']}"


def of_machine(rows: Iterable[Row], machine: tuple[str, str]) -> list[Row]:
    """Return the rows of one backend and machine, without the references beside."""
    return [r for r in rows if (r["backend"], r["gpu"]) == machine and r["variant"] != "reference"]


def usual(rows: Sequence[Row], x: str) -> dict[str, Any]:
    """Return the value that each other dimension is held at: the one with most values of ``x`` measured."""
    counts: dict[tuple, set] = {}
    names = ("batch", "heads", "prefix", "budget", "dtype")
    held = [name for name in names if name != x and not (x == "budget" and name == "heads")]
    for row in rows:
        counts.setdefault(tuple(row[name] for name in held), set()).add(row[x])
    best = max(counts, key=lambda key: (len(counts[key]), [-k if isinstance(k, float) else 0 for k in key]))
    return dict(zip(held, best, strict=True))


def plot_latency(rows: Sequence[Row], x: str) -> Figure:
    """Time against ``x`` (budget, prefix or batch): a panel a stage, p20 to p80 as a band, the floor dotted.

    Rows are of one machine (:func:`of_machine`).  Other sizes are held at what the panel's title says.
    """
    import matplotlib.pyplot as plt

    rows = [r for r in rows if r[x]]  # a budget of 0 has no place on a scale of powers of two
    stages = [s for s in ORDER if len({r[x] for r in rows if r["stage"] == s}) > 1]
    across = min(3, max(1, len(stages)))
    down = -(-max(1, len(stages)) // across)
    size = (3.9 * across, 3.1 * down)
    figure, axes = plt.subplots(down, across, figsize=size, squeeze=False, layout="constrained")
    for ax in axes.ravel()[len(stages) :]:
        ax.set_visible(False)
    for ax, stage in zip(axes.ravel(), stages, strict=False):
        own = [r for r in rows if r["stage"] == stage]
        held = usual(own, x)
        own = [r for r in own if all(r[k] == v for k, v in held.items())]
        _curves(ax, own, x)
        text = ", ".join(f"{k} {v:g}" for k, v in held.items() if isinstance(v, float) and v)
        ax.set_title(f"{stage}\n{text}", fontsize=9)
    figure.suptitle(title(rows), fontsize=9)
    return figure


def _curves(ax: Axes, rows: Sequence[Row], x: str) -> None:
    lines = sorted({(r["heads"], r["cold"]) for r in rows})
    for i, (heads, cold) in enumerate(lines):
        own = sorted((r for r in rows if (r["heads"], r["cold"]) == (heads, cold)), key=lambda r: r[x])
        at, median, low, high = (np.array([r[k] for r in own]) for k in (x, "us_median", "us_p20", "us_p80"))
        colour = style.CYCLE[i % len(style.CYCLE)]
        label = ", ".join(([f"H = {heads:g}"] if heads else []) + ["cold L2" if cold else "warm L2"])
        ax.fill_between(at, low, high, color=colour, alpha=0.15, linewidth=0)
        ax.plot(
            at, median, style.MARKERS[i % len(style.MARKERS)] + "-", color=colour, markersize=4, label=label
        )
        floor = np.array([r["floor_us"] or np.nan for r in own])
        ax.plot(at, floor, ":", color=colour, linewidth=1)
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ticks = sorted({r[x] for r in rows})
    ax.set_xticks(ticks, [f"{t:g}" for t in ticks])
    ax.minorticks_off()
    ax.set_xlabel(AXES[x])
    ax.set_ylabel("time (us); dotted: floor")
    ax.legend()


def plot_stack(rows: Sequence[Row]) -> Figure:
    """Stages stacked, beside the round measured as one graph; a panel a batch size.

    Attention is not in it: it belongs to the model, once a layer.
    """
    import matplotlib.pyplot as plt

    parts = [s for s in ORDER if s not in ("verify_attn", "round")]
    rows = [r for r in rows if r["stage"] in (*parts, "round")]
    batches = sorted({r["batch"] for r in rows})
    figure, axes = plt.subplots(
        1, len(batches), figsize=(3.9 * len(batches), 3.4), squeeze=False, layout="constrained"
    )
    for ax, batch in zip(axes[0], batches, strict=True):
        own = [r for r in rows if r["batch"] == batch]
        budgets = sorted({r["budget"] for r in own if r["budget"]})
        place, bottom = np.arange(len(budgets)), np.zeros(len(budgets))
        for stage in parts:
            height = np.array([_coldest(own, stage, budget) for budget in budgets])
            ax.bar(place - 0.2, height, 0.38, bottom=bottom, color=COLOURS[stage], label=stage)
            bottom += np.nan_to_num(height)
        whole = [_coldest(own, "round", budget) for budget in budgets]
        ax.bar(place + 0.2, whole, 0.38, color=style.GREY, label="round, one graph")
        ax.set_xticks(place, [f"{b:g}" for b in budgets])
        ax.set_xlabel(style.BUDGET_LABEL)
        ax.set_ylabel("time (us)")
        ax.set_title(f"batch {batch:g}", fontsize=9)
        ax.grid(axis="x", visible=False)
    axes[0][0].legend(fontsize=7)
    layers = next(r["variant"] for r in rows if r["stage"] == "round")
    figure.suptitle(f"Round without the model, rows of {layers} committed; {title(rows)}", fontsize=9)
    return figure


def _coldest(rows: Sequence[Row], stage: str, budget: float) -> float:
    """Return the median of a stage at a budget, with a cold cache if that was measured."""
    own = [r for r in rows if r["stage"] == stage and _serves(r, budget)]
    return max(own, key=lambda r: r["cold"])["us_median"] if own else np.nan


def _serves(row: Row, budget: float) -> bool:
    return row["budget"] == budget or (row["stage"] == "topk_logprob" and row["width"] == budget)


def plot_roofline(rows: Sequence[Row]) -> Figure:
    """verify_attn: operations per second against operations per byte, under the roof of the same run."""
    import matplotlib.pyplot as plt

    figure, ax = plt.subplots(figsize=(5.4, 3.8), layout="constrained")
    own = [r for r in rows if r["stage"] == "verify_attn"]
    points = []
    for r in own:
        sizes = {k: int(r[k]) for k in ("batch", "heads", "q_len", "prefix")}
        shape = Shape(dtype=r["dtype"], **sizes)
        flops = attention_flops(shape)
        moved = attention_bytes(shape, 4 if r["dtype"] == "float32" else 2)
        points.append((flops / moved, flops / r["us_median"] / 1e6, flops / r["floor_us"] / 1e6, r["heads"]))
    points.sort()
    intensity, reached, roof, heads = map(np.array, zip(*points, strict=True))
    ax.plot(intensity, np.maximum.accumulate(roof), "-", color=style.GREY, label="floor: bytes or operations")
    for i, h in enumerate(sorted(set(heads.tolist()))):
        chosen = heads == h
        marker = style.MARKERS[i % len(style.MARKERS)]
        ax.plot(
            intensity[chosen], reached[chosen], marker, color=style.CYCLE[i], markersize=4, label=f"H = {h:g}"
        )
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlabel("operations per byte that must move")
    ax.set_ylabel("TFLOP/s")
    ax.set_title(title(own), fontsize=9)
    ax.legend()
    return figure


def plot_reference(rows: Sequence[Row], machine: tuple[str, str]) -> Figure:
    """Kernel against the numpy reference (on a CPU) on the same input, a pair of bars each."""
    import matplotlib.pyplot as plt

    names = ("stage", "batch", "heads", "q_len", "prefix", "dtype", "budget", "depth", "width", "vocab")
    key = lambda r: tuple(r[name] for name in names)  # noqa: E731
    beside = {key(r): r for r in rows if r["variant"] == "reference"}
    pairs = [(r, beside[key(r)]) for r in of_machine(rows, machine) if key(r) in beside and not r["cold"]]
    pairs.sort(key=lambda p: (ORDER.index(p[0]["stage"]), p[0]["batch"], p[0]["budget"], p[0]["width"]))
    figure, ax = plt.subplots(figsize=(6.4, 0.8 + 0.34 * max(1, len(pairs))), layout="constrained")
    place = np.arange(len(pairs))
    ours, theirs = (np.array([p[i]["us_median"] for p in pairs]) for i in (0, 1))
    ax.barh(place - 0.2, ours, 0.38, color=style.BLUE, label=f"kernel, {machine[0]}")
    ax.barh(place + 0.2, theirs, 0.38, color=style.LIGHT, label="numpy reference, CPU")
    for y, one, other in zip(place, ours, theirs, strict=True):
        ax.text(max(one, other) * 1.15, y, f"{other / one:,.2g}x", va="center", fontsize=7)
    texts = [
        ", ".join([r["stage"], *(f"{k} {r[k]:g}" for k in ("batch", "budget", "width") if r[k])])
        for r, _ in pairs
    ]
    ax.set_yticks(place, texts, fontsize=7)
    ax.invert_yaxis()
    ax.set_xscale("log")
    ax.margins(x=0.2)
    ax.set_xlabel("time (us)")
    ax.grid(axis="y", visible=False)
    ax.legend(fontsize=7)
    if pairs:
        figure.suptitle(title([pairs[0][0]]), fontsize=8)
    return figure


def figures(rows: Sequence[Row]) -> dict[str, Figure]:
    """Return every figure that a table has data for, by file name; machines and backends apart."""
    out = {}
    for machine in machines(rows):
        own, suffix = of_machine(rows, machine), machine[0]
        while any(name.endswith(suffix) for name in out):
            suffix += "-b"
        for x in AXES:
            if len({r[x] for r in own if r[x]}) > 1:
                out[f"latency_{x}_{suffix}"] = plot_latency(own, x)
        stages = {r["stage"] for r in own}
        if "round" in stages:
            out[f"stack_{suffix}"] = plot_stack(own)
        if "verify_attn" in stages:
            out[f"roofline_{suffix}"] = plot_roofline(own)
        if any(r["variant"] == "reference" for r in rows):
            out[f"reference_{suffix}"] = plot_reference(rows, machine)
    return out
