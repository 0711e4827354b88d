"""Tokens per second of plain, chain and tree decoding with the engine, and where a round's time goes.

    python benchmarks/bench_engine.py --model smollm2 --device gpu --out benchmarks/results/engine_h200.csv
    python benchmarks/bench_engine.py --model kimi --layers 4 --device gpu --dtype float16

``smollm2`` is a real pair, but a small one: its speedups say nothing about serving a large model.  ``kimi``
has the shapes of Kimi K2 (64 heads, latent rows of 576, V = 163,840) with few layers, few experts and random
weights: its round times are those of such layers, its acceptance means nothing.  Acceptance and time are
therefore separate columns.  Each row comes from two runs: a plain one for tokens per second, and one that
waits for the device after the drafter, the layers and the head, for the shares.  The column ``flips``
counts sequences that differ from plain decoding: 0 in float32, rounding in float16.
"""

from __future__ import annotations

import argparse
import csv
import time
from copy import copy
from pathlib import Path

import numpy as np

from kdtree_cupy.engine import Model, NGramDrafter, from_dict, generate
from kdtree_cupy.engine.load import smollm2
from kdtree_cupy.engine.named import named_drafter
from kdtree_cupy.timing import machine

KIMI = {
    "vocab_size": 163_840, "hidden_size": 7168, "intermediate_size": 18_432, "num_attention_heads": 64,
    "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
    "v_head_dim": 128, "moe_intermediate_size": 2048, "n_routed_experts": 8, "n_shared_experts": 1,
    "num_experts_per_tok": 8, "rope_theta": 50_000.0, "routed_scaling_factor": 2.8,
}  # fmt: skip
CASES = (("ar", 0), ("chain", 15), ("ddtree", 15), ("ddtree", 31), ("ddtree", 63), ("ddtree", 127))


class Random(dict):
    """Tensors of any name and shape, made where they are used and never kept."""

    def __init__(self, config, xp, dtype):
        from kdtree_cupy.engine.tensors import layer_shapes

        size = (config.vocab_size, config.hidden_size)
        super().__init__({"model.embed_tokens.weight": size, "lm_head.weight": size})
        self["model.norm.weight"] = size[1:]
        for i in range(config.num_hidden_layers):
            shapes = layer_shapes(config, routed=i > 0)
            self.update({f"model.layers.{i}.{name}": shape for name, shape in shapes.items()})
        self.xp, self.dtype = xp, dtype

    def __getitem__(self, name):
        shape = super().__getitem__(name)
        if len(shape) == 1:
            return self.xp.ones(shape, self.dtype)
        values = self.xp.random.default_rng(0).standard_normal(shape, dtype=np.float32)
        return (values * np.float32(shape[1] ** -0.5)).astype(self.dtype)


def build(options, xp):
    """Return model, prompts and drafter."""
    rng = np.random.default_rng(0)
    if options.model == "smollm2":
        model, tokenizer = smollm2(xp=xp, dtype=options.dtype)
        questions = (
            "What is a tree?",
            "Write a function that adds numbers.",
            "Name rivers.",
            "Tell a story.",
        )
        prompts = [tokenizer.chat(questions[i % len(questions)]) for i in range(options.batch)]
        name = "head" if options.head else "ngram"
        return model, prompts, named_drafter(name, model, head=options.head)
    config = from_dict({**KIMI, "num_hidden_layers": options.layers})
    model = Model(config, Random(config, xp, options.dtype), xp=xp, dtype=options.dtype)
    prompts = [rng.integers(0, config.vocab_size, options.prompt) for _ in range(options.batch)]
    return model, prompts, NGramDrafter(config.vocab_size)


def watched(model, drafter, wait):
    """Return copies of model and drafter that add up their own seconds, and the sums."""
    seconds = {"draft": 0.0, "layers": 0.0, "head": 0.0}

    def timed(name, call):
        def run(*args, **kwargs):
            wait()
            started = time.perf_counter()
            result = call(*args, **kwargs)
            wait()
            seconds[name] += time.perf_counter() - started
            return result

        return run

    twin = copy(model)
    twin.forward, twin.logits = timed("layers", model.forward), timed("head", model.logits)
    draft = timed("draft", drafter)
    draft.depth, draft.features = drafter.depth, getattr(drafter, "features", ())
    return twin, draft, seconds


def measure(model, prompts, drafter, mode, budget, options, wait):
    """Return one row."""
    arguments = {"mode": mode, "budget": budget, "max_new": options.max_new, "page_size": 16}
    done = generate(model, prompts, drafter=drafter, **arguments)
    twin, draft, seconds = watched(model, drafter, wait)
    slow = generate(twin, prompts, drafter=draft, **arguments)
    rounds = len({one.index for one in done.rounds})
    only = watched(model, drafter, wait)
    generate(only[0], prompts, drafter=only[1], **(arguments | {"max_new": 1}))
    prefill = only[2]
    shares = {f"{name}_ms": 1e3 * (seconds[name] - prefill[name]) / rounds for name in seconds}
    total = 1e3 * slow.decode_seconds / rounds
    return done, {
        "model": options.model, "mode": mode, "budget": budget, "batch": options.batch,
        "dtype": options.dtype, "tokens_per_second": round(done.tokens_per_second, 2),
        "tau": round(done.tau, 3), "rounds": rounds,
        "round_ms": round(1e3 * done.decode_seconds / rounds, 3),
        "prefill_ms": round(1e3 * done.prefill_seconds, 2),
        **{name: round(value, 3) for name, value in shares.items()},
        "build_accept_commit_host_ms": round(total - sum(shares.values()), 3),
    }  # fmt: skip


def main():
    """Check, time, print and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--model", choices=["smollm2", "kimi"], default="smollm2")
    parser.add_argument("--device", choices=["cpu", "gpu"], default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--prompt", type=int, default=512, help="prompt tokens of the random model")
    parser.add_argument("--max-new", type=int, default=64)
    parser.add_argument("--head", type=Path, help="weights of the block drafter")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    xp, wait = np, lambda: None
    if options.device == "gpu":
        import cupy as xp

        wait = xp.cuda.get_current_stream().synchronize
    model, prompts, drafter = build(options, xp)
    rows, plain = [], None
    for mode, budget in CASES:
        measure(model, prompts, drafter, mode, budget, options, wait)  # compiles, fills caches
        done, row = measure(model, prompts, drafter, mode, budget, options, wait)
        plain = plain or done
        row["flips"] = sum((a != b).any() for a, b in zip(plain.tokens, done.tokens, strict=True))
        rows.append(row | machine("cuda" if options.device == "gpu" else "numpy"))
        print({name: row[name] for name in row})
    if options.out:
        with options.out.open("a", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, rows[0])
            if file.tell() == 0:
                writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
