"""Write golden files: inputs from integer arithmetic, results from the references.

Inputs come from a hash of their index, not from a random generator, so that the files are the same for every
version of numpy and every processor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kdtree_cupy import kdtr

HERE = Path(__file__).resolve().parent
Cases = Mapping[str, Mapping[str, Any]]


def words(shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Return uint64 of ``shape``: the splitmix64 sequence that starts at ``seed`` * 2**40."""
    with np.errstate(over="ignore"):
        count = np.arange(1, int(np.prod(shape)) + 1, dtype=np.uint64) + (np.uint64(seed) << np.uint64(40))
        z = count * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (z ^ (z >> np.uint64(31))).reshape(shape)


def uniform(shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Return float64 in [0, 1), multiples of 2**-24."""
    return (words(shape, seed) >> np.uint64(40)).astype(np.float64) * 2.0**-24


def integers(low: int, high: int, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Return int32 in ``low..high - 1``."""
    return (low + (words(shape, seed) % np.uint64(high - low)).astype(np.int64)).astype(np.int32)


def bell(shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Return float64 of mean 0 and variance 1: twelve uniform numbers, added exactly."""
    return uniform((12, *shape), seed).sum(axis=0) - 6.0


def flat(value: Any, name: str = "") -> dict[str, Any]:
    """Return named tuples and dataclasses as one flat mapping with dotted names."""
    if is_dataclass(value):
        value = {f.name: getattr(value, f.name) for f in fields(value)}
    elif hasattr(value, "_asdict"):
        value = value._asdict()
    if not isinstance(value, Mapping):
        return {name: value}
    parts = [flat(part, f"{name}.{key}" if name else key) for key, part in value.items()]
    return {key: part for group in parts for key, part in group.items()}


def save(folder: Path, stage: str, cases: Cases, run: Callable[..., Mapping[str, Any]]) -> Path:
    """Run every case, write ``folder / stage.kdtr`` and return its path.

    Arrays are named ``case.argument`` and ``case.want.result``; arguments that are no arrays stand in the
    header, by case.
    """
    arrays: dict[str, np.ndarray] = {}
    header: dict[str, Any] = {"kind": "golden", "stage": stage, "cases": {}}
    for name, arguments in cases.items():
        inputs = flat(arguments)
        arrays |= {f"{name}.{k}": v.copy() for k, v in inputs.items() if isinstance(v, np.ndarray)}
        header["cases"][name] = {k: v for k, v in inputs.items() if not isinstance(v, np.ndarray)}
        arrays |= {f"{name}.want.{k}": v for k, v in flat(run(**arguments)).items()}
    target = folder / f"{stage}.kdtr"
    kdtr.write(target, arrays, header)
    return target
