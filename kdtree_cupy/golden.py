"""Golden references: small recorded calls of every stage with the results they must give.

The files are made by ``refs/golden/make.py`` from the numpy references.  Tests, the kernels' self-test and
other implementations read them; whoever writes a kernel elsewhere can check it against them.

Examples
--------
>>> case = load("tree_build")["ties"]
>>> tree, mask, positions = case.call()
>>> bool((tree.parents == case.wanted["tree.parents"]).all())
True
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from . import kdtr
from .tree import DraftTree

STAGES = (
    "topk_logprob", "tree_build", "verify_attn", "verify_attn_gqa",
    "target_token", "tree_accept", "kv_commit", "masks",
)  # fmt: skip
"""Names of the golden files, without ``.kdtr``."""


@dataclass(frozen=True)
class GoldenCase:
    """One recorded call.

    Parameters
    ----------
    stage : str
        Name of the stage.
    name : str
        Name of the case.
    arguments : dict
        Arguments by name; arrays are numpy and writeable, trees are :class:`~kdtree_cupy.tree.DraftTree`.
    wanted : dict of str to numpy array
        Results by dotted name, for example ``"tree.parents"``.
    """

    stage: str
    name: str
    arguments: dict[str, Any]
    wanted: dict[str, np.ndarray]

    def call(self, **options: Any) -> Any:
        """Call the public stage function with the arguments (and options such as ``library``)."""
        import kdtree_cupy

        return getattr(kdtree_cupy, self.stage)(**self.arguments, **options)


def path(stage: str) -> Path:
    """Return where the golden file of ``stage`` lies."""
    if stage not in STAGES:
        raise ValueError(f"stage: got {stage!r}, wanted one of {', '.join(STAGES)}")
    return Path(str(resources.files("kdtree_cupy.refs") / "golden" / f"{stage}.kdtr"))


def load(stage: str, file: Path | None = None) -> dict[str, GoldenCase]:
    """Return the cases of a stage by name; ``KdtrError`` if the file is missing or damaged.

    Parameters
    ----------
    stage : str
        One of :data:`STAGES`.
    file : path, optional
        Another golden file than the package's own.
    """
    found = kdtr.read(file or path(stage), mmap=False)
    cases = {
        name: GoldenCase(stage, name, dict(scalars), {}) for name, scalars in found.header["cases"].items()
    }
    for full_name, array in found.arrays.items():
        name, _, key = full_name.partition(".")
        case = cases[name]
        if key.startswith("want."):
            case.wanted[key.removeprefix("want.")] = array.copy()
        else:
            case.arguments[key] = array.copy()
    for case in cases.values():
        _join_tree(case.arguments)
    return cases


def _join_tree(arguments: dict[str, Any]) -> None:
    """Replace ``tree.tokens``, ``tree.parents``, ... by one DraftTree."""
    parts = {key.removeprefix("tree."): key for key in list(arguments) if key.startswith("tree.")}
    if parts:
        arguments["tree"] = DraftTree(**{field: arguments.pop(key) for field, key in parts.items()})
