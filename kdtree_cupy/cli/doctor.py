"""``kdtree doctor``: what kernels need here, what is wrong with it, and the cure."""

from __future__ import annotations

import json

import click

_MARKS = {"ok": "ok     ", "info": "-      ", "warning": "warning", "fault": "FAULT  "}


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
@click.pass_context
def command(ctx: click.Context, as_json: bool) -> None:
    """Look at driver, devices, NVRTC, headers, CuPy, C++ compiler and caches; say how to cure faults.

    Changes nothing. Exit code 0: what is installed can work (a missing GPU is no fault); 1: something is
    broken, and its cure is printed below it.
    """
    from ..library.doctor import findings
    from ..library.findings import FAULT
    from . import printable

    found = findings()
    broken = [one for one in found if one.status == FAULT]
    if as_json:
        click.echo(json.dumps({"ok": not broken, "findings": [one.to_json() for one in found]}, indent=1))
    else:
        for one in found:
            click.echo(printable(f"{_MARKS[one.status]} {one.check}: {one.detail}"))
            if one.cure:
                click.echo(printable(f"        -> {one.cure}"))
    ctx.exit(1 if broken else 0)
