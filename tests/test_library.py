"""KernelLibrary: compile, cache, edit, report."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from library_tools import HEADER, KERNELS, SCALE, cache_folder, needs_nvrtc, sources  # noqa: F401

from kdtree_cupy.errors import BackendError, CompileError
from kdtree_cupy.library import KernelLibrary, compiled, cubin, make, nvrtc, report

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


def test_automatic_arch_without_device(library, monkeypatch):
    monkeypatch.setattr(make, "driver", lambda: make.driver.__wrapped__ and nvrtc.Driver())
    monkeypatch.setattr("kdtree_cupy.library.make.driver", lambda: type("D", (), {"devices": ()})())
    assert library.compile("scale.cu").arch == "sm_120"


@pytest.mark.parametrize(
    ("capability", "archs", "wanted"),
    [
        ((12, 0), (90, 100, 120), "sm_120"),
        ((12, 1), (90, 100, 120), "sm_120"),
        ((9, 0), (80, 90, 120), "sm_90"),
        ((8, 9), (80, 86, 90), "sm_86"),
        ((12, 0), (80, 90), "sm_120"),
    ],
    ids=["same", "older minor", "h200", "ada", "too old: the compiler will say so"],
)
def test_automatic_arch(capability, archs, wanted):
    compiler = type("N", (), {"archs": archs})()
    assert make.automatic_arch(compiler, capability) == wanted


@pytest.mark.parametrize(
    ("arch", "capability", "fits"),
    [
        ("sm_120", (12, 0), True),
        ("sm_120", (12, 1), True),
        ("sm_120a", (12, 1), False),
        ("sm_90", (12, 0), False),
        ("sm_121", (12, 0), False),
        ("sm_80", (8, 6), True),
    ],
)
def test_which_cubins_run_where(arch, capability, fits):
    if fits:
        make.check_runs_on(arch, capability, 0)
    else:
        with pytest.raises(BackendError, match=f"arch '{arch}' was asked for, but device 0 is sm_"):
            make.check_runs_on(arch, capability, 0)


def test_file_for_one_chip_only(library):
    library.replace("scale.cu", "// Arch       sm_90a\n" + SCALE)
    assert library.compile("scale.cu").arch == "sm_90a"
    assert library.compile("scale.cu", arch="sm_90").arch == "sm_90a"
    with pytest.raises(BackendError, match=r"scale\.cu is written for sm_90a only, not for sm_120"):
        library.compile("scale.cu", arch="sm_120")
    assert {row.arch for row in library.report(["scale.cu"]).rows} == {"sm_90a"}
    library.files = lambda: ["scale.cu"]
    assert library.report(arch="sm_120").rows == ()
    assert len(library.report(arch="sm_90").rows) == 2


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


def test_errors_name_the_users_file_and_line(library, sources):  # noqa: F811
    line = len(SCALE.splitlines()) + 2
    (sources / "scale.cu").write_text(SCALE + "\n__device__ int f() { return nothing; }\n")
    with pytest.raises(CompileError) as caught:
        library.compile("scale.cu", arch="sm_90")
    assert str(caught.value) == f'{sources}/scale.cu:{line}: identifier "nothing" is undefined'
    assert f"{sources}/scale.cu({line}): error" in caught.value.log
    assert "-arch=sm_90" in caught.value.options


def test_errors_in_headers(library, sources):  # noqa: F811
    (sources / "scale.cuh").write_text(HEADER + '\n\nstatic_assert(sizeof(int) == 5, "five");\n')
    with pytest.raises(CompileError) as caught:
        library.compile("scale.cu", arch="sm_90")
    line = len(HEADER.splitlines()) + 3
    assert str(caught.value).startswith(f"{sources}/scale.cuh:{line}: static assertion failed")


def test_errors_in_replaced_text(library):
    library.replace("scale.cu", "\n\n#error here\n")
    with pytest.raises(CompileError, match=r"^scale\.cu \(replaced\):3: #error directive: here"):
        library.compile("scale.cu", arch="sm_90")


def test_missing_header(library):
    library.replace("scale.cu", '\n#include "absent.cuh"\n')
    with pytest.raises(
        CompileError, match=r'scale\.cu \(replaced\):2: cannot open source file "absent\.cuh"'
    ):
        library.compile("scale.cu", arch="sm_90")


def test_missing_cuda_headers_say_how_to_get_them(library, monkeypatch):
    from dataclasses import replace

    bare = replace(nvrtc.choose(), include=None)
    monkeypatch.setattr(nvrtc, "choose", lambda: bare)
    with pytest.raises(
        CompileError, match=r"cuda_bf16\.h.*no CUDA headers of version.*kdtree-cupy\[compile\]"
    ):
        library.compile("scale.cu", arch="sm_90")


def test_errors_of_ptxas(library):
    library.replace("scale.cu", 'extern "C" __global__ void k() { asm volatile("nonsense.u32;"); }')
    with pytest.raises(CompileError, match=r"^scale\.cu \(replaced\): ptxas.*error"):
        library.compile("scale.cu", arch="sm_90")


def test_too_much_static_shared_memory(library):
    text = 'extern "C" __global__ void k(int* x) { __shared__ int s[20000]; s[x[0]] = 1; x[1] = s[x[2]]; }'
    library.replace("scale.cu", text)
    with pytest.raises(CompileError, match="too much shared data"):
        library.compile("scale.cu", arch="sm_90")


def test_unknown_option_value(library):
    with pytest.raises(BackendError, match="cannot compile for sm_999"):
        library.compile("scale.cu", arch="sm_999")


def test_spills_and_stack_are_counted(library):
    text = """
