"""``kdtree export``: cubins, a C header and an example for engines in C or C++."""

from __future__ import annotations

from pathlib import Path

import click


@click.command(name="export", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("files", nargs=-1, metavar="[FILE.cu]...")
@click.option("--arch", required=True, help="Architecture such as sm_120 or sm_90.")
@click.option(
    "--out", required=True, type=click.Path(file_okay=False, path_type=Path), help="Folder to write to."
)
def command(files: tuple[str, ...], arch: str, out: Path) -> None:
    """Compile kernels and write them with a C header, a manifest and an example on the driver API.

    Needs NVRTC, no GPU.  Files that exist for several number types (logits, queries) become a cubin each.
    """
    from ..export import export

    for path in export(arch, out, files=files or None):
        click.echo(f"wrote {path}")
    click.echo(
        f"try: cc {out}/example.c -I{out} -I<cuda>/include -lcuda -lm -o example && ./example {out} {arch}"
    )
