"""kdtree export: cubins, a header that a C and a C++ compiler accept, an example on the driver API."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from kdtree_cupy import export as module
from kdtree_cupy.cli import main
from kdtree_cupy.export import export
from kdtree_cupy.library import nvrtc

STUB = """
#include <stddef.h>
typedef int CUresult; typedef int CUdevice; typedef unsigned long long CUdeviceptr;
typedef struct CUctx* CUcontext; typedef struct CUmod* CUmodule; typedef struct CUfunc* CUfunction;
typedef struct CUst* CUstream;
enum { CUDA_SUCCESS = 0, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8 };
#ifdef __cplusplus
extern "C" {
#endif
CUresult cuInit(unsigned), cuDeviceGet(CUdevice*, int), cuDevicePrimaryCtxRetain(CUcontext*, CUdevice);
CUresult cuCtxSetCurrent(CUcontext), cuMemAlloc(CUdeviceptr*, size_t);
CUresult cuMemcpyHtoD(CUdeviceptr, const void*, size_t), cuMemcpyDtoH(void*, CUdeviceptr, size_t);
CUresult cuModuleLoad(CUmodule*, const char*), cuModuleGetFunction(CUfunction*, CUmodule, const char*);
CUresult cuFuncSetAttribute(CUfunction, int, int), cuGetErrorString(CUresult, const char**);
CUresult cuLaunchKernel(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
    CUstream, void**, void**);
#ifdef __cplusplus
}
#endif
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    try:
        nvrtc.choose()
    except Exception as error:  # noqa: BLE001  whatever NVRTC lacks, it is a skip by name
        pytest.skip(f"NVRTC: {error}")
    out = tmp_path_factory.mktemp("export")
    few = ["tree_build.cu", "tree_accept.cu", "tree_budget.cu", "masks.cu", "target_token.cu"]
    written = export("sm_120", out, files=few)
    assert all(path.is_file() and path.stat().st_size for path in written)
    return out


def test_files_and_manifest(folder):
    names = {path.name for path in folder.iterdir()}
    assert {
        "tree_build.sm_120.cubin",
        "target_token.bf16.sm_120.cubin",
        "target_token.f32.sm_120.cubin",
    } <= names
    manifest = json.loads((folder / "kernels.json").read_text())
    assert manifest["arch"] == "sm_120"
    rows = {(row["cubin"], row["name"]): row for row in manifest["kernels"]}
    row = rows["tree_accept.sm_120.cubin", "tree_accept_v2"]
    assert [p["name"] for p in row["parameters"]][:2] == ["tokens", "parents"] and row[
        "dynamic_shared"
    ] == 4100
    for row in rows.values():
        assert (folder / row["cubin"]).read_bytes()[:4] == b"\x7fELF"
        assert all(p["bytes"] in (4, 8) for p in row["parameters"])


def test_every_kernel_has_a_struct_and_a_launch(folder):
    text = (folder / "kdtree_kernels.h").read_text()
    for row in json.loads((folder / "kernels.json").read_text())["kernels"]:
        struct = re.search(rf"typedef struct {{\n((?:    .*\n)+)}} kd_{row['name']}_args;", text)
        assert struct, row["name"]
        assert len(struct[1].splitlines()) == len(row["parameters"])
        assert f"kd_{row['name']}_launch(" in text
    assert "// Launch" in text  # the comment with grids and layouts travels along


@pytest.mark.parametrize(("compiler", "flags"), [("gcc", "-std=c11"), ("g++", "-std=c++17")])
@pytest.mark.parametrize("headers", ["stub", "cuda"])
def test_example_and_header_compile(folder, tmp_path, compiler, flags, headers):
    if not shutil.which(compiler):
        pytest.skip(f"{compiler} is not installed")
    include = tmp_path
    if headers == "cuda":
        include = nvrtc.choose().include
        if include is None or not (Path(include) / "cuda.h").is_file():
            pytest.skip("no CUDA headers here")
    else:
        (tmp_path / "cuda.h").write_text(STUB)
    source = folder / "example.c"
    if compiler == "g++":  # the header alone
        source = tmp_path / "only.cpp"
        source.write_text('#include "kdtree_kernels.h"\nint main() { return 0; }\n')
    command = [
        compiler,
        flags,
        "-Wall",
        "-Wextra",
        "-Werror",
        "-c",
        source,
        f"-I{folder}",
        "-I",
        str(include),
    ]
    done = subprocess.run([*command, "-o", tmp_path / "x.o"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_wrong_size_would_not_compile(folder, tmp_path):
    if not shutil.which("gcc"):
        pytest.skip("gcc is not installed")
    (tmp_path / "cuda.h").write_text(STUB)
    text = (folder / "kdtree_kernels.h").read_text().replace("    int num_nodes;", "    double num_nodes;")
    (tmp_path / "kdtree_kernels.h").write_text(text)
    (tmp_path / "x.c").write_text('#include "kdtree_kernels.h"\n')
    done = subprocess.run(
        ["gcc", "-fsyntax-only", tmp_path / "x.c", f"-I{tmp_path}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "tree_accept_v2: num_nodes" in done.stderr


def test_the_command(folder, tmp_path, capsys):
    assert main(["export", "--arch", "sm_90", "--out", str(tmp_path / "new"), "tree_accept.cu"]) == 0
    assert "tree_accept.sm_90.cubin" in capsys.readouterr().out
    assert main(["export", "--arch", "sm_1", "--out", str(tmp_path), "tree_accept.cu"]) == 2
    assert main(["export", "--arch", "sm_120", "--out", str(tmp_path), "tea.cu"]) == 2


def test_parameters_that_cannot_be_read_are_there_by_size():
    from kdtree_cupy.library.compiled import KernelInfo

    info = KernelInfo("k", 1, 0, 0, 0, 32, (8, 4, 16))
    found = module.unnamed(info)
    assert [module.c_type(p.dtype, p.pointer) for p in found] == ["CUdeviceptr", "int", "unsigned char"]
    assert not module.fits(None, info) and module.fits(found, info)
