"""``kdtree report``: registers, spills and shared memory of every kernel, without a GPU."""

from __future__ import annotations

import json

import click


def parse_defines(pairs: tuple[str, ...]) -> dict[str, str]:
    """Turn ``("KD_BLOCK=128", ...)`` into a dict; a name alone means 1."""
    return {name: value or "1" for name, _, value in (pair.partition("=") for pair in pairs)}


@click.command("report")
@click.argument("files", nargs=-1, metavar="[FILE.cu]...")
@click.option(
    "--arch",
    "archs",
    multiple=True,
    metavar="ARCH",
    help="Architecture such as sm_90 or sm_120a; repeat for several. Default: the device's, else sm_120.",
)
@click.option(
    "--source",
    multiple=True,
    type=click.Path(exists=True, file_okay=False),
    help="Folder of your own kernels, searched before the package's; repeat for several.",
)
@click.option("-D", "--define", "defines", multiple=True, metavar="NAME=VALUE", help="Macro to compile with.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list, one object per kernel.")
def command(
    files: tuple[str, ...],
    archs: tuple[str, ...],
    source: tuple[str, ...],
    defines: tuple[str, ...],
    as_json: bool,
) -> None:
    """Compile kernels and print registers, spills, stack, shared memory and estimated occupancy.

    Needs NVRTC but no GPU and no driver. The numbers are the same when kernels come from the cache.
    """
    from ..library import KernelLibrary
    from ..library.report import Report

    library = KernelLibrary(source or None, defines=parse_defines(defines))
    reports = [library.report(files or None, arch=arch) for arch in archs or ("auto",)]
    report = Report(tuple(row for one in reports for row in one.rows))
    click.echo(json.dumps(report.to_json(), indent=1) if as_json else str(report))
