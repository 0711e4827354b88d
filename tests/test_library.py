"""KernelLibrary: compile, cache, edit, report."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from library_tools import HEADER, KERNELS, SCALE, cache_folder, needs_nvrtc, sources  # noqa: F401

from kdtree_cupy.library import KernelLibrary, compiled, cubin, nvrtc

pytestmark = needs_nvrtc
FACTS = ("registers", "spill_bytes", "stack_bytes", "static_shared", "max_threads", "params")


@pytest.fixture
def library(cache_folder, sources):  # noqa: F811
    return KernelLibrary(sources)


def constant(library, arch="sm_90") -> bytes:
    """Return the code of scale_v1, which holds KD_FACTOR."""
    binary = library.compile("scale.cu", arch=arch).path.read_bytes()
    return dict(cubin._sections(binary))[".text.scale_v1"]


def test_compiles_for_exactly_one_architecture(library):
    for arch in ("sm_80", "sm_90", "sm_120", "sm_120a"):
        made = library.compile("scale.cu", arch=arch)
        assert cubin.parse(made.path.read_bytes()).arch == arch == made.arch
        assert sum(option.startswith("-arch") for option in made.options) == 1


def test_cache_hit_keeps_everything(library, cache_folder, sources, monkeypatch):  # noqa: F811
    first = library.compile("scale.cu", arch="sm_90")
    assert not first.cached
    compiled._known.clear()  # as in a new process
    monkeypatch.setattr(nvrtc.Nvrtc, "compile", lambda *_: pytest.fail("compiled again"))
    again = KernelLibrary(sources).compile("scale.cu", arch="sm_90")
    assert again.cached
    assert again.log == first.log and "Used" in again.log
    for name, info in first.kernels.items():
        assert [getattr(info, fact) for fact in FACTS] == [
            getattr(again.kernels[name], fact) for fact in FACTS
        ]
    assert (again.options, again.nvrtc, again.path) == (first.options, first.nvrtc, first.path)
    assert str(nvrtc.choose().path) in again.nvrtc
    assert again.kernels["reverse_v1"].params == (8, 8, 8)


@pytest.mark.parametrize("what", ["cubin", "json"])
def test_damaged_cache_entry_is_compiled_again(library, what):
    first = library.compile("scale.cu", arch="sm_90")
    path = first.path.with_suffix(f".{what}")
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    compiled._known.clear()
    again = library.compile("scale.cu", arch="sm_90")
    assert not again.cached
    assert again.path.read_bytes()[:4] == b"\x7fELF"


def test_entry_of_another_version_is_compiled_again(library):
    first = library.compile("scale.cu", arch="sm_90")
    described = first.path.with_suffix(".json")
    entry = json.loads(described.read_text())
    del entry["kernels"][0]["registers"]
    described.write_text(json.dumps(entry))
    compiled._known.clear()
    assert not library.compile("scale.cu", arch="sm_90").cached


def test_cache_emptied_while_running(library):
    first = library.compile("scale.cu", arch="sm_90")
    for path in library.cache.folder.iterdir():
        path.unlink()
    assert library.compile("scale.cu", arch="sm_90").path == first.path
    assert first.path.exists()


@pytest.mark.parametrize("edit", ["header", "source", "replace header", "define"])
def test_edit_is_live_at_the_next_call(library, sources, edit):  # noqa: F811
    before = constant(library)
    if edit == "header":
        (sources / "scale.cuh").write_text(HEADER.replace("2.0f", "3.0f"))
    elif edit == "source":
        (sources / "scale.cu").write_text(SCALE.replace("KD_FACTOR", "3.0f"))
    elif edit == "replace header":
        library.replace("scale.cuh", HEADER.replace("2.0f", "3.0f"))
    else:
        library.replace(
            "scale.cuh",
            HEADER.replace("#define KD_FACTOR", "#ifndef KD_FACTOR\n#define KD_FACTOR") + "#endif\n",
        )
        assert constant(library) == before
        library.defines = {**library.defines, "KD_FACTOR": "3.0f"}
    assert constant(library) != before


def test_two_edits_within_a_second(library, sources):  # noqa: F811
    seen = set()
    for factor in range(1, 6):
        (sources / "scale.cuh").write_text(HEADER.replace("2.0f", f"{factor}.5f"))
        seen.add(constant(library))
    assert len(seen) == 5


def test_edited_header_in_a_new_process(cache_folder, sources):  # noqa: F811
    code = (
        "import sys, hashlib; from kdtree_cupy.library import KernelLibrary, cubin; "
        "made = KernelLibrary(sys.argv[1]).compile('scale.cu', arch='sm_90'); "
        "print(made.key, made.cached)"
    )

    def run():
        done = subprocess.run(
            [sys.executable, "-c", code, sources], capture_output=True, text=True, check=True
        )
        return done.stdout.split()

    first, again = run(), run()
    (sources / "scale.cuh").write_text(HEADER.replace("2.0f", "3.0f"))
    edited = run()
    assert first[0] == again[0] != edited[0]
    assert [first[1], again[1], edited[1]] == ["False", "True", "False"]


def test_two_processes_compile_at_the_same_time(cache_folder, sources):  # noqa: F811
    code = (
        "import sys; from kdtree_cupy.library import KernelLibrary\n"
        "for i in range(4):\n"
        "    made = KernelLibrary(sys.argv[1], defines={'KD_ROUND': i}).compile('scale.cu', arch='sm_90')\n"
        "    assert made.path.read_bytes()[:4] == b'\\x7fELF' and made.kernels\n"
    )
    both = [subprocess.Popen([sys.executable, "-c", code, sources]) for _ in range(2)]
    assert [process.wait(60) for process in both] == [0, 0]
    files = sorted(path.suffix for path in cache_folder.iterdir())
    assert files == [".cubin"] * 4 + [".json"] * 4, "nothing half-written stays behind"


@pytest.mark.parametrize(
    ("defines", "error", "text"),
    [
        ({"a b": 1}, ValueError, "wanted a C identifier"),
        ({"1x": 1}, ValueError, "wanted a C identifier"),
        ({"-I/etc": 1}, ValueError, "wanted a C identifier"),
        ({3: 1}, ValueError, "wanted a C identifier"),
        ({"X": None}, TypeError, "wanted bool, int, float or str"),
        ({"X": [1]}, TypeError, "defines['X']: got list"),
    ],
)
def test_wrong_defines(defines, error, text):
    with pytest.raises(error) as caught:
        KernelLibrary(defines=defines)
    assert text in str(caught.value)


def test_defines_come_from_limits():
    from kdtree_cupy import limits

    made = KernelLibrary(
        defines={"KD_MAX_WIDTH": 64, "KD_ON": True, "KD_SCALE": 0.5, "KD_TYPE": "float"}
    ).defines
    assert made["KD_MAX_NODES"] == str(limits.MAX_NODES)
    assert made["KD_STATUS_CAPACITY"] == str(limits.STATUS_CAPACITY)
    assert (made["KD_MAX_WIDTH"], made["KD_ON"], made["KD_SCALE"], made["KD_TYPE"]) == (
        "64",
        "1",
        "0.5",
        "float",
    )


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"backend": "gpu"}, "wanted one of auto, cuda, host, numpy"),
        ({"arch": "sm120"}, "wanted 'auto' or a name like"),
        ({"source": "/absent"}, "wanted a folder"),
    ],
)
def test_wrong_constructor_arguments(arguments, text):
    with pytest.raises(ValueError, match=text):
        KernelLibrary(**arguments)


def test_kernels_are_found_in_a_checkout_and_beside_the_package(tmp_path, monkeypatch):
    from kdtree_cupy.library import sources as module

    for layout in ("wheel", "checkout"):
        package = tmp_path / layout / "kdtree_cupy"
        folder = package / "kernels_cu" if layout == "wheel" else package.parent / "kernels_cu"
        package.mkdir(parents=True)
        folder.mkdir()
        monkeypatch.setattr(module, "_HERE", package)
        assert module.package_folder() == folder
    monkeypatch.setattr(module, "_HERE", Path("/absent"))
    with pytest.raises(FileNotFoundError, match="incomplete"):
        module.package_folder()
