"""Machine instructions of a cubin, by NVIDIA's disassembler where it is installed."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections import Counter
from functools import lru_cache
from pathlib import Path

from ..errors import BackendError
from .compiled import Compiled

CURE = "pip install 'kdtree-cupy[sass]'"
_LINE = re.compile(r"^\s*/\*[0-9a-f]+\*/\s+(?:@!?U?P\d+\s+|@!?U?PT\s+)?([A-Z][\w.]*)", re.MULTILINE)
_SECTION = re.compile(r"^\s*\.section\s+\.text\.([\w$]+)", re.MULTILINE)


@lru_cache(maxsize=1)
def disassembler() -> Path | None:
    """Return nvdisasm, of a wheel or of the search path; None where there is none."""
    for entry in sys.path:
        for path in sorted(Path(entry or ".").glob("nvidia/*/bin/nvdisasm"), reverse=True):
            return path
    found = shutil.which("nvdisasm")
    return Path(found) if found else None


def opcodes(compiled: Compiled) -> dict[str, Counter[str]]:
    """Return how often each instruction stands in each kernel of a cubin, modifiers left out.

    Raises
    ------
    BackendError
        There is no disassembler, or it does not know this architecture.
    """
    tool = disassembler()
    if tool is None:
        raise BackendError(f"no nvdisasm is installed: {CURE}")
    done = subprocess.run(
        [str(tool), "-c", str(compiled.path)], capture_output=True, text=True, timeout=120, check=False
    )
    if done.returncode:
        raise BackendError(f"{tool}: {done.stderr.strip().splitlines()[-1:] or ['failed']}")
    parts = _SECTION.split(done.stdout)
    counted = {name: Counter(op.split(".")[0] for op in _LINE.findall(text))
               for name, text in zip(parts[1::2], parts[2::2], strict=True)}  # fmt: skip
    return {name: count for name, count in counted.items() if name in compiled.kernels}


def difference(before: Counter[str], after: Counter[str]) -> dict[str, int]:
    """Return how many more (or fewer) of each instruction there are, largest change first."""
    change = {op: after[op] - before[op] for op in before.keys() | after.keys() if after[op] != before[op]}
    return dict(sorted(change.items(), key=lambda item: (-abs(item[1]), item[0])))
