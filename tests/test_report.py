"""``library.report`` and ``kdtree report``: what the compiler says, without a GPU."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from library_tools import SCALE, cache_folder, needs_nvrtc, sources  # noqa: F401

from kdtree_cupy.library import KernelLibrary, report

pytestmark = needs_nvrtc


@pytest.fixture
def library(cache_folder, sources):  # noqa: F811
    return KernelLibrary(sources)


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
