"""Progress bars that suit their place: a terminal, a notebook with widgets or without, a log file."""

from __future__ import annotations

import importlib.util
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tqdm import tqdm


def in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")  # who runs in a notebook has imported it
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and hasattr(shell, "kernel")


def bar(total: int, what: str, quiet: bool = False) -> tqdm:
    """Return a progress bar: a widget in a notebook that has them, else text on stderr; none into a file.

    Parameters
    ----------
    total : int
    what : str
        Said before the bar.
    quiet : bool
        Show nothing.
    """
    options = {"total": total, "desc": what, "leave": False, "unit_scale": True}
    if in_notebook():
        if importlib.util.find_spec("ipywidgets") is not None:
            from tqdm.notebook import tqdm as widget

            return widget(**options, disable=quiet)
        from tqdm import tqdm

        return tqdm(**options, disable=quiet, file=sys.stderr)
    from tqdm import tqdm

    return tqdm(**options, disable=quiet or None, file=sys.stderr)
