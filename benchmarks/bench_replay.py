"""How fast is replay?  Trees built and rounds replayed per second, on this machine's CPU.

    python benchmarks/bench_replay.py [TRACE] [--seconds 2] [--budgets 64 1024]

Builds are compared with the heap on rows that are timed, bit for bit, before the clock starts.  The last line
is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import kdtree_cupy
from kdtree_cupy.acceptance import path_conditional_table
from kdtree_cupy.best_first import best_first
from kdtree_cupy.policies import chain, ddtree, static
from kdtree_cupy.refs.tree_build import best_paths, tree_build
from kdtree_cupy.replay import acceptance, jump
from kdtree_cupy.trace import Trace, bundled_traces, load_trace

POSITIONS = 256  # of the trace, for the build rows
HEAP_POSITIONS = 8  # the heap is slow: fewer do


def main() -> None:
    """Check, time, print a table and one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trace", nargs="?", type=Path, default=bundled_traces()[0])
    parser.add_argument("--seconds", type=float, default=2.0, help="spent on each row")
    parser.add_argument("--budgets", type=int, nargs="+", default=[64, 1024])
    arguments = parser.parse_args()
    trace = load_trace(arguments.trace)
    facts = machine() | {"trace": trace.name, "depth": trace.depth, "width": trace.width}
    print("\n".join(f"{key}: {value}" for key, value in facts.items()))
    print(f"\n{'what':28} {'budget':>6} {'per second':>11} {'p20':>9} {'p80':>9} {'repeats':>7}  unit")
    rows = []
    for budget in arguments.budgets:
        rows += build_rows(trace, budget, arguments.seconds)
        rows += replay_rows(trace, budget, arguments.seconds)
    print(json.dumps({"machine": facts, "rows": rows}))


def build_rows(trace: Trace, budget: int, seconds: float) -> list[dict]:
    """Time the heap and the fast path on the same positions."""
    logprobs = np.ascontiguousarray(trace.draft_logprobs[:POSITIONS])
    few = logprobs[:HEAP_POSITIONS]
    budgets = np.full(len(logprobs), budget, np.int32)
    check(few, budgets[:HEAP_POSITIONS], budget)
    return [
        row(
            "tree build, heap (reference)", budget, "trees", len(few), seconds,
            lambda: [best_paths(one, budget) for one in few],
        ),
        row(
            "tree build, level by level", budget, "trees", len(logprobs), seconds,
            lambda: best_first(logprobs, budgets, budget + 1),
        ),
    ]  # fmt: skip


def check(logprobs: np.ndarray, budgets: np.ndarray, budget: int) -> None:
    """Refuse to time a build that differs from the heap's."""
    ids = np.zeros(logprobs.shape, np.int32)
    want = tree_build(ids, logprobs, np.zeros(len(logprobs), np.int32), budgets).tree
    got = best_first(logprobs, budgets, budget + 1)
    for name in got._fields:
        if getattr(got, name).tobytes() != getattr(want, name).tobytes():
            raise SystemExit(f"budget {budget}: {name} differs from the reference; nothing is timed")


def replay_rows(trace: Trace, budget: int, seconds: float) -> list[dict]:
    """Time whole replays: a build at every position, then the rounds."""
    table = path_conditional_table(trace, trace.true_ranks())
    fitted = {"options": {"table": table}, "per_position": {"table_index": trace.sequence_of()}}
    rows = []
    for policy in (chain, ddtree, static):
        more = fitted if policy is static else {}

        def replay(policy=policy, more=more):
            return jump(trace, acceptance(trace, policy, [budget], **more).accepted[:, 0])

        rounds = replay().root.size
        rows.append(row(f"replay, {policy.__name__}", budget, "rounds", rounds, seconds, replay))
    return rows


def row(what: str, budget: int, unit: str, items: int, seconds: float, call: Callable[[], object]) -> dict:
    """Repeat ``call`` for about ``seconds`` and return items per second: median, p20, p80."""
    call()
    rates, end = [], time.perf_counter() + seconds
    while len(rates) < 3 or time.perf_counter() < end:
        start = time.perf_counter()
        call()
        rates.append(items / (time.perf_counter() - start))
    low, median, high = np.percentile(rates, [20, 50, 80])
    print(f"{what:28} {budget:6} {median:11,.0f} {low:9,.0f} {high:9,.0f} {len(rates):7}  {unit}", flush=True)
    return {
        "what": what, "budget": budget, "unit": f"{unit}/s", "median": round(median, 1), "p20": round(low, 1),
        "p80": round(high, 1), "repeats": len(rates), "items": items,
    }  # fmt: skip


def machine() -> dict[str, object]:
    """Return what the numbers depend on."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    git = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    return {
        "cpu": models[0] if models else platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
        "system": platform.platform(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "kdtree_cupy": kdtree_cupy.__version__,
        "commit": commit or "unknown",
    }


if __name__ == "__main__":
    main()
