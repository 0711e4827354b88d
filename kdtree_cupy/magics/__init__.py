"""Magics for IPython and Jupyter: ``%load_ext kdtree_cupy``.

``%%kernel FILE``  the cell is that file from now on: compiled, compared with its reference, timed.
``%kernel FILE``   the same for the file as it is, with other macros; ``--edit`` puts its text into a cell.
``%kernels``       registers, spills and shared memory of every kernel.
``%tree``          the draft tree of a trace at one position.
``%study``         a small acceptance study, table and figure below the cell.

``NAME?`` or ``--help`` shows the options.  While the extension is loaded, what kernels print appears in the
cell.
"""

from __future__ import annotations

import sys
from typing import Any

from ..library import printed
from .complete import completions
from .kernel import kernel, kernels
from .run import magic
from .show import study, tree

__all__ = ["load", "unload"]

_MAGICS = {"kernel": (kernel, "line_cell"), "kernels": (kernels, "line"), "tree": (tree, "line"),
           "study": (study, "line")}  # fmt: skip


def load(shell: Any) -> None:
    """Register the magics and their completion, and send what kernels print to the cell."""
    for name, (command, kind) in _MAGICS.items():
        shell.register_magic_function(magic(shell, name, command), kind, name)
        for escape in ("%", "%%") if kind == "line_cell" else ("%",):
            complete = completions(command)
            shell.set_hook("complete_command", complete, str_key=f"{escape}{name}")
    printed.sink = _write


def unload(shell: Any) -> None:
    """Leave what kernels print where it goes."""
    printed.sink = None


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
