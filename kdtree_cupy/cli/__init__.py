"""The ``kdtree`` command: sub-commands are imported when they are called, so that ``--help`` is instant.

A sub-command is a module ``kdtree_cupy/cli/NAME.py`` with a ``command`` (a click command or group) and one
line in ``COMMANDS``.  It raises ordinary exceptions; :func:`main` turns them into a message and an exit code.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn

import click

from ..errors import BackendError, CompileError

if TYPE_CHECKING:
    from collections.abc import Sequence

COMMANDS: dict[str, tuple[str, str]] = {
    "study": (
        "kdtree_cupy.cli.study",
        "Replay tree policies on traces; write a report with tables and figures.",
    ),
    "explore": ("kdtree_cupy.cli.explore", "Look at rounds of a trace by hand: one page with sliders."),
    "generate": ("kdtree_cupy.cli.generate", "Write text with a real model, plainly or with draft trees."),
    "record": ("kdtree_cupy.cli.record", "Record a trace of a real model and a drafter, to be studied."),
    "train-drafter": ("kdtree_cupy.cli.train_drafter", "Train a block drafter on a target's texts (torch)."),
    "reproduce": ("kdtree_cupy.cli.reproduce", "Recompute published numbers from published inputs."),
    "trace": ("kdtree_cupy.cli.trace", "Look into, check and convert traces and other KDTR files."),
    "report": ("kdtree_cupy.cli.report", "Registers, spills, shared memory of every kernel; no GPU."),
    "selftest": ("kdtree_cupy.cli.selftest", "Every kernel against its reference on this machine."),
    "bench": ("kdtree_cupy.cli.bench", "Check and time every stage and the round on this machine."),
    "export": ("kdtree_cupy.cli.export", "Cubins, a C header and an example for engines in C or C++."),
    "doctor": ("kdtree_cupy.cli.doctor", "Driver, devices, compilers, caches: what is wrong, and the cure."),
}
"""Name of each sub-command: its module and its line in ``kdtree --help``."""

OK, OUR_FAULT, USER_MISTAKE = 0, 1, 2
_EXPECTED = (ValueError, TypeError, BackendError, CompileError, OSError)


class ReaderGone(Exception):
    """Whoever read our output (``head``, a pager) closed it; not an ``OSError``, which click would catch."""


class LazyGroup(click.Group):
    """A group that knows its sub-commands by name and imports one only to run it or to show its help."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names without importing anything."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the module of ``cmd_name`` and return its ``command``."""
        if cmd_name not in COMMANDS:
            return None
        return importlib.import_module(COMMANDS[cmd_name][0]).command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the sub-command; for a name that is none, say which one was probably meant."""
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            import difflib

            close = difflib.get_close_matches(name, COMMANDS, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"wanted one of {', '.join(COMMANDS)}"
            ctx.fail(f"No such command {name!r}; {hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands from the table, not from the modules."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> Any:
        """Run the sub-command; a closed pipe becomes :class:`ReaderGone`."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError as error:
            raise ReaderGone from error
        return result


def _print_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if not wanted:
        return
    from importlib.metadata import PackageNotFoundError, version  # tens of milliseconds: only when asked

    try:
        click.echo(f"kdtree_cupy {version('kdtree-cupy')}")
    except PackageNotFoundError:
        click.echo("kdtree_cupy (not installed as a package: version unknown)")
    ctx.exit()


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 done; 2 something to correct in the call, the files or the machine (one message); "
    "1 a fault of kdtree_cupy (with a traceback). KDTREE_DEBUG=1 shows a traceback for every error.",
)
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_print_version,
    help="Show the version.",
)
def kdtree() -> None:
    """Draft trees for speculative decoding: study acceptance, check and time kernels.

    Start with `kdtree study`: it replays tree policies on a recorded trace that comes with the package.
    """


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; never raises.

    Parameters
    ----------
    args : sequence of str, optional
        Arguments after the program's name; those of the process by default.
    """
    try:
        result = kdtree.main(args=args, prog_name="kdtree", standalone_mode=False)
        sys.stdout.flush()
        return result if isinstance(result, int) else OK
    except click.ClickException as error:
        _debug()
        error.show()
        return USER_MISTAKE
    except (click.Abort, KeyboardInterrupt):  # click turns Ctrl-C into Abort
        _debug()
        return _fail("Interrupted; nothing was left half-written.")
    except (ReaderGone, BrokenPipeError):
        _debug()
        return USER_MISTAKE
    except _EXPECTED as error:
        _debug()
        return _fail(f"Error: {describe(error)}")
    except Exception:  # noqa: BLE001  the last line of defence: it hides nothing, it adds a sentence
        traceback.print_exc()
        click.echo(
            "\nThis is a fault of kdtree_cupy, not of what you did. Please report it with the lines above.",
            err=True,
        )
        return OUR_FAULT
    finally:
        _drop_unwritable_output()


def describe(error: BaseException) -> str:
    """Return one message for a person: the file first for errors of the system, never empty."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename is not None else error.strerror
    return str(error) or type(error).__name__


def printable(text: str) -> str:
    r"""Return ``text`` with everything escaped that could steer a terminal; newlines and tabs stay.

    File names, array names and headers come from strangers.

    >>> printable("a\x1b[2J\n")
    'a\\x1b[2J\n'
    """
    return "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in text)


def _drop_unwritable_output() -> None:
    """Point stdout to nowhere if flushing it fails (closed pipe, full disk): Python flushes again at exit."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        with suppress(OSError, ValueError):  # a stdout without file descriptor needs no care
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _debug() -> None:
    if os.environ.get("KDTREE_DEBUG", "0") not in ("", "0"):
        traceback.print_exc()


def _fail(message: str) -> int:
    click.echo(printable(message), err=True)
    return USER_MISTAKE


def run() -> NoReturn:
    """Run :func:`main` and leave the process with its exit code."""
    sys.exit(main())
