"""Run a click command as a magic: options and help as on the command line, mistakes without traceback."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click

from ..cli import describe, printable
from ..errors import BackendError, CompileError, KdtrError

_MISTAKES = (ValueError, TypeError, BackendError, CompileError, KdtrError, OSError)


@dataclass(frozen=True)
class Call:
    """What a command gets beside its options: the shell, and the cell's text (None for a line magic)."""

    shell: Any
    cell: str | None

    def variable(self, name: str, kind: type | tuple[type, ...]) -> Any:
        """Return a variable of the notebook.

        Raises
        ------
        ValueError
            There is none of this name, or it is something else.
        """
        value = self.shell.user_ns.get(name)
        if not isinstance(value, kind):
            have = f"got {type(value).__name__}" if name in self.shell.user_ns else "no such variable"
            kinds = kind if isinstance(kind, tuple) else (kind,)
            raise ValueError(f"{name}: {have}, wanted a {' or a '.join(k.__name__ for k in kinds)}")
        return value


def magic(shell: Any, name: str, command: click.Command) -> Callable[..., Any]:
    """Return the function to register; its docstring is the command's help."""

    def run(line: str, cell: str | None = None) -> Any:
        from IPython.core.error import UsageError

        try:
            words = shlex.split(line)
            result = command.main(words, prog_name=name, standalone_mode=False, obj=Call(shell, cell))
        except click.ClickException as error:
            raise UsageError(f"{name}: {error.format_message()} (options: {name} --help)") from None
        except (click.Abort, KeyboardInterrupt):
            raise UsageError(f"{name}: interrupted") from None
        except _MISTAKES as error:
            raise UsageError(printable(describe(error))) from None
        return None if isinstance(result, int) else result  # an int is the exit code of --help

    context = click.Context(command, info_name=f"%{name}")
    run.__name__ = name
    run.__doc__ = command.get_help(context)
    return run
