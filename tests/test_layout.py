"""The layout that the documentation promises: who may import whom, sizes, names, and nothing left lying."""

import ast
import json
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
STAGES = (
    "topk_logprob", "tree_build", "verify_attn", "verify_attn_gqa",
    "target_token", "tree_accept", "kv_commit",
)  # fmt: skip
LAYERS = (  # a module imports from its own line and those above it; what is not named here belongs to "study"
    ("base", r"errors|limits|version|files|checks|tree|best_first|certificate|vocabulary|style|html_parts"),
    ("files", r"kdtr\w*|npy_header|npz|safetensors_file|convert|trace\w*"),
    ("library", r"library(\..*)?"),
    ("stages", rf"({'|'.join(STAGES)}|masks|stage|tree)(_\w+)?|numpy_backend|kv_fp8|kv_positions"),
    ("round", r"round\w*"),
    ("study", r"(?!(cli|magics)\b|__main__$).+"),
    ("cli", r"(cli|magics)(\..*)?|__main__"),
)
RANK = {name: rank for rank, (name, _) in enumerate(LAYERS)}
LAZY = {"cupy", "torch", "cuda", "IPython", "ipywidgets"}  # optional, so never imported with a module
FOLDERS = "kdtree_cupy|kernels_cu|refs|notebooks|tests|benchmarks|docs|data"


@cache
def tracked() -> tuple[Path, ...]:
    """Return the files of the project: what git tracks, or all that is there outside a repository."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z"]
    try:
        names = subprocess.run(command, capture_output=True, check=True).stdout.decode().split("\0")
        found = [ROOT / name for name in names if name]
    except (OSError, subprocess.CalledProcessError):
        skip = re.compile(
            r"/(\.venv|\.git|__pycache__|build|dist|study|out|site|generated|\.\w+_cache|\w+\.egg-info)/"
        )
        found = [p for p in ROOT.rglob("*") if p.is_file() and not skip.search(p.as_posix())]
    return tuple(sorted(p for p in found if p.is_file()))


def named(pattern: str) -> list[str]:
    """Return the tracked paths that match ``pattern``, relative to the checkout."""
    return [p for p in (path.relative_to(ROOT).as_posix() for path in tracked()) if re.fullmatch(pattern, p)]


def module_of(path: str) -> str:
    """Return the module that a path holds, without the leading ``kdtree_cupy.``."""
    name = path.removeprefix("kdtree_cupy/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    return "" if name == "__init__" else name


def rank_of(module: str) -> int:
    """Return the rank of a module's layer."""
    return next(RANK[layer] for layer, pattern in LAYERS if re.fullmatch(pattern, module))


def imports_of(path: str) -> list[tuple[str, bool]]:
    """Return (absolute module, runs at import) of every import in a file, type checking left out."""
    found = []
    package = ["kdtree_cupy", *path.removeprefix("kdtree_cupy/").split("/")][:-1]

    def visit(node, at_import):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            return
        if isinstance(node, ast.Import):
            found.extend((alias.name, at_import) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *filter(None, [node.module])])
            whole = node.module is None or module == "kdtree_cupy"  # `from . import name`: a module each
            names = [f"{module}.{alias.name}" for alias in node.names] if whole else [module]
            found.extend((name, at_import) for name in names)
        for child in ast.iter_child_nodes(node):
            visit(
                child, at_import and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            )

    visit(ast.parse((ROOT / path).read_text(encoding="utf-8")), True)
    return found


@pytest.mark.parametrize("path", named(r"kdtree_cupy/.*\.py"))
def test_imports_point_one_way(path):
    module = module_of(path)
    rank = rank_of(module) if module else RANK["stages"]  # the package itself offers the stages
    for target, at_import in imports_of(path):
        name = target.partition(".")[0]
        assert not (at_import and name in LAZY), f"{path}: import {target} where it is needed, it is optional"
        if name != "kdtree_cupy" or target == "kdtree_cupy" or target.startswith("kdtree_cupy.refs"):
            continue
        above = rank_of(target.removeprefix("kdtree_cupy.")) if target.count(".") else 0
        strict = at_import or rank == RANK["library"] or above == RANK["cli"]
        assert above <= rank or not strict, (
            f"{path} ({LAYERS[rank][0]}) imports {target} ({LAYERS[above][0]})"
        )


