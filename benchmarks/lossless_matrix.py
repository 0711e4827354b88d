"""Is decoding with trees lossless? The full matrix, by hand or on a GPU; `tests` run a part of it.

    python benchmarks/lossless_matrix.py --model mla --out benchmarks/results/lossless_cpu.csv
    python benchmarks/lossless_matrix.py --model smollm2 --device gpu --dtype bfloat16
    python benchmarks/lossless_matrix.py --join part1.csv part2.csv --out whole.csv   # cells run with --part

Plain decoding of all prompts in one batch is compared with chains and trees in batches of 1 and 4, pages of 1
and 16, budgets 0 to 256.  ``mla`` and ``gqa`` are the random decoders of the golden files.  A flip is
explained by rounding where the two best logits of plain decoding are closer than four times the largest
difference that was measured.  Exit code 1 if a flip is not.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from importlib import resources
from pathlib import Path

import numpy as np

from kdtree_cupy import kdtr
from kdtree_cupy.engine import Model, NGramDrafter, from_dict
from kdtree_cupy.engine.generate import Generation
from kdtree_cupy.engine.load import smollm2
from kdtree_cupy.engine.lossless import Recorded, check_mode, recorded
from kdtree_cupy.timing import machine

WAYS = tuple([("chain", n) for n in (0, 1, 15)] + [("ddtree", n) for n in (0, 1, 15, 64, 256)])
"""A chain of 64 or 256 would be one of 15, the drafter's positions."""
QUESTIONS = (
    "What is a tree?", "Write a function that reverses a string.", "Name three rivers in Europe.",
    "Tell a short story about a fox.", "Why is the sky blue?", "Add 12 and 30, step by step.",
    "List five fruits.", "Translate 'good morning' into French.",
)  # fmt: skip


def load(options, xp):
    """Return model and prompts."""
    rng = np.random.default_rng(0)
    if options.model == "smollm2":
        model, tokenizer = smollm2(xp=xp, dtype=options.dtype)
        ends = ["briefly"] * 8 + [f"in {n} words" for n in range(8, 8 + options.prompts)]
        texts = [f"{QUESTIONS[i % 8]} Answer {ends[i]}." for i in range(options.prompts)]
        return model, [tokenizer.chat(text) for text in texts]
    found = kdtr.read(resources.files("kdtree_cupy.refs") / "golden" / f"greedy_step_{options.model}.kdtr")
    weights = {name[8:]: array for name, array in found.arrays.items() if name.startswith("weights.")}
    model = Model(from_dict(found.header["config"]), weights, xp=xp, dtype=options.dtype)
    return model, [rng.integers(0, 96, rng.integers(1, 25)).astype(np.int32) for _ in range(options.prompts)]


def write(path, row):
    """Append a row to a table."""
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, row, lineterminator="\n")
        if file.tell() == 0:
            writer.writeheader()
        writer.writerow(row)


CELL = ("model", "dtype", "mode", "budget", "batch", "page_size")


def join(paths, prompts):
    """Return the rows of cells whose prompts were run in parts: sums, and the largest differences."""
    cells = {}
    for path in paths:
        with path.open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                cells.setdefault(tuple(row[name] for name in CELL), []).append(row)
    for parts in cells.values():
        if len({row["commit"] for row in parts}) > 1:
            raise SystemExit(f"{parts[0]}: parts come from several commits")
        counts = {
            name: sum(int(row[name]) for row in parts)
            for name in ("sequences", "tokens", "flips", "unexplained")
        }
        if counts["sequences"] != prompts:
            raise SystemExit(
                f"{[parts[0][name] for name in CELL]}: {counts['sequences']} of {prompts} prompts"
            )
        written = [int(row["tokens"]) - int(row["sequences"]) for row in parts]  # first tokens need no round
        rounds = sum(count / float(row["tau"]) for count, row in zip(written, parts, strict=True))
        rest = {"difference": max(float(row["difference"]) for row in parts), "tau": sum(written) / rounds}
        rest["gap"] = max(float(row["gap"]) for row in parts)
        seconds = sum(float(row["seconds"]) for row in parts)
        yield parts[0] | counts | rest | {"seconds": round(seconds, 1)}


def part_of(text, prompts, plain):
    """Return the share ``I/N`` of prompts and of how plain decoding continues all of them."""
    index, count = map(int, text.split("/"))
    at = slice((index - 1) * len(prompts) // count, index * len(prompts) // count)
    found = plain.generation
    kept = Generation(found.tokens[at], [], found.prefill_seconds, found.decode_seconds)
    return prompts[at], Recorded(kept, plain.logits[at])


def parsed():
    """Return the options."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--model", choices=["mla", "gqa", "smollm2"], default="mla")
    parser.add_argument("--device", choices=["cpu", "gpu"], default="cpu")
    parser.add_argument("--dtype", choices=["float32", "float16", "bfloat16"], default="float32")
    parser.add_argument("--prompts", type=int, default=24)
    parser.add_argument("--max-new", type=int, default=128)
    parser.add_argument("--quick", action="store_true", help="chain and 15 nodes, batch 4, pages of 16 only")
    parser.add_argument(
        "--only", nargs="+", metavar="MODE:BUDGET", help="ways of decoding, for runs side by side"
    )
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--pages", type=int, nargs="+", default=[1, 16], help="page sizes")
    parser.add_argument("--part", metavar="I/N", help="compare this share of the prompts only")
    parser.add_argument("--join", type=Path, nargs="+", help="write the cells of these tables as one each")
    parser.add_argument("--commit", help="where git cannot say")
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


def main():
    """Run the matrix; print a line a cell."""
    options = parsed()
    if options.join:
        for row in join(options.join, options.prompts):
            write(options.out, row)
        return
    xp = np
    if options.device == "gpu":
        import cupy as xp
    model, prompts = load(options, xp)
    plain = recorded(model, prompts, mode="ar", max_new=options.max_new, page_size=7)
    if options.part:
        prompts, plain = part_of(options.part, prompts, plain)
    drafter, rows = NGramDrafter(model.vocab_size), []
    stamp = machine("cuda" if options.device == "gpu" else "numpy")
    layouts = ((4, 16),) if options.quick else [(b, page) for b in options.batch for page in options.pages]
    if options.commit:
        stamp |= {"commit": options.commit, "dirty": "0"}
    ways = [way for way in WAYS if "{}:{}".format(*way) in options.only] if options.only else WAYS
    for mode, budget in ways:
        if options.quick and budget != 15:
            continue
        for batch, page_size in layouts:
            started = time.perf_counter()
            found = check_mode(
                model, plain, prompts, drafter, batch=batch, mode=mode, budget=budget,
                max_new=options.max_new, page_size=page_size,
            )  # fmt: skip
            cell = {"model": options.model, "dtype": options.dtype, "mode": mode, "budget": budget}
            cell |= {"batch": batch, "page_size": page_size} | found._asdict()
            cell["seconds"] = round(time.perf_counter() - started, 1)
            print(*(f"{name} {value}" for name, value in cell.items()), flush=True)
            rows.append(cell | stamp)
            if options.out:
                write(options.out, rows[-1])
    sys.exit(any(row["unexplained"] for row in rows))


if __name__ == "__main__":
    main()
