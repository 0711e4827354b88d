"""Write the .ipynb twin of every py:percent notebook, without outputs: ``python notebooks/make_ipynb.py``."""

from pathlib import Path

import jupytext

HERE = Path(__file__).resolve().parent


def notebook_text(source: Path) -> str:
    """Return the stripped .ipynb of a py:percent file; the same text for the same source."""
    notebook = jupytext.read(source, fmt="py:percent")
    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{number:02d}"  # jupytext draws random ids
    notebook.metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    return jupytext.writes(notebook, fmt="ipynb")


if __name__ == "__main__":
    for path in sorted(HERE.glob("[0-9][0-9]_*.py")):
        path.with_suffix(".ipynb").write_text(notebook_text(path), encoding="utf-8")