extern "C" __global__ void __launch_bounds__(1024, 2) k(float* x) {
    float a[64];
    for (int i = 0; i < 64; ++i) a[i] = x[i * 33 + threadIdx.x];
    __syncthreads();
    for (int j = 0; j < 64; ++j) {
        float t = x[j];
        for (int i = 0; i < 64; ++i) a[i] = a[i] * t + a[(i + 1) & 63];
    }
    for (int i = 0; i < 64; ++i) x[i * 33 + threadIdx.x] = a[i];
}"""
    library.replace("scale.cu", text)
    info = library.compile("scale.cu", arch="sm_90").kernels["k"]
    assert info.registers == 32
    assert info.spill_bytes > 0
    assert info.stack_bytes > 0
    assert info.max_threads == 1024


def test_report_rows(library):
    rows = library.report(["scale.cu"], arch="sm_120").to_json()
    by_name = {row["name"]: row for row in rows}
    assert set(by_name) == {"scale_v1", "reverse_v1"}
    row = by_name["reverse_v1"]
    wanted = {"file": "scale.cu", "arch": "sm_120", "spill_bytes": 0, "stack_bytes": 0, "static_shared": 0}
    assert wanted.items() <= row.items()
    assert (row["dynamic_shared"], row["block"], by_name["scale_v1"]["dynamic_shared"]) == (1024, 256, 0)
    assert 0 < row["registers"] < 64 and row["occupancy"] == 1.0
    again = library.report(["scale.cu"], arch="sm_120").to_json()
    assert [r | {"cached": 0} for r in again] == [r | {"cached": 0} for r in rows]


def test_report_follows_defines_and_launches(library):
    row = library.report(["scale.cu"], arch="sm_120", defines={"KD_BLOCK": 512}).rows[0]
    assert (row.block, row.dynamic_shared) == (512, 2048)
    library.requested["scale.cu", "reverse_v1"] = 5000
    assert library.report(["scale.cu"], arch="sm_120").rows[0].dynamic_shared == 5000


def test_report_in_a_notebook_is_escaped(library):
    library.replace("scale.cu", SCALE)
    row = library.report(["scale.cu"], arch="sm_90").rows[0]
    evil = report.Report((report.Row(**{**row.__dict__, "file": "<script>"}),))
    assert "&lt;script&gt;" in evil._repr_html_() and "<script>" not in evil._repr_html_()


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("// Launch  k: grid b, block 64, dynamic shared 4 * (8 + KD_N)", (64, 64)),
        ("// Launch  grid (b, ceil(n / 4)), block 2 * 32, dynamic shared 0 bytes", (64, 0)),
        ("// v1: grid 1, block 8.  k: any grid, block 32 or 64, dynamic shared Layout::bytes", (None, None)),
        ("// v1: grid 1, block 8.  k: grid (1, b), block 16.", (16, 0)),
        ("// other: grid 1, block 8", (None, 0)),
        ("//         k: grid 1, block KD_N, dynamic shared KD_M; see below", (8, 16)),
        ("// Launch  k: grid 1, block 32, dynamic shared what it takes", (32, None)),
        ("// Launch  k: grid 1, block __import__('os'), dynamic shared 1", (None, 1)),
        ("DYN_SHARED(int, x);", (None, None)),
        ("// k: grid 1, block 8\nDYN_SHARED(int, x);", (8, 0)),
        ("", (None, 0)),
    ],
)
def test_launch_lines(text, wanted):
    unit = type(
        "U", (), {"main": "k.cu", "texts": {"k.cu": f"#define KD_M (KD_N << 1) // twice\n{text}\n"}}
    )()
    line = report.launch_lines(unit, {"KD_N": "8"}, ["stage_k"])["stage_k"]
    assert (line.block, line.dynamic_shared) == wanted


@pytest.mark.parametrize(
    ("arch", "registers", "shared", "block", "wanted"),
    [
        ("sm_90", 32, 0, 256, 1.0),
        ("sm_120", 40, 0, 256, 1.0),
        ("sm_90", 255, 0, 256, 256 / 2048),
        ("sm_120", 32, 99 * 1024, 128, 128 / 1536),
        ("sm_90", 32, 227 * 1024, 1024, 0.5),
        ("sm_120", 32, 0, 1024, 1024 / 1536),
        ("sm_80", 128, 0, 128, 0.25),
        ("sm_90", 32, 0, 32, 0.5),
    ],
)
def test_occupancy(arch, registers, shared, block, wanted):
    assert report.occupancy(arch, registers, shared, block) == pytest.approx(wanted)


def test_occupancy_of_unknown_chips():
    assert report.occupancy("sm_130", 32, 0, 128) is None
    assert report.shared_limit("sm_120") == 99 * 1024
    assert report.shared_limit("sm_130") is None


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


def test_command_line(cache_folder, sources):  # noqa: F811
    from kdtree_cupy.cli.report import command

    call = ["--source", str(sources), "--arch", "sm_120", "--json", "scale.cu"]
    first, second = (CliRunner().invoke(command, call, catch_exceptions=False) for _ in range(2))
    assert first.exit_code == 0
    rows = json.loads(first.output)
    keys = {
        "file",
        "name",
        "arch",
        "registers",
        "spill_bytes",
        "stack_bytes",
        "static_shared",
        "dynamic_shared",
    }
    assert all(keys <= set(row) for row in rows) and len(rows) == 2
    assert [{k: r[k] for k in keys} for r in rows] == [
        {k: r[k] for k in keys} for r in json.loads(second.output)
    ]
    text = (
        CliRunner()
        .invoke(command, [*call[:4], "-D", "KD_BLOCK=64", "scale.cu"], catch_exceptions=False)
        .output
    )
    assert "scale.cu:reverse_v1" in text and "64" in text


@pytest.mark.slow
def test_package_kernels_compile_everywhere(cache_folder):  # noqa: F811
    library = KernelLibrary()
    for arch in ("sm_80", "sm_90", "sm_120"):
        for row in library.report(arch=arch).rows:
            where = f"{row.file}:{row.name} {arch}"
            assert row.params is not None, where
            assert row.static_shared + (row.dynamic_shared or 0) <= report.shared_limit(arch), where


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


def test_params_table_matches_numpy(library):
    assert np.dtype("f4").itemsize == library.compile("scale.cu", arch="sm_90").kernels["scale_v1"].params[2]
