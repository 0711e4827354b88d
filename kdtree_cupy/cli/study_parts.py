"""Parts of ``kdtree study``: files, cores, what is printed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..progress import bar as bar
from . import printable

if TYPE_CHECKING:
    from ..study import StudyResult


def cores() -> int:
    """Return how many cores this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS
        return os.cpu_count() or 1


def expand(paths: tuple[str, ...]) -> list[Path]:
    """Return the files; a folder stands for the traces in it."""
    out: list[Path] = []
    for name in paths:
        path = Path(name)
        if path.is_dir():
            inside = sorted(p for p in path.iterdir() if p.suffix in (".kdtr", ".npz", ".safetensors"))
            if not inside:
                raise ValueError(f"{path}: the folder holds no .kdtr, .npz or .safetensors file")
            out += inside
        else:
            out.append(path)
    return list(dict.fromkeys(out))


def print_skipped(result: StudyResult) -> None:
    """Say which budgets a policy does not take."""
    from ..policies import POLICIES

    for name, replayed in result.traces[0].replays.items():
        left = [str(b) for b in result.budgets if b not in replayed.acceptance.budgets]
        if left:
            most = POLICIES[name].max_budget
            click.echo(f"{name} takes budgets up to {most}; skipped: {', '.join(left)}")


def print_table(result: StudyResult) -> None:
    """Print pooled tau: a line per policy, a column per budget."""
    click.echo("tau = tokens per round, bonus counted, pooled; B = draft nodes, root excluded\n")
    head = "".join(f"{b:>7}" for b in result.budgets)
    for part in result.traces:
        click.echo(f"{printable(part.trace.name):24} B ={head}")
        for name in result.policies:
            rows = result.select(trace=part.trace.name, policy=name, subset="all")
            by_budget = {row["budget"]: f"{row['tau_pooled']:7.3f}" for row in rows}
            click.echo(f"  {name:25} " + "".join(by_budget.get(int(b), " " * 7) for b in result.budgets))
        click.echo()
