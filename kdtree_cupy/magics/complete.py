"""Tab completion of the magics: options, kernel files, policies, cost tables, architectures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

ARCHS = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120", "sm_121")


def kernel_files() -> list[str]:
    """Return the names of kernel files and headers of the default library."""
    from ..library.resolve import default_library

    library = default_library()
    headers = {path.name for path in library.sources.package.glob("*.cuh")} | set(library.sources.replaced)
    return sorted({*library.files(), *headers})


def _values(parameter: click.Parameter) -> list[str]:
    if isinstance(parameter.type, click.Choice):
        return [str(choice) for choice in parameter.type.choices]
    if parameter.name in ("file", "files"):
        return kernel_files()
    if parameter.name in ("arch", "archs"):
        return list(ARCHS)
    if parameter.name in ("policy", "policies"):
        from ..policies import POLICIES

        return list(POLICIES)
    if parameter.name == "cost":
        from ..cost import available

        return available()
    return []


def completions(command: click.Command) -> Callable[[Any, Any], list[str]]:
    """Return a completer: values after an option that takes one, else options and the argument's values."""

    def complete(shell: Any, event: Any) -> list[str]:
        words = event.line[: len(event.text_until_cursor)].split()
        last = words[-1] if words and not event.text_until_cursor.endswith(" ") else ""
        before = words[-2] if last and len(words) > 1 else words[-1] if words else ""
        for parameter in command.params:
            if before in parameter.opts and not getattr(parameter, "is_flag", False):
                return [value for value in _values(parameter) if value.startswith(last)]
        options = [name for p in command.params if isinstance(p, click.Option) for name in p.opts]
        arguments = [v for p in command.params if isinstance(p, click.Argument) for v in _values(p)]
        return [word for word in (*arguments, *options, "--help") if word.startswith(last)]

    return complete
