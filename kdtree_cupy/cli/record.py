"""``kdtree record``: decode prompts with a real model and write a trace for ``kdtree study``."""

from __future__ import annotations

import sys
import zlib
from pathlib import Path
from typing import Any

import click

from .engine_options import load, model_options, read_prompts

_TEXT = (".kdtr", ".npz", ".safetensors", ".jsonl")


def file_checksum(path: Path) -> str:
    """Return eight hexadecimal digits that change with what a file holds."""
    code = 0
    with path.open("rb") as file:
        while part := file.read(1 << 22):
            code = zlib.crc32(part, code)
    return f"{code:08x}"


@click.command(name="record", context_settings={"show_default": True, "help_option_names": ["-h", "--help"]})
@click.option(
    "--prompts", "-p", type=click.Path(path_type=Path), metavar="FILE",
    help="A text a line, .jsonl, or a trace whose prompts are taken.  [default: those of a bundled trace]",
)  # fmt: skip
@click.option(
    "--out", "-o", type=click.Path(path_type=Path), required=True, metavar="FILE.kdtr", help="The trace."
)
@click.option("--width", "-k", type=click.IntRange(1, 1024), default=256, help="Ranks kept per position.")
@click.option("--max-new", "-n", type=click.IntRange(min=1), default=192, help="Most tokens of a response.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Take the first N prompts only.")
@click.option("--temperature", "-t", type=click.FloatRange(min=0), default=0.0, help="0 is greedy.")
@click.option("--seed", type=click.IntRange(min=0), default=0, help="For temperatures above 0.")
@click.option("--batch", type=click.IntRange(min=1), default=8, help="Prompts decoded together.")
@click.option("--task", metavar="NAME", help="Kind of prompts, for the header.")
@click.option("--raw", is_flag=True, help="Take prompts as they are, without the model's chat template.")
@model_options
def command(
    prompts: Path | None, out: Path, limit: int | None, task: str | None, raw: bool, **options: Any
) -> None:
    """Decode prompts, ask the drafter at every position, and write a trace for `kdtree study`.

    The recording is resumable: run the same command again after an interruption.  Trees of up to --width
    nodes replay exactly.  A trace takes about 6 * D * width bytes a token.

    \b
    Examples:
      kdtree record --limit 4 --max-new 64 --out mine.kdtr && kdtree study --traces mine.kdtr
      kdtree record --prompts questions.txt --drafter head --head head.safetensors --out run.kdtr
    """  # noqa: D301 (click reads the backspace)
    from tqdm import tqdm

    from ..engine.named import named_drafter
    from ..record import checksum, record
    from ..trace import bundled_traces

    source = prompts or bundled_traces()[0]
    model, tokenizer = load(options["model"], options["device"], need_text=source.suffix not in _TEXT)
    prompts_of_file = read_prompts(source, tokenizer, raw)
    tokens = prompts_of_file[:limit]
    names = ("depth", "corpus", "head")
    drafter = named_drafter(options["drafter"], model, **{name: options[name] for name in names})
    header = {
        "target": f"{options['model']}, float32",
        "drafter": options["drafter"] + (f", {drafter.depth} positions" if hasattr(drafter, "depth") else ""),
        "task": task or source.stem,
        "stop_tokens": list(model.config.stop_tokens),
        "source": "kdtree record",
        "prompts": checksum(prompts_of_file),  # a recording goes on only with the same ones
        "max_new": options["max_new"],
    }
    given = {name: options[name] for name in ("head", "corpus") if options[name] is not None}
    header |= {name: file_checksum(path) for name, path in given.items()}
    with tqdm(total=len(tokens), desc="recording", unit="prompt", disable=None, file=sys.stderr) as bar:
        path = record(
            model, tokens, drafter, out, header=header, vocabulary=tokenizer.pieces if tokenizer else None,
            progress=bar.update,
            **{name: options[name] for name in ("width", "max_new", "temperature", "seed", "batch")},
        )  # fmt: skip
    click.echo(str(path))
