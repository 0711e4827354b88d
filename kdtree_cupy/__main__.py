"""``python -m kdtree_cupy`` is the ``kdtree`` command."""

from .cli import run

if __name__ == "__main__":
    run()
