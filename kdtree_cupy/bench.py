"""Benchmarks of every stage and of the round: checked first, then timed, one tidy row each.

>>> from kdtree_cupy.bench import Grid, plan
>>> len(plan(Grid(budgets=(16,), batches=(1,), prefixes=(64,), heads=(8,))))
7
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from .bench_attention import attention_case, gqa_case
from .bench_cases import Case, Shape, commit_case, target_case, topk_case, tree_cases
from .bench_data import Place
from .bench_round import round_case
from .bench_table import COLUMNS, Rows, describe
from .library import KernelError, KernelLibrary
from .timing import Ceilings, ceilings, clocks, graph_times, machine, summary, wall_times

STAGES = ("topk_logprob", "tree", "verify_attn", "verify_attn_gqa", "target_token", "kv_commit", "round")
"""What :func:`plan` knows; "tree" is tree_build and tree_accept."""


@dataclass(frozen=True)
class Grid:
    """What to measure: the product of these, as far as a stage has the dimension.

    Parameters
    ----------
    budgets, batches, prefixes, heads : tuple of int
    dtypes : tuple of str
        Of logits, queries and KV rows.
    stages : tuple of str
        Of :data:`STAGES`.
    depth, width, vocab, layers : int
        D, K (at most the budget), V; layers whose rows are committed.
    """

    budgets: tuple[int, ...] = (16, 64, 256)
    batches: tuple[int, ...] = (1, 8, 64)
    prefixes: tuple[int, ...] = (2048, 8192, 32_768)
    heads: tuple[int, ...] = (8, 64)
    dtypes: tuple[str, ...] = ("bfloat16",)
    stages: tuple[str, ...] = STAGES
    depth: int = 15
    width: int = 1024
    vocab: int = 163_840
    layers: int = 61


QUICK = Grid(budgets=(64,), batches=(1, 64), prefixes=(2048,), heads=(8,), width=64)
"""Of ``--quick`` on a device."""
CPU = Grid(
    budgets=(16, 64), batches=(1, 4), prefixes=(256,), heads=(2,), dtypes=("float32",), vocab=8192, layers=4
)
"""Without a device: small, so that a CPU that plays a GPU ends in a minute."""
CPU_QUICK = replace(CPU, budgets=(16,), batches=(1,), prefixes=(64,), depth=6, vocab=2048, layers=2)
MOST_PAIRS = 3e9
"""Pairs of (query row, KV row) beyond which an attention case is left out: time and memory."""

Builder = Callable[[Place, int], list[Case]]


def plan(grid: Grid) -> list[tuple[str, Shape, Builder]]:
    """Return what a grid asks for: (stage, shape, function that makes its cases)."""
    base, out = Shape(depth=grid.depth, vocab=grid.vocab), []

    def add(stage: str, shape: Shape, build: Callable[[Place, Shape, int], Any]) -> None:
        def make(place: Place, l2: int) -> list[Case]:
            made = build(place, shape, l2)
            return made if isinstance(made, list) else [made]

        if stage in grid.stages and (
            shape.budget or stage.startswith("verify_attn")
        ):  # 0: a step without drafts
            out.append((stage, shape, make))

    for dtype, batch, budget in product(grid.dtypes, grid.batches, grid.budgets):
        shape = replace(
            base, dtype=dtype, batch=batch, budget=budget, width=min(budget, grid.width, grid.vocab)
        )
        add("topk_logprob", shape, topk_case)
        add("tree", shape, lambda place, shape, l2: tree_cases(place, shape))
        add("target_token", shape, target_case)
        add("kv_commit", shape, lambda *given: commit_case(*given, layers=grid.layers))
        add("round", shape, lambda *given: round_case(*given, layers=grid.layers))
        for heads, prefix in product(grid.heads, grid.prefixes):
            wanted = replace(shape, heads=heads, prefix=prefix)
            if batch * heads * (budget + 1) * (prefix + budget + 1) <= MOST_PAIRS:
                add("verify_attn", wanted, attention_case)
                add("verify_attn_gqa", wanted, gqa_case)
    return out


def run_bench(
    backend: str,
    grid: Grid,
    *,
    command: str = "",
    commit: str = "",
    replays: int = 15,
    say: Callable[[str], object] | None = None,
) -> dict[str, Any]:
    """Measure a grid; return ``rows`` (:mod:`.bench_table`), ``samples``, ``machine``, ``clocks``, ``wrong``.

    Parameters
    ----------
    backend : {"cuda", "host", "numpy"}
        "host" runs the kernels on the CPU: its times say nothing about a GPU, and rows say so.
    grid : Grid
    command, commit : str
        For the table; the commit is asked of git if not given.
    replays : int
        Samples of a row on a device.
    say : callable, optional
        Called with a line of text for each row.

    Notes
    -----
    A case that fails its check is named in ``wrong`` and not timed; Ctrl-C ends the run and keeps the rows so
    far.  Waits for the device.
    """
    place, top = Place(KernelLibrary(backend=backend)), ceilings(backend)
    facts = machine(backend) | {"command": command}
    facts |= {"commit": commit} if commit else {}
    record: dict[str, Any] = {"rows": Rows(), "samples": [], "wrong": [], "clocks": [clocks()]}
    record["machine"] = facts | {"ceilings": top._asdict()}
    for stage, shape, build in plan(grid):
        place.free()
        try:
            for row, samples in measured(place, build(place, top.l2_bytes), top, facts, replays):
                record["rows"].append(row)
                record["samples"].append([round(x, 4) for x in samples])
                (say or _silent)(describe(row))
        except KeyboardInterrupt:
            record["wrong"].append(f"interrupted at {stage} {shape}; rows so far are kept")
            break
        except (ValueError, KernelError, MemoryError) as error:
            record["wrong"].append(f"{stage} {shape}: {error}")
            (say or _silent)(f"NOT TIMED: {record['wrong'][-1]}")
    record["clocks"].append(clocks())
    return record


def _silent(_: str) -> None:
    pass


def measured(
    place: Place, cases: Iterable[Case], top: Ceilings, facts: Mapping[str, str], replays: int
) -> Iterator[tuple[dict[str, Any], list[float]]]:
    """Check each case and yield its rows with their samples: cold, warm, and the numpy reference."""
    for case in cases:
        case.check()
        base = case.row() | {"floor_us": round(top.floor_us(case.moved, case.flops), 3)}
        for cold in (True, False) if case.cold else (False,):
            if place.backend == "cuda":
                calls = case.calls if cold else case.calls[:1]
                if not cold and case.cold and len(case.calls) == 1:
                    continue  # larger than the cache by itself: there is no warm run of it
                samples = graph_times(calls, replays=replays, before=case.before)
            else:
                samples = wall_times(case.calls[0], before=case.before)
            (case.after or _done)()
            yield _row(base, samples, cold, place.backend, facts), samples
        if case.reference is not None and place.backend != "numpy":
            samples = wall_times(case.reference, least=3, most=10)
            on_cpu = facts | {"gpu": machine("numpy")["gpu"], "driver": "", "cuda": "", "cupy": ""}
            row = base | {"variant": "reference", "floor_us": ""}
            yield _row(row, samples, False, "numpy", on_cpu), samples


def _done() -> None:
    pass


def _row(base: dict, samples: Sequence[float], cold: bool, backend: str, facts: Mapping[str, str]) -> dict:
    median, low, high, n = summary(samples)
    times = {"us_median": round(median, 3), "us_p20": round(low, 3), "us_p80": round(high, 3), "n": n}
    row = base | times | {"cold": int(cold), "backend": backend} | facts
    return {name: row[name] for name in COLUMNS}
