"""What a stage module may tell the library about its kernels; stages import the library, not the reverse.

The module of ``tree_build.cu`` is ``kdtree_cupy.tree_build``.  It may have

``self_check(library)``
    Run the stage on small inputs and raise if the result is not the reference's.
``DYNAMIC_SHARED``
    Dict from kernel name to the most dynamic shared memory the stage ever asks for, in bytes.
"""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import PurePosixPath
from typing import Any


def hook(file: str, attribute: str) -> Any:
    """Return an attribute of the stage module of ``file``, or None if there is none."""
    stem = PurePosixPath(file).stem
    name = f"kdtree_cupy.{stem}"
    if "/" in file or not stem.isidentifier() or importlib.util.find_spec(name) is None:
        return None
    return getattr(importlib.import_module(name), attribute, None)
