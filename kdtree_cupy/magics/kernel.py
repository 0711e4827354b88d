"""``%%kernel`` and ``%kernels``: edit a kernel in a cell, and see what kernels cost."""

from __future__ import annotations

from typing import Any

import click

from ..cli.report import parse_defines
from ..errors import CompileError
from ..kernel_trial import try_kernel
from ..kernel_trial_text import on_the_cell
from ..library import KernelLibrary
from ..library.report import Report
from ..library.resolve import default_library
from .run import Call

_HELP = {"help_option_names": ["-h", "--help"]}
_DEFINE = click.option(
    "-D",
    "--define",
    "defines",
    multiple=True,
    metavar="NAME=VALUE",
    help="Macro to compile with; repeatable.",
)
_LIBRARY = click.option(
    "--library", metavar="NAME", help="A KernelLibrary of this notebook, instead of the one that stages use."
)


def _library(call: Call, name: str | None) -> KernelLibrary:
    return default_library() if name is None else call.variable(name, KernelLibrary)


@click.command(context_settings=_HELP)
@click.argument("file", metavar="FILE")
@click.option("--check/--no-check", default=True, help="Compare with the reference.  [default: check]")
@click.option("--time", "timed", is_flag=True, help="Time the stage on a small shape.")
@click.option("--arch", metavar="ARCH", help="Architecture of the resource table, such as sm_120.")
@_DEFINE
@_LIBRARY
@click.option("--new", is_flag=True, help="FILE is a file of yours that no folder has.")
@click.option("--edit", is_flag=True, help="Put the text of FILE into the next cell, ready to edit.")
@click.option("--reset", is_flag=True, help="Go back to the file on disk.")
@click.pass_obj
def kernel(
    call: Call,
    file: str,
    check: bool,
    timed: bool,
    arch: str | None,
    defines: tuple[str, ...],
    library: str | None,
    new: bool,
    edit: bool,
    reset: bool,
) -> Any:
    """Compile, check and time a kernel: the cell's text as FILE, or FILE as it is.

    \b
    %%kernel tree_build.cu --time      the cell is tree_build.cu from now on, if it compiles and is right
    %kernel tree_build.cu --edit       its text, in the next cell
    %kernel verify_attn.cu -D KD_STAGES=3 --time     other macros, for this trial only

    The edit is live at the next call of the stage.  A cell that does not compile, or is not what the numpy
    reference gives, changes nothing; errors name the line of the cell.  Returns a Trial.
    """  # noqa: D301 (click reads the backspace)
    chosen = _library(call, library)
    if edit and reset:
        raise ValueError("--edit, --reset: got both, wanted one of the two")
    if call.cell is not None and (edit or reset):
        raise ValueError(f"{'--edit' if edit else '--reset'}: got a cell, wanted none (%kernel)")
    if reset:
        if file not in chosen.sources.replaced:
            text_of(chosen, file)  # raises if there is none
        chosen.replace(file, None)
        click.echo(f"{file}: back to {chosen.sources.origin(file)}")
        return None
    if edit:
        call.shell.set_next_input(f"%%kernel {file} --time\n{text_of(chosen, file)}")
        return None
    if call.cell is None and new:
        raise ValueError("--new: wanted the text of the file in a cell (%%kernel)")
    options = {"check": check, "time": timed, "arch": arch, "defines": parse_defines(defines), "new": new}
    try:
        return try_kernel(file, call.cell, library=chosen, **options)
    except CompileError as error:
        kept = "" if call.cell is None else "\nThe library keeps what it had."
        raise ValueError(
            f"{file} does not compile\n{on_the_cell(error, file, call.cell or '')}{kept}"
        ) from None


def text_of(library: KernelLibrary, file: str) -> str:
    """Return the text of a kernel or a header as it is now.

    Raises
    ------
    ValueError
        There is none of this name.
    """
    for main in (file,) if file.endswith(".cu") else library.files():
        texts = library.sources.unit(main).texts
        if file in texts:
            return texts[file]
    raise ValueError(f"{file}: no kernel includes it; wanted a .cu file or a header of one")


@click.command(context_settings=_HELP)
@click.argument("files", nargs=-1, metavar="[FILE.cu]...")
@click.option(
    "--arch",
    "archs",
    multiple=True,
    metavar="ARCH",
    help="Such as sm_120; repeatable.  [default: the device's]",
)
@_DEFINE
@_LIBRARY
@click.pass_obj
def kernels(
    call: Call, files: tuple[str, ...], archs: tuple[str, ...], defines: tuple[str, ...], library: str | None
) -> Report:
    """Show registers, spills, stack and shared memory of every kernel, edits included; needs no GPU.

    \b
    %kernels
    %kernels tree_build.cu --arch sm_90 --arch sm_120
    """  # noqa: D301
    chosen = _library(call, library)
    macros = parse_defines(defines)
    reports = [chosen.report(files or None, arch=arch, defines=macros) for arch in archs or (None,)]
    return Report(tuple(row for one in reports for row in one.rows))
