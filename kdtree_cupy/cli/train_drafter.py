"""``kdtree train-drafter``: train a block drafter on texts that the target wrote."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from .engine_options import load


def _layers(ctx: click.Context, parameter: click.Parameter, value: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in value.split(","))
    except ValueError as error:
        raise click.BadParameter(f"got {value!r}, wanted layers and commas, such as 1,8,15") from error


@click.command(
    name="train-drafter", context_settings={"show_default": True, "help_option_names": ["-h", "--help"]}
)
@click.argument("texts", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="TRACE...")
@click.option("--out", "-o", type=click.Path(path_type=Path), required=True, metavar="FILE.safetensors")
@click.option("--model", default="smollm2", metavar="smollm2|FILE.gguf|FOLDER", help="The target.")
@click.option("--device", type=click.Choice(["cpu", "gpu"]), default="cpu", help="For target and drafter.")
@click.option("--depth", type=click.IntRange(1, 32), default=15, help="Positions of a block.")
@click.option("--layers", type=click.IntRange(min=1), default=3, help="Layers of the drafter.")
@click.option("--heads", type=click.IntRange(min=1), default=9, help="Attention heads of the drafter.")
@click.option(
    "--features",
    default="1,8,15,22,28",
    callback=_layers,
    metavar="LIST",
    help="Target layers that it reads.",
)
@click.option("--steps", type=click.IntRange(min=1), default=2000, help="Optimizer steps.")
@click.option("--roots", type=click.IntRange(min=1), default=32, help="Roots of a text in each step.")
@click.option("--learning-rate", type=click.FloatRange(min=0, min_open=True), default=1e-3)
@click.option("--seed", type=click.IntRange(min=0), default=0)
def command(
    texts: tuple[Path, ...],
    out: Path,
    model: str,
    device: str,
    depth: int,
    layers: int,
    heads: int,
    features: tuple[int, ...],
    steps: int,
    roots: int,
    learning_rate: float,
    seed: int,
) -> None:
    """Train a block drafter on the prompts and responses of traces (needs torch).

    The texts should be the target's own: record some with `kdtree record --width 1`.  Keep the prompts that
    you study apart from those that you train on.

    \b
    Example:
      kdtree train-drafter texts.kdtr --out head.safetensors --device gpu
      kdtree record --prompts other.kdtr --drafter head --head head.safetensors --out run.kdtr
    """  # noqa: D301 (click reads the backspace)
    from itertools import pairwise

    import numpy as np
    from tqdm import tqdm

    from ..engine.train_head import Recipe, save_head, train
    from ..trace import load_trace

    pairs = []
    for path in texts:
        trace = load_trace(path)
        if "prompt_offsets" not in trace.extra:
            raise ValueError(f"{path}: the trace holds no prompts")
        spans = zip(pairwise(trace.extra["prompt_offsets"]), pairwise(trace.sequence_offsets), strict=True)
        for (start, stop), (begin, end) in spans:
            prompt = trace.extra["prompt_tokens"][start:stop]
            pairs.append((np.concatenate([prompt, trace.tokens[begin:end]]).astype(np.int32), prompt.size))
    target, _ = load(model, device, need_text=False)
    recipe = Recipe(
        depth=depth, layers=layers, heads=heads, features=features, steps=steps, roots=roots,
        learning_rate=learning_rate, seed=seed,
    )  # fmt: skip
    with tqdm(total=steps, desc="training", disable=None, file=sys.stderr) as bar:

        def tell(loss: float) -> None:
            bar.set_postfix(loss=f"{loss:.3f}", refresh=False)
            bar.update()

        done = train(target, pairs, recipe, device="cuda" if device == "gpu" else "cpu", progress=tell)
    save_head(out, done)
    last = float(np.mean(done.losses[-100:]))
    click.echo(f"mean loss of the last steps {last:.3f}")
    click.echo(str(out))
