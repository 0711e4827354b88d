"""``kdtree trace``: look into, check and convert traces and other KDTR files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import KdtrError
from . import USER_MISTAKE, describe, printable

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


class _Size(click.ParamType):
    """A number of bytes such as 500000000, 500M or 8G."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        text = str(value).upper().removesuffix("B").removesuffix("I")
        digits = text.rstrip("KMGT")
        if not digits.isascii() or not digits.isdigit() or text[len(digits) :] not in _UNITS:
            self.fail(f"{value!r}, wanted bytes such as 500000000, 500M or 8G", param, ctx)
        return int(digits) * _UNITS[text[len(digits) :]]


_file = click.argument("file", type=click.Path(path_type=Path))
_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
_max_bytes = click.option(
    "--max-bytes",
    type=_Size(),
    default="2G",
    show_default=True,
    metavar="SIZE",
    help="For .npz: refuse archives that decompress to more (protects against zip bombs).",
)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """Look into, check and convert traces and other KDTR files.

    A trace holds what a drafter offered and what the target committed at every position; `kdtree study`
    replays tree policies on it.  All commands read .kdtr, .npz and .safetensors (told apart by suffix), never
    unpickle, and check sizes before they take memory.
    """


@command.command(short_help="Show arrays, header and summary of a file.")
@_file
@_json
@_max_bytes
def info(file: Path, as_json: bool, max_bytes: int) -> None:
    """Show what FILE holds: arrays, header and, for a trace, its summary.

    Works on any .kdtr, .npz or .safetensors file, trace or not.  Array checksums of a .kdtr are not verified
    here: that is the job of `kdtree trace validate`.

    \b
    Examples:
      kdtree trace info my_trace.kdtr
      kdtree trace info golden.kdtr --json | jq '.arrays[].name'
    """  # noqa: D301 (click reads the backspace)
    facts = _describe(file, max_bytes)
    if as_json:
        click.echo(json.dumps(facts, indent=2))
        return
    lines = [f"{file}: {facts['format']}, {_count(facts['arrays'], 'array')}, {_size(facts['bytes'])}"]
    rows = [(a["name"], a["dtype"], str(a["shape"]), _size(a["bytes"])) for a in facts["arrays"]]
    widths = [max((len(row[i]) for row in rows), default=0) for i in range(4)]
    lines += [
        f"  {row[0]:{widths[0]}}  {row[1]:{widths[1]}}  {row[2]:{widths[2]}}  {row[3]:>{widths[3]}}"
        for row in rows
    ]
    lines += _section("header", facts["header"])
    if facts["trace"]:
        lines += _section(
            "trace", {key: v for key, v in facts["trace"].items() if key not in facts["header"]}
        )
    elif facts["trace_fault"]:
        lines += [f"as a trace it is not valid: {facts['trace_fault']}"]
    click.echo(printable("\n".join(lines)))


@command.command(short_help="Check structure, checksums and trace schema.")
@_file
@_json
@_max_bytes
@click.option(
    "--container",
    is_flag=True,
    help="Check only the file itself, not that it is a trace (for golden references and other arrays).",
)
@click.pass_context
def validate(ctx: click.Context, file: Path, as_json: bool, max_bytes: int, container: bool) -> None:
    """Check everything in FILE: structure, every checksum, and the schema of a trace.

    Exit code 0 means that `kdtree study` can use it; 2 means that it cannot, and the message names the array
    and the index or byte of the first fault.

    \b
    Examples:
      kdtree trace validate my_trace.npz
      kdtree trace validate refs/golden/tree_build.kdtr --container
    """  # noqa: D301 (click reads the backspace)
    kind = "container" if container else "trace"
    try:
        summary = _check(file, container, max_bytes)
    except (KdtrError, ValueError) as error:
        if not as_json:
            raise
        click.echo(
            json.dumps({"file": str(file), "valid": False, "kind": kind, "error": describe(error)}, indent=2)
        )
        ctx.exit(USER_MISTAKE)
    if as_json:
        click.echo(json.dumps({"file": str(file), "valid": True, "kind": kind, "summary": summary}, indent=2))
    elif container:
        click.echo(printable(f"{file}: sound: {summary['arrays']} arrays, {_size(summary['bytes'])} of data"))
    else:
        counts = f"{summary['sequences']} sequences, {summary['tokens']} tokens"
        click.echo(
            printable(f"{file}: valid trace: {counts}, D = {summary['depth']}, K = {summary['width']}")
        )