@pytest.mark.parametrize("path", named(r"refs/[^/]*\.py"))
def test_references_import_numpy_only(path):
    allowed = {"numpy", "ml_dtypes", "__future__"} | sys.stdlib_module_names
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            assert {alias.name.partition(".")[0] for alias in node.names} <= allowed
        elif isinstance(node, ast.ImportFrom):
            own = node.level == 1 or (node.module or "").startswith("kdtree_cupy.refs")
            assert own or (node.level == 0 and node.module.partition(".")[0] in allowed), ast.unparse(node)


def test_set_up_needs_nothing_but_python():
    text = (ROOT / "kd.py").read_text(encoding="utf-8")
    tree = ast.parse(text, feature_version=(3, 6))  # so that an older Python can say that it is too old
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [node.module] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names]
            assert {name.partition(".")[0] for name in names} <= sys.stdlib_module_names


def test_importing_the_package_is_light():
    code = "import sys, kdtree_cupy; print(*{m.partition('.')[0] for m in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not set(done.stdout.split()) & {*LAZY, "matplotlib", "click", "jinja2", "joblib", "safetensors"}


@pytest.mark.parametrize("stage", STAGES)
def test_each_stage_has_its_files(stage):
    for place in (f"kdtree_cupy/{stage}.py", f"refs/{stage}.py", f"tests/test_{stage}.py"):
        assert (ROOT / place).is_file(), place


@pytest.mark.parametrize("path", named(r"kernels_cu/[^/]*\.cu"))
def test_each_kernel_belongs_to_a_stage(path):
    name = Path(path).stem
    stage = next((stage for stage in (*STAGES, "masks") if re.fullmatch(rf"{stage}(_\w+)?", name)), name)
    for place in (f"kdtree_cupy/{stage}.py", f"refs/{stage}.py", f"tests/test_{stage}.py"):
        assert (ROOT / place).is_file(), f"{path}: {place}"


@pytest.mark.parametrize(("pattern", "limit"), [(r".*\.py", 250), (r"kernels_cu/.*\.(cu|cuh|h)", 300)])
def test_files_are_short(pattern, limit):
    lengths = {p: len((ROOT / p).read_text(encoding="utf-8").splitlines()) for p in named(pattern)}
    long = [f"{path}: {length} lines, at most {limit}" for path, length in lengths.items() if length > limit]
    assert not long, "\n".join(long)


def test_functions_are_short():
    long = []
    for path in named(r".*\.py"):
        for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                docstring = ast.get_docstring(node, clean=False) or ""
                length = node.end_lineno - node.lineno + 1 - len(docstring.splitlines())
                long += [f"{path}: {node.name}, {length} lines"] if length > 60 else []
    assert not long, "\n".join(long)


@cache
def texts() -> dict[str, str]:
    """Return what every tracked file says, KDTR headers included; archives and pictures say nothing."""
    files = {p.relative_to(ROOT).as_posix(): p for p in tracked() if p.suffix not in (".npz", ".png")}
    return {name: path.read_bytes().decode("latin-1") for name, path in files.items()}


def test_every_path_named_in_the_docs_exists():
    path = rf"(?:{FOLDERS}|\.ci)/[\w./*-]*\w"
    missing = []
    for name, text in texts().items():
        if name.endswith(".md"):
            found = re.findall(rf"`({path})/?`", text) + re.findall(rf"^ *({path})", text, re.M)
            links = [link for link in re.findall(r"\]\(([^)#\s]+)", text) if "://" not in link]
            missing += [f"{name}: {link}" for link in links if not ((ROOT / name).parent / link).exists()]
        elif name.endswith((".cu", ".cuh", ".h", ".hpp")):
            found = re.findall(rf"(?<![\w/.])({path}\.\w+)", text)
        else:
            continue
        missing += [f"{name}: {p}" for p in found if not any(ROOT.glob(p.rstrip("/")))]
    assert not missing, "\n".join(missing)


def test_no_trace_of_a_workplace():
    places = [r"/work/(?:main|shared)", r"/root/", r"\bshared/(?:notes|traces|design|drafter|prototype)"]
    words = ["claude", "anthropic", "contracts" + r"\.md", "FIX" + "ME", "XX" + "X"]
    pattern = re.compile("|".join([*places, *(rf"\b{word}\b" for word in words)]))
    own = Path(__file__).relative_to(ROOT).as_posix()
    found = [f"{n}: {hit[0]}" for n, t in texts().items() if n != own and (hit := pattern.search(t))]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("path", named(r".*\.ipynb"))
def test_notebooks_hold_no_outputs(path):
    text = (ROOT / path).read_text(encoding="utf-8")
    code = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
    assert len(text) < 40_000
