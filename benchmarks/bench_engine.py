"""Tokens per second of plain, chain and tree decoding with the engine, and where a round's time goes.

    python benchmarks/bench_engine.py --model smollm2 --device gpu --drafter head --head HEAD.safetensors
    python benchmarks/bench_engine.py --model kimi --layers 4 --device gpu --dtype float16

``smollm2`` is a real pair, but a small one: its speedups say nothing about serving a large model.  ``kimi``
has the shapes of Kimi K2 (64 heads, latent rows of 576, V = 163,840) with few layers, 8 experts, all of them
chosen, and random weights: its round times are those of such layers, its acceptance means nothing.
Acceptance and time are therefore separate columns.  Each row comes from two runs: one for tokens per second
and the time of a round, and one that waits for the device after each part of a round.  The first rounds,
which compile and are captured, are left out.  The column ``flips`` counts sequences that differ from plain
decoding: 0 in float32, rounding in float16.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
from lossless_matrix import write

from kdtree_cupy.engine import Model, from_dict
from kdtree_cupy.engine.generate import open_session, run
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
WARM = 3
"""Rounds at the start that are not timed."""


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
        prompts = [tokenizer.chat(questions[i % len(questions)]) for i in range(max(options.batch))]
        return model, prompts, named_drafter(options.drafter, model, head=options.head)
    config = from_dict({**KIMI, "num_hidden_layers": options.layers})
    model = Model(config, Random(config, xp, options.dtype), xp=xp, dtype=options.dtype)
    prompts = [rng.integers(0, config.vocab_size, options.prompt) for _ in range(max(options.batch))]
    return model, prompts, named_drafter("ngram", model)


class Clock:
    """Seconds of each part of each round; :attr:`ends` are wall-clock ends of rounds if nobody waits."""

    def __init__(self, wait):
        self.wait, self.rounds, self.now, self.ends = wait, [{}], 0.0, []

    def start(self):
        """Begin with the first round."""
        self.wait()
        self.now = time.perf_counter()

    def part(self, name):
        """End a part of the round under way."""
        self.wait()
        then, self.now = self.now, time.perf_counter()
        self.rounds[-1][name] = 1e3 * (self.now - then)
        if name == "host":
            self.rounds.append({})


def measure(model, prompts, drafter, mode, budget, options, wait):
    """Return a generation and its row."""
    arguments = {"mode": mode, "budget": budget, "max_new": options.max_new, "page_size": 16}
    ends, clock = {}, Clock(wait)
    run(open_session(model, prompts, drafter=drafter, **arguments | {"max_new": 1}))  # compiles
    session = open_session(model, prompts, drafter=drafter, **arguments)
    done = run(session, lambda one: ends.__setitem__(one.index, time.perf_counter()))
    slow = open_session(model, prompts, drafter=drafter, **arguments, clock=clock.part)
    run(slow, lambda one: None if one.index else clock.start())
    last = max(ends)
    steady = range(WARM + 1, last + 1)
    written = sum(len(one.tokens) for one in done.rounds if one.index in steady)
    seconds = ends[last] - ends[WARM]
    parts = {name: np.median([one[name] for one in clock.rounds[WARM:-1]]) for name in clock.rounds[0]}
    each = np.median(np.diff([ends[i] for i in range(WARM, last + 1)]))
    return done, {
        "model": options.model, "drafter": options.drafter if mode != "ar" else "", "mode": mode,
        "budget": budget, "batch": len(prompts), "dtype": options.dtype,
        "tokens_per_second": round(written / seconds, 1), "tau": round(done.tau, 3), "rounds": last,
        "round_ms": round(1e3 * each, 3), "prefill_ms": round(1e3 * done.prefill_seconds, 2),
        **{f"{name}_ms": round(float(value), 3) for name, value in parts.items()},
    }  # fmt: skip


def main():
    """Check, time, print and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--model", choices=["smollm2", "kimi"], default="smollm2")
    parser.add_argument("--device", choices=["cpu", "gpu"], default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--batch", type=int, nargs="+", default=[1])
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--prompt", type=int, default=512, help="prompt tokens of the random model")
    parser.add_argument("--max-new", type=int, default=128)
    parser.add_argument("--drafter", choices=["ngram", "head"], default="ngram")
    parser.add_argument("--head", type=Path, help="weights of the block drafter")
    parser.add_argument("--commit", help="where git cannot say")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    xp, wait = np, lambda: None
    if options.device == "gpu":
        import cupy as xp

        wait = xp.cuda.get_current_stream().synchronize
    model, prompts, drafter = build(options, xp)
    stamp = machine("cuda" if options.device == "gpu" else "numpy")
    if options.commit:
        stamp |= {"commit": options.commit, "dirty": "0"}
    for batch in options.batch:
        plain = None
        for mode, budget in CASES:
            done, row = measure(model, prompts[:batch], drafter, mode, budget, options, wait)
            plain = plain or done
            row["flips"] = sum((a != b).any() for a, b in zip(plain.tokens, done.tokens, strict=True))
            print(*(f"{name} {value}" for name, value in row.items()), flush=True)
            if options.out:
                write(options.out, row | stamp)


if __name__ == "__main__":
    main()
