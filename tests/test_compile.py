"""Every kernel compiles for every architecture, without spills, within its shared memory; needs no GPU."""

from __future__ import annotations

import re

import pytest

from kdtree_cupy.errors import BackendError
from kdtree_cupy.library import KernelLibrary, nvrtc
from kdtree_cupy.library.report import shared_limit
from kdtree_cupy.limits import MAX_NODES
from kdtree_cupy.tree_build import DYNAMIC_SHARED

LIBRARY = KernelLibrary()
ARCHS = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")
KERNELS_OF_A_TREE = {
    "tree_build.cu": {"tree_build_v1", "tree_build_v2"},
    "tree_accept.cu": {"tree_accept_v1", "tree_accept_v2"},
    "masks.cu": {"packed_mask", "bool_mask", "additive_mask", "positions", "retrieve"},
}


def archs_of(file: str) -> tuple[str, ...]:
    """Return the architectures a file is for: all, or the one that its header names (``// Arch  sm_90a``)."""
    found = re.search(r"^// Arch\s+(sm_\d+[af]?)\s*$", LIBRARY.sources.unit(file).texts[file], re.MULTILINE)
    return (found[1],) if found else ARCHS


@pytest.fixture(scope="module", autouse=True)
def compiler() -> nvrtc.Nvrtc:
    try:
        return nvrtc.choose()
    except BackendError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize(
    ("file", "arch"),
    [
        pytest.param(file, arch, marks=[] if arch == "sm_120" else [pytest.mark.slow])
        for file in LIBRARY.files()
        for arch in archs_of(file)
    ],
)
def test_no_kernel_spills_or_asks_for_too_much_shared_memory(compiler, file, arch):
    try:
        compiler.check_arch(arch)
    except BackendError as error:
        pytest.skip(str(error))
    rows = LIBRARY.report([file], arch=arch).rows
    assert rows, f"{file} has no kernel"
    for row in rows:
        assert row.spill_bytes == row.stack_bytes == 0, f"{row.name}: local memory on {arch}"
        assert row.registers <= 255
        assert row.static_shared + (row.dynamic_shared or 0) <= shared_limit(arch), f"{row.name} on {arch}"


@pytest.mark.parametrize("file", KERNELS_OF_A_TREE)
def test_the_kernels_are_there(file):
    assert set(LIBRARY.compile(file, arch="sm_120").kernels) == KERNELS_OF_A_TREE[file]


def test_shared_memory_of_the_tree_build_is_what_its_source_says():
    """The launcher and the kernel reckon with the same two numbers, and the launch lines with their sum."""
    text = LIBRARY.sources.unit("tree_build.cu").texts["tree_build.cu"]
    fixed, node = (
        int(re.search(rf"#define {name} +(\d+)", text)[1])
        for name in ("KD_TREE_SHARED", "KD_TREE_SHARED_NODE")
    )
    assert DYNAMIC_SHARED["tree_build_v2"] == fixed + node * MAX_NODES
    rows = {row.name: row for row in LIBRARY.report(["tree_build.cu"], arch="sm_120").rows}
    for name, size in DYNAMIC_SHARED.items():
        assert rows[name].dynamic_shared == size
    assert rows["tree_build_v2"].static_shared + DYNAMIC_SHARED["tree_build_v2"] <= 101_376
