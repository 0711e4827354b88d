"""The backend that is always there, for calls that have no other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .checks import kind
from .errors import BackendError

Array = Any


def require(stage: str, library: Any, arrays: Mapping[str, Array | None]) -> None:
    """Raise ``BackendError`` unless the numpy backend can take the call.

    Parameters
    ----------
    stage : str
        Name for the message.
    library : object or None
        None, or a library whose ``backend`` is "numpy" or "auto".
    arrays : mapping of str to array or None
        The call's arrays by argument name; None is skipped.
    """
    wanted = getattr(library, "backend", "auto")
    if wanted not in ("auto", "numpy"):
        raise BackendError(f"{stage}: backend {wanted!r} cannot run here; use library=None with numpy arrays")
    for name, value in arrays.items():
        if value is not None and kind(value) != "numpy":
            found = kind(value) or type(value).__name__
            raise BackendError(
                f"{stage}: {name} is a {found} array and the numpy backend takes numpy arrays only; "
                f"pass {name}.get() (CuPy) or {name}.cpu().numpy() (torch)"
            )
