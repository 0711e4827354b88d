"""``kdtree selftest``: every kernel against its reference on this machine."""

from __future__ import annotations

import json
from pathlib import Path

import click

from ..selftest import KERNELS, STAGES, selftest
from . import OUR_FAULT, printable


@click.command(name="selftest", context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--backend",
    type=click.Choice(["cuda", "host", "numpy"]),
    help="Where kernels run.  [default: cuda if there is a device, else host if there is a C++ compiler]",
)
@click.option(
    "--stage",
    "stages",
    multiple=True,
    type=click.Choice(STAGES + KERNELS),
    help="Only this stage, for example after an edit of its kernel; repeatable.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the record instead of text.")
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), help="Also write the record to a file."
)
def command(backend: str | None, stages: tuple[str, ...], as_json: bool, out: Path | None) -> int:
    """Run every kernel against its reference on this machine; takes under a minute.

    The record holds device, driver, versions, errors and times, and nothing about files or users but the
    paths of the libraries in use.  Send it with a report of a problem; from an sm_120 card (RTX 50 series,
    RTX PRO) it is welcome when all is well, too.  Exit code 1 if a stage is wrong.
    """
    from ..files import atomic_file

    say = None if as_json else lambda stage: click.echo(f"{stage} ...", err=True)
    record = selftest(backend, stages=stages or None, progress=say)
    text = json.dumps(record, indent=1)
    if out is not None:
        with atomic_file(out) as handle:
            handle.write(text.encode() + b"\n")
    if as_json:
        click.echo(text)
    else:
        _print(record)
    return 0 if record["ok"] else OUR_FAULT


def _print(record: dict) -> None:
    click.echo(f"backend {record['backend']}, {record['seconds']} s")
    for stage, result in record["stages"].items():
        state = "ok" if result["ok"] else "WRONG"
        error = (
            f"largest error {result['largest_error']:.2g} of {result['bound']:.2g}"
            if result["bound"]
            else ("exact" if result["cases"] else "agrees with the reference") * result["ok"]
        )
        clock = "" if result["us"] is None else f"{result['us']:10.1f} us a call"
        cases = f"{result['cases']} cases, " if result["cases"] else ""
        click.echo(f"{state:6} {stage:15} {cases}{error:38} {clock}".rstrip())
        if result["problem"]:
            click.echo(f"       {printable(result['problem'])}")