@command.command(short_help="Convert between .kdtr, .npz and .safetensors.")
@click.argument("source", metavar="IN", type=click.Path(path_type=Path))
@click.argument("target", metavar="OUT", type=click.Path(path_type=Path))
@click.option("--force", is_flag=True, help="Replace OUT if it exists.")
@_max_bytes
def convert(source: Path, target: Path, force: bool, max_bytes: int) -> None:
    """Convert IN to OUT; the suffixes (.kdtr, .npz, .safetensors) say the formats.

    Values survive bit for bit in both directions, bfloat16 and float8 included.  In an .npz the JSON header
    is the string array 'meta'; in a .safetensors it is the metadata.  OUT appears only when it is complete.

    \b
    Examples:
      kdtree trace convert recorded.npz recorded.kdtr
      kdtree trace convert recorded.kdtr recorded.safetensors --force
    """  # noqa: D301 (click reads the backspace)
    from ..convert import convert as convert_file

    convert_file(source, target, force=force, max_bytes=max_bytes)
    click.echo(printable(f"{target}: {_size(target.stat().st_size)}"))


def _describe(file: Path, max_bytes: int) -> dict[str, Any]:
    """Return the facts that ``info`` shows, in the types of JSON."""
    from .. import kdtr
    from ..convert import read_arrays

    entries: dict[str, Any] = {}
    if file.suffix.lower() == ".kdtr":
        opened = kdtr.read(file, verify=False)
        header, arrays, entries = opened.header, opened.arrays, opened.entries
        kind = "KDTR {}.{}".format(*opened.version)
    else:
        header, arrays = read_arrays(file, max_bytes=max_bytes)
        kind = file.suffix.lower()
    listed = []
    for name, array in arrays.items():
        item = {"name": name, "dtype": array.dtype.name, "shape": list(array.shape), "bytes": array.nbytes}
        if name in entries:
            item |= {"offset": entries[name].offset, "crc32": f"{entries[name].crc32:08x}"}
        listed.append(item)
    summary, fault = _summary(file, arrays, header)
    return {
        "file": str(file),
        "format": kind,
        "bytes": file.stat().st_size,
        "arrays": listed,
        "header": header,
        "trace": summary,
        "trace_fault": fault,
    }


def _summary(
    file: Path, arrays: Mapping[str, np.ndarray], header: Mapping[str, Any]
) -> tuple[dict[str, Any] | None, str | None]:
    """Return the summary of a trace, or why it is none; neither for files that do not look like one."""
    if not {"tokens", "draft_ids", "draft_logprobs"} & set(arrays):
        return None, None
    from ..trace import make_trace

    try:
        return make_trace(str(file), {"name": file.stem, **header}, arrays, file).summary(), None
    except KdtrError as error:
        return None, str(error)


def _check(file: Path, container: bool, max_bytes: int) -> dict[str, Any]:
    from ..convert import read_arrays
    from ..trace import make_trace

    header, arrays = read_arrays(file, max_bytes=max_bytes)
    if container:
        return {"arrays": len(arrays), "bytes": sum(a.nbytes for a in arrays.values())}
    return make_trace(str(file), {"name": file.stem, **header}, arrays, file).summary()


def _section(title: str, values: Mapping[str, Any]) -> list[str]:
    lines = [f"{title}:" if values else f"{title}: empty"]
    for key, value in values.items():
        text = value if isinstance(value, str) else json.dumps(value)
        lines.append(f"  {key}: {text if len(text) <= 200 else text[:197] + '...'}")
    return lines


def _count(items: list[Any], noun: str) -> str:
    return f"{len(items)} {noun}" + ("s" if len(items) != 1 else "")


def _size(count: int) -> str:
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if count >= unit:
            return f"{count / unit:.1f} {name}"
    return f"{count} B"
