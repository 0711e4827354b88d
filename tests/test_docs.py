"""Documentation: examples run as printed, in the order of the page; links and anchors lead somewhere."""

from __future__ import annotations

import re
import runpy
import shlex
import subprocess

import click
import numpy as np
import pytest
from doc_pages import PAGES, ROOT, anchors, blocks, text_of
from tiny import tiny_trace

from kdtree_cupy import study_report
from kdtree_cupy.cli import COMMANDS, kdtree, main
from kdtree_cupy.library import host_compiler
from kdtree_cupy.trace_writer import TraceWriter

ELSEWHERE = {"docs/acceptance.md": "test_acceptance_docs.py", "docs/traces.md": "test_trace_docs.py"}
TAGS = {"python", "{code-cell}", "py", "sh", "cpp", "", "{toctree}"}
PROGRAMS = {"kdtree", "python3", "python", "pip", "conda", "pytest", "ruff", "bash", ".", "pre-commit"}


def command_of(words: list[str]) -> click.Command:
    """Return the click command that the words of a ``kdtree`` line name."""
    found: click.Command = kdtree
    for word in words[1:]:
        if not isinstance(found, click.Group):
            break
        found = found.get_command(click.Context(found), word)
        assert found is not None, f"no command {word!r}"
    return found


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder with a small trace, ``mine.npz`` and ``mine.kdtr``; reports with one figure only."""
    trace = tiny_trace(lengths=(20, 20), depth=4, width=6, vocab=30)
    for name in ("mine.npz", "mine.kdtr"):
        with TraceWriter(tmp_path / name, {"vocab_size": 30}) as writer:
            for s, e in zip(trace.sequence_offsets[:-1], trace.sequence_offsets[1:], strict=True):
                writer.append(trace.tokens[s:e], trace.draft_ids[s:e], trace.draft_logprobs[s:e])
    monkeypatch.setattr(study_report, "FIGURES", study_report.FIGURES[:1])
    monkeypatch.setenv("MPLBACKEND", "Agg")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("page", PAGES)
def test_the_examples_run(page, folder, capsys):
    space = {"__name__": "example"}
    for block in blocks(page):
        where = f"{page}:{block.line}"
        if block.tag in ("python", "{code-cell}") and page not in ELSEWHERE:
            code = "\n".join(line for line in block.code.splitlines() if not line.startswith("%"))
            compiled = compile(code, where, "exec")
            if not block.why:
                exec(compiled, space)
        elif block.tag == "sh" and not block.why:
            for line in block.commands:
                words = shlex.split(line)
                assert words[0] == "kdtree", f"{where}: {line}: run by no test, say why"
                assert main(words[1:]) == 0, f"{where}: {line}: {capsys.readouterr().err}"


@pytest.mark.parametrize("page", PAGES)
def test_what_is_not_run_says_why_and_names_real_options(page):
    for block in blocks(page):
        where = f"{page}:{block.line}"
        assert block.tag in TAGS, f"{where}: unknown kind {block.tag!r}"
        if block.tag == "py" or block.why:
            compile(block.code, where, "exec") if block.tag in ("py", "python") else None
            said = re.search(r"[Nn]eeds?\b|network|files? of your", block.before)
            assert said, f"{where}: is not run, but the text does not say what it needs"
        if block.tag != "sh":
            continue
        for line in block.commands:
            words = shlex.split(line)
            assert words[0] in PROGRAMS, f"{where}: {line}"
            if words[0] == "kdtree":
                known = {o for p in command_of(words).params for o in (*p.opts, *p.secondary_opts)}
                used = {word.partition("=")[0] for word in words if word.startswith("-")} - {"--help"}
                assert used <= known, f"{where}: {line}: no option {used - known}"


@pytest.mark.parametrize("page", [page for page in PAGES if "```cpp" in text_of(page)])
def test_cpp_compiles(page, tmp_path):
    if problem := host_compiler.problem():
        pytest.skip(problem)
    compiler = host_compiler.find_compiler()
    for block in (block for block in blocks(page) if block.tag == "cpp"):
        includes = re.findall(r"^#include.*$", block.code, re.M)
        body = re.sub(r"^#include.*$", "", block.code, flags=re.M)
        source = tmp_path / "example.cpp"
        source.write_text(
            "\n".join(includes) + f"\nint example() {{\n{body}\nreturn values == nullptr;\n}}\n"
        )
        include = ROOT / "kernels_cu" / "host"
        command = [*compiler.command, "-std=c++17", "-fsyntax-only", f"-I{include}", str(source)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{page}:{block.line}: {done.stderr}"


def test_links_and_anchors_lead_somewhere():
    wrong = []
    notebooks = [p.relative_to(ROOT).as_posix() for p in sorted((ROOT / "notebooks").glob("[0-9]*.py"))]
    for page in [*PAGES, *notebooks]:
        for target, anchor in re.findall(r"\]\(((?!https?:)[^)#\s]*)(?:#([^)\s]+))?\)", text_of(page)):
            path = (ROOT / page).parent / target if target else ROOT / page
            if not path.exists():
                wrong.append(f"{page}: {target} does not exist")
            elif anchor and anchor not in anchors(path.resolve().relative_to(ROOT).as_posix()):
                wrong.append(f"{page}: {target}#{anchor}: no such heading")
    assert not wrong, "\n".join(wrong)


def test_the_reference_and_the_site_show_everything_once():
    api = runpy.run_path(str(ROOT / "docs" / "api.py"))
    shown = [module for _, modules in api["TOPICS"].values() for module in modules.split()]
    assert len(shown) == len(set(shown))
    package = ROOT / "kdtree_cupy"
    there = {
        p.relative_to(package).with_suffix("").as_posix().replace("/", ".") for p in package.rglob("*.py")
    }
    there = {name.removesuffix(".__init__") for name in there} - {"__init__"}
    assert set(shown) <= there, set(shown) - there
    new = {name for name in there - set(shown) if not re.fullmatch(api["INTERNAL"], name)}
    assert not new, f"docs/api.py: name {new} in TOPICS"
    index = text_of("docs/index.md")
    for page in PAGES:
        if page.startswith("docs/") and page != "docs/index.md":
            assert f"\n{page[5:-3]}\n" in index, f"docs/index.md does not list {page}"
    for path in (ROOT / "notebooks").glob("[0-9]*.py"):
        assert f"notebooks/{path.stem}\n" in index and path.stem in text_of("README.md"), path.stem


def test_every_command_is_in_the_readme():
    assert all(re.search(rf"`{name}`", text_of("README.md")) for name in COMMANDS)
    assert np.all([name in kdtree.list_commands(None) for name in COMMANDS])


def test_the_edit_of_the_readme_is_there_to_be_made():
    before = "token == target[parent]"
    assert f"`{before}`" in text_of("README.md")
    assert (ROOT / "kernels_cu" / "tree_accept.cu").read_text(encoding="utf-8").count(before) == 1
