"""Make every golden file again: ``python refs/golden/make.py [FOLDER]``."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import golden_file

from kdtree_cupy.golden import STAGES


def main() -> None:
    """Write all golden files into the folder named on the command line, or beside this script."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else golden_file.HERE
    folder.mkdir(parents=True, exist_ok=True)
    for stage in STAGES:
        path = import_module(f"make_{stage}").make(folder)
        print(f"{path}  {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
