"""Registers, spills and shared memory of the attention kernels by architecture and compiler, as CSV.

Rows of this machine's NVRTC are made anew, those of other versions stay.

    python benchmarks/compile_table.py benchmarks/results/verify_attn_compile.csv
"""

from __future__ import annotations

import csv
import re
from pathlib import Path

import click

from kdtree_cupy.library import KernelLibrary, nvrtc

ARCHS = ("sm_80", "sm_90", "sm_120")
COLUMNS = (
    "file",
    "name",
    "arch",
    "nvrtc",
    "registers",
    "spill_bytes",
    "stack_bytes",
    "static_shared",
    "dynamic_shared",
)


def archs_of(library: KernelLibrary, file: str) -> tuple[str, ...]:
    """Return the architectures that a file is for: all, or the one that its header names."""
    found = re.search(r"^// Arch\s+(sm_\d+[af]?)\s*$", library.sources.unit(file).texts[file], re.MULTILINE)
    return (found[1],) if found else ARCHS


def rows_of(library: KernelLibrary, version: str) -> list[dict[str, object]]:
    """Return a row for each kernel of verify_attn*.cu and each architecture."""
    rows = []
    for file in sorted(f for f in library.files() if f.startswith("verify_attn")):
        for arch in archs_of(library, file):
            for row in library.report([file], arch=arch).rows:
                own = {name: getattr(row, name) for name in COLUMNS if name != "nvrtc"}
                rows.append(own | {"nvrtc": version, "dynamic_shared": row.dynamic_shared or 0})
    return rows


@click.command()
@click.argument("out", type=click.Path(path_type=Path, dir_okay=False))
def main(out: Path) -> None:
    """Write the table to OUT."""
    version = ".".join(map(str, nvrtc.choose().version))
    kept = []
    if out.exists():
        with out.open(encoding="utf-8", newline="") as handle:
            kept = [row for row in csv.DictReader(handle) if row["nvrtc"] != version]
    rows = sorted(
        kept + rows_of(KernelLibrary(), version), key=lambda row: tuple(map(int, row["nvrtc"].split(".")))
    )
    with out.open("w", encoding="utf-8", newline="") as handle:
        writer = csv.DictWriter(handle, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    worst = max((row for row in rows if row["nvrtc"] == version), key=lambda row: int(row["spill_bytes"]))
    click.echo(f"{out}: {len(rows)} rows; most spills with NVRTC {version}: {worst['spill_bytes']} bytes")


if __name__ == "__main__":
    main()
