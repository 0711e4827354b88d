"""Train a block drafter for SmolLM2 and say what it took and what it is worth on prompts it has not seen.

    python benchmarks/train_drafter.py --device gpu --out train_drafter.json

As ``kdtree record --width 1``, ``kdtree train-drafter``, ``kdtree record`` and ``kdtree study`` do it, with
a clock: the target answers made-up prompts greedily, the drafter learns from its texts, then it and the
n-gram drafter are recorded on the prompts of a trace.
"""

from __future__ import annotations

import argparse
import json
import time
from itertools import pairwise, product
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from kdtree_cupy.engine import NGramDrafter
from kdtree_cupy.engine.block_head import load_block_head
from kdtree_cupy.engine.generate import generate
from kdtree_cupy.engine.load import smollm2
from kdtree_cupy.engine.train_head import Recipe, save_head, train
from kdtree_cupy.record import record
from kdtree_cupy.study import run_study
from kdtree_cupy.timing import machine
from kdtree_cupy.trace import bundled_traces, load_trace

CODE = ("sorts", "reverses", "counts", "copies", "filters", "prints", "merges", "checks")
THINGS = (
    "a list of numbers", "a string", "the words of a text", "two dictionaries", "a matrix", "a queue",
    "the lines of a file", "a linked list", "the digits of a number", "a list of tuples", "a set of names",
    "a date", "a binary tree", "a list of strings", "an array of floats", "the keys of a dictionary",
)  # fmt: skip
TOPICS = (
    "rain", "the moon", "bread", "money", "music", "a bridge", "the heart", "a river", "volcanoes",
    "sleep", "steel", "the stock market", "photosynthesis", "a bicycle", "the internet", "winter",
)  # fmt: skip
READERS = ("a child", "a student", "a farmer", "a lawyer")
SUMS = ("apples", "coins", "books", "cars", "cups", "steps", "tickets", "pages")


def questions(count):
    """Return prompts: functions to write, things to explain, sums to do, in turn."""
    code = [f"Write a Python function that {verb} {thing}." for thing, verb in product(THINGS, CODE)]
    explain = [f"Explain {topic} to {reader}." for reader, topic in product(READERS, TOPICS)]
    rng = np.random.default_rng(0)
    numbers = rng.integers(2, 60, (8, len(SUMS), 2)).tolist()
    sums = [
        f"Anna has {a} {thing} and gets {b} more each day. How many after {days + 2} days?"
        for days, row in enumerate(numbers)
        for (a, b), thing in zip(row, SUMS, strict=True)
    ]
    both = [text for pair in zip(explain, sums, strict=True) for text in pair]
    return [text for pair in zip(code, both, strict=True) for text in pair][:count]


def texts_of(model, tokenizer, options):
    """Return what the target writes: prompt and response, and where the response begins."""
    prompts, out = [tokenizer.chat(text) for text in questions(options.prompts)], []
    for start in range(0, len(prompts), options.batch):
        part = prompts[start : start + options.batch]
        stops = model.config.stop_tokens
        done = generate(model, part, mode="ar", max_new=options.max_new, stop_tokens=stops)
        out += [(np.concatenate([p, t]), p.size) for p, t in zip(part, done.tokens, strict=True)]
    return out


def held_out(model, drafters, path, options, folder):
    """Return rows of a study of each drafter on the prompts of a trace."""
    extra = load_trace(path).extra
    prompts = [extra["prompt_tokens"][a:b] for a, b in pairwise(extra["prompt_offsets"])][: options.limit]
    traces = []
    for name, drafter in drafters.items():
        header = {"name": f"{path.stem} {name}", "stop_tokens": list(model.config.stop_tokens)}
        file = folder / f"{path.stem}_{name}.kdtr"
        settings = {"width": 32, "max_new": options.max_new, "batch": options.batch, "header": header}
        traces.append(load_trace(record(model, prompts, drafter, file, **settings)))
    found = run_study(traces, budgets=[15, 64], policies=["chain", "ddtree"]).select(subset="all")
    names = ("trace", "policy", "budget", "tau_mean", "tau_pooled", "rounds", "tokens", "sequences")
    return [{name: row[name] for name in names} for row in found]


def main():
    """Run it, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--device", choices=["cpu", "gpu"], default="cpu")
    parser.add_argument("--prompts", type=int, default=256)
    parser.add_argument("--max-new", type=int, default=128)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--limit", type=int, help="prompts of a trace that are taken")
    parser.add_argument("--held-out", type=Path, nargs="+", default=[bundled_traces()[0]], metavar="TRACE")
    parser.add_argument("--commit", help="where git cannot say")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    xp = np
    if options.device == "gpu":
        import cupy as xp
    model, tokenizer = smollm2(xp=xp)
    stamp = machine("cuda" if options.device == "gpu" else "numpy")
    if options.commit:
        stamp |= {"commit": options.commit, "dirty": "0"}
    marks = [time.perf_counter()]
    texts = texts_of(model, tokenizer, options)
    marks.append(time.perf_counter())
    print(f"{len(texts)} texts in {marks[1] - marks[0]:.1f} s", flush=True)
    recipe = Recipe(steps=options.steps)
    done = train(model, texts, recipe, device="cuda" if options.device == "gpu" else "cpu")
    marks.append(time.perf_counter())
    tokens = sum(text.size - first for text, first in texts)
    losses = [round(float(np.mean(done.losses[i : i + 100])), 3) for i in range(0, len(done.losses), 100)]
    found = {"machine": stamp, "prompts": len(texts), "response_tokens": tokens, "steps": options.steps}
    found |= {
        "texts_seconds": round(marks[1] - marks[0], 1),
        "training_seconds": round(marks[2] - marks[1], 1),
    }
    found |= {"mean_losses_of_100_steps": losses, "rows": []}
    print(json.dumps(found), flush=True)
    with TemporaryDirectory() as place:
        file = Path(place) / "head.safetensors"
        save_head(file, done)
        drafters = {"trained": load_block_head(file, model), "ngram": NGramDrafter(model.vocab_size)}
        for path in options.held_out:
            found["rows"] += held_out(model, drafters, path, options, Path(place))
    found["held_out_seconds"] = round(time.perf_counter() - marks[2], 1)
    text = json.dumps(found, indent=1)
    print(text)
    if options.out:
        options.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
