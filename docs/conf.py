"""Sphinx: a site from these pages, the notebooks and the docstrings (``python3 kd.py docs``)."""

import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
MADE = HERE / "generated"  # git does not see it

project = "kdtree_cupy"
author = copyright = "kdtree_cupy developers"
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
exclude_patterns = ["_build", "jupyter_execute", "**.ipynb_checkpoints"]
html_theme = "furo"
html_title = "kdtree_cupy"
html_show_sphinx = False
html_extra_path = ["generated/pages"]  # as they are: explore.html
templates_path: list[str] = []

myst_enable_extensions = ["deflist"]
myst_heading_anchors = 4
nb_execution_mode = "cache"  # a notebook runs again when its cells change
nb_execution_cache_path = str(ROOT / ".jupyter_cache")
nb_execution_timeout = 300
nb_execution_raise_on_error = True
nb_merge_streams = True
nb_ipywidgets_js: dict = {}  # pages need nothing from elsewhere

autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the docstrings say more: shapes, units
autodoc_mock_imports = ["torch", "transformers"]
autodoc_default_options = {"members": True, "ignore-module-all": True}  # each thing where it is defined
napoleon_google_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True
suppress_warnings = [
    "ref.python",  # types are described in words, and a word may name several things
    "myst-nb.lexer",  # without execution the language of a text notebook is not known
]


def make_pages() -> None:
    """Copy the notebooks, write a page of the API reference for every topic of api.py, and the explorer."""
    shutil.rmtree(MADE, ignore_errors=True)
    (MADE / "notebooks").mkdir(parents=True)
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        shutil.copy(path, MADE / "notebooks")
    for name, text in runpy.run_path(str(HERE / "api.py"))["pages"]().items():
        (MADE / name).write_text(text, encoding="utf-8")
    (MADE / "pages").mkdir()
    subprocess.run(
        [sys.executable, "-m", "kdtree_cupy", "explore", "--html", str(MADE / "pages" / "explore.html")],
        cwd=ROOT,
        check=True,
        stdout=subprocess.DEVNULL,
    )


def turn_links(app, docname, source) -> None:
    """Point links that leave this folder to pages of the site; what is no page keeps words and path."""

    def turned(match: re.Match) -> str:
        words, target, anchor = match["words"], match["target"], match["anchor"] or ""
        here = (
            (HERE / docname).parent if not docname.startswith("generated/notebooks") else ROOT / "notebooks"
        )
        path = (here / target).resolve()
        if path.parent == ROOT / "notebooks":
            page = f"/generated/notebooks/{path.stem}.ipynb"
        elif path.parent == HERE:
            page = f"/{path.name}"
        else:
            plain = words.strip("`")
            shown = path.relative_to(ROOT).as_posix()
            known = plain in (shown, path.name, path.stem)
            return f"`{shown}`" if known else f"{words} (`{shown}`)"
        return f"[{words}]({page}{anchor})"

    link = r"\[(?P<words>[^\]]+)\]\((?P<target>(?!https?:)[^)#\s]+)(?P<anchor>#[^)\s]+)?\)"
    source[0] = re.sub(link, turned, source[0])


def skip_fields(app, what, name, obj, skip, options) -> bool | None:
    """Leave out fields of named tuples, of which Python says no more than their number."""
    return True if type(obj).__name__ == "_tuplegetter" else None


def keep_sentence(app, what, name, obj, options, lines) -> None:
    """Let the text of a constant be a sentence: napoleon takes what stands before a colon for its type."""
    if what in ("data", "attribute"):
        lines[:0] = ["..", ""]  # an empty comment


def setup(app) -> None:
    """Connect the above to Sphinx, which calls this."""
    sys.path.insert(0, str(ROOT))
    make_pages()
    app.connect("source-read", turn_links)
    app.connect("autodoc-skip-member", skip_fields)
    app.connect("autodoc-process-docstring", keep_sentence, priority=400)
