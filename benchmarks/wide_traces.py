"""What do more ranks buy?  Replay `ddtree` on narrow and wide recordings of the same prompts.

    python benchmarks/wide_traces.py OLD_t0.npz NEW_t0_k256.kdtr ... --gpu --out wide_traces.csv

Rows are those of ``kdtree study`` (tokens per round, certified shares), with the machine that recorded.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from lossless_matrix import write

from kdtree_cupy.study import run_study
from kdtree_cupy.timing import machine
from kdtree_cupy.trace import load_trace

BUDGETS = (16, 32, 64, 128, 256, 512, 1024)


def main():
    """Replay, print and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("traces", nargs="+", type=Path)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--commit", help="where git cannot say")
    parser.add_argument("--gpu", action="store_true", help="recorded on this machine's GPU")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    stamp = machine("cuda" if options.gpu else "numpy")
    if options.commit:
        stamp |= {"commit": options.commit, "dirty": "0"}
    traces = [load_trace(path) for path in options.traces]
    found = run_study(traces, budgets=BUDGETS, policies=["ddtree"], jobs=options.jobs)
    for row in found.select(policy="ddtree", subset="all"):
        row = {k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()} | stamp
        print(row["trace"], row["budget"], row["tau_pooled"], row["certified_share"], flush=True)
        if options.out:
            write(options.out, row)


if __name__ == "__main__":
    main()
