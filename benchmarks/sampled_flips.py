"""How often does rounding change a draw above temperature 0? Plain decoding against trees, the same places.

    python benchmarks/sampled_flips.py --max-new 48 --out benchmarks/results/sampled_flips_cpu.json

A draw takes the first token whose cumulative mass exceeds u.  Two ways of decoding have slightly other
logits, so every token's interval moves a little; u falls into different tokens in both with the probability
that is left outside of the common intervals.  It is computed exactly, in float64, at every place of greedy
texts of SmolLM2, and given as the mean over places.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

from kdtree_cupy.engine import NGramDrafter
from kdtree_cupy.engine.load import smollm2
from kdtree_cupy.engine.lossless import recorded
from kdtree_cupy.refs.target_token import masses
from kdtree_cupy.timing import machine

QUESTIONS = ("What is a tree?", "Tell me a story about a dog.")
WAYS = (("chain", 15), ("ddtree", 15), ("ddtree", 64))
TEMPERATURES = (0.6, 0.8, 1.0)


def flip_probability(one, other, temperature):
    """Return the probability that one u draws different tokens from the logits ``one`` [V] and ``other``."""
    ends = []
    for logits in (one, other):
        mass = masses(logits, temperature, 1.0)
        ends.append(np.concatenate([[0.0], np.cumsum(mass) / mass.sum()]))
    a, b = ends
    common = np.minimum(a[1:], b[1:]) - np.maximum(a[:-1], b[:-1])
    return max(0.0, 1.0 - float(common.clip(0.0).sum()))


def measure(max_new):
    """Return a row for each way of decoding and temperature."""
    model, tokenizer = smollm2()
    prompts = [tokenizer.chat(question) for question in QUESTIONS]
    plain, rows = recorded(model, prompts, mode="ar", max_new=max_new), []
    for mode, budget in WAYS:
        drafter = NGramDrafter(model.vocab_size)
        other = recorded(model, prompts, mode=mode, budget=budget, drafter=drafter, max_new=max_new)
        for a, b in zip(plain.generation.tokens, other.generation.tokens, strict=True):
            if not np.array_equal(a, b):
                raise SystemExit(f"{mode} {budget}: the greedy texts differ, so places cannot be compared")
        pairs = [
            pair for both in zip(plain.logits, other.logits, strict=True) for pair in zip(*both, strict=True)
        ]
        difference = max(float(np.abs(a - b).max()) for a, b in pairs)
        for temperature in TEMPERATURES:
            found = [flip_probability(a, b, temperature) for a, b in pairs]
            rows.append(
                {"mode": mode, "budget": budget, "temperature": temperature, "places": len(pairs),
                 "mean": float(np.mean(found)), "largest": max(found), "logit_difference": difference}
            )  # fmt: skip
    return rows


def main():
    """Measure; print a line a row."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--max-new", type=int, default=48, metavar="N", help="tokens of each text")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = measure(options.max_new)
    for row in rows:
        print(json.dumps(row))
    if options.out:
        text = json.dumps(
            {"machine": machine("numpy"), "model": "SmolLM2-135M, float32", "rows": rows}, indent=1
        )
        options.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
