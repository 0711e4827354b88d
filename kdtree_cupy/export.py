"""Kernels for engines in C or C++: cubins, a header with argument structs and launch geometry, an example.

>>> from kdtree_cupy.export import c_type
>>> c_type("int32", False), c_type("float32", True)
('int', 'CUdeviceptr')
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .files import atomic_file
from .library import KernelLibrary, make
from .library.compiled import Compiled, KernelInfo
from .library.report import LaunchLine, launch_lines
from .library.signature import Parameter, parameters
from .library.sources import Unit
from .topk_logprob import CXX
from .verify_attn_gqa import HEAD_SIZES
from .verify_attn_gqa_variants import FILE as FILE_GQA
from .verify_attn_gqa_variants import FILE_SM90 as FILE_GQA_SM90
from .verify_attn_variants import DYNAMIC_SHARED, FILE, FILE_FEW, FILE_SM90

STAGES_IN_RING = 3
"""Units that verify_attn keeps in shared memory in exported cubins: fits every card from sm_80 on."""
SHORT = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}
_LOGITS = {SHORT[name]: {"KD_LOGIT": cxx} for name, cxx in CXX.items()}
_EXACT = {"KD_QUERY": "float", "KD_EXACT_ONLY": 1}
VARIANTS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "topk_logprob.cu": _LOGITS,
    "target_token.cu": _LOGITS,
    FILE: {
        "f32": _EXACT,
        "f16": {"KD_QUERY": "__half", "KD_STAGES": STAGES_IN_RING},
        "bf16": {"KD_STAGES": STAGES_IN_RING},
    },
    FILE_SM90: {"f16": {"KD_QUERY": "__half"}, "bf16": {}},
    FILE_FEW: {"f16": {"KD_QUERY": "__half"}, "bf16": {}},
    FILE_GQA: {
        f"d{size}.{name}": {"KD_HEAD": size, **macros}
        for size in HEAD_SIZES
        for name, macros in (("f32", _EXACT), ("f16", {"KD_QUERY": "__half"}), ("bf16", {}))
    },
    FILE_GQA_SM90: {
        f"d{size}.{name}": {"KD_HEAD": size, **macros}
        for size in HEAD_SIZES
        for name, macros in (("f16", {"KD_QUERY": "__half"}), ("bf16", {}))
    },
}
"""Files that are compiled once per number type: suffix of the cubin, and macros."""
_C = {
    "int8": "signed char", "uint8": "unsigned char", "int16": "short", "uint16": "unsigned short",
    "int32": "int", "uint32": "unsigned", "int64": "long long", "uint64": "unsigned long long",
    "float32": "float", "float64": "double", "bool": "unsigned char",
}  # fmt: skip


@dataclass(frozen=True)
class Exported:
    """One cubin: its file, the source it is of, what the compiler and the source say of its kernels."""

    cubin: str
    unit: Unit
    compiled: Compiled
    lines: Mapping[str, LaunchLine]
    parameters: Mapping[str, tuple[Parameter, ...]]


def export(
    arch: str, out: Path, *, files: Sequence[str] | None = None, library: KernelLibrary | None = None
) -> list[Path]:
    """Compile kernels for ``arch`` and write them to ``out`` with a header, a manifest and an example.

    Parameters
    ----------
    arch : str
        Such as ``"sm_120"``.
    out : Path
        Folder; made if need be.
    files : sequence of str, optional
        Such as ``"tree_build.cu"``; default all but those written for another chip.
    library : KernelLibrary, optional
        Where sources come from.

    Returns
    -------
    list of Path
        What was written: cubins, ``kdtree_kernels.h``, ``kernels.json``, ``example.c``.

    Raises
    ------
    CompileError, BackendError, ValueError
        As from :meth:`KernelLibrary.compile`.
    """
    library = library or KernelLibrary()
    found = list(compiled(library, arch, files))
    out.mkdir(parents=True, exist_ok=True)
    contents: dict[str, bytes] = {one.cubin: one.compiled.path.read_bytes() for one in found}
    contents["kdtree_kernels.h"] = header(arch, found).encode()
    contents["kernels.json"] = (json.dumps(manifest(arch, found), indent=1) + "\n").encode()
    example = Path(__file__).resolve().parent / "templates" / "example.c"
    contents["example.c"] = example.read_bytes()
    for name, content in contents.items():
        with atomic_file(out / name) as handle:
            handle.write(content)
    return [out / name for name in contents]


def compiled(library: KernelLibrary, arch: str, files: Sequence[str] | None) -> Iterable[Exported]:
    """Yield every cubin of ``files`` for ``arch``: one a number type where a file has several."""
    for file in library.files() if files is None else files:
        unit = library.sources.unit(file)
        if files is None and make.fitting_arch(unit, arch) is None:
            continue
        for suffix, defines in VARIANTS.get(file, {"": {}}).items():
            one = library.compile(file, arch=arch, defines=defines)
            macros = library.merged(defines)
            headers = "\n".join(text for name, text in unit.texts.items() if name != unit.main)
            known = {k: parameters(unit.texts[unit.main], k, macros, headers) for k in one.kernels}
            read = {k: p if fits(p, one.kernels[k]) else unnamed(one.kernels[k]) for k, p in known.items()}
            name = ".".join(filter(None, (file.removesuffix(".cu"), suffix, one.arch, "cubin")))
            yield Exported(name, unit, one, launch_lines(unit, macros, one.kernels), read)


def fits(found: tuple[Parameter, ...] | None, info: KernelInfo) -> bool:
    """Return whether parameters read from the source agree with the binary."""
    return found is not None and info.params is not None and len(found) == len(info.params)


def unnamed(info: KernelInfo) -> tuple[Parameter, ...]:
    """Return parameters by size alone, for kernels that macros make: 8 bytes are taken as an address."""
    kinds = {8: ("uint64", True), 4: ("int32", False)}
    sizes = info.params or ()
    return tuple(
        Parameter(f"p{i}", f"{size} bytes", *kinds.get(size, (None, False)), False)
        for i, size in enumerate(sizes)
    )


def c_type(dtype: str | None, pointer: bool) -> str:
    """Return the C type of a parameter; ``unsigned char`` (an array of them) for an unknown one."""
    return "CUdeviceptr" if pointer else _C.get(dtype or "", "unsigned char")


def header(arch: str, found: Sequence[Exported]) -> str:
    """Return the C header: per kernel a struct of arguments, a launch function, block and shared memory."""
    parts = [_TOP.format(arch=arch)]
    files, kernels = set(), set()
    for one in found:
        if one.unit.main not in files:
            files.add(one.unit.main)
            comment = re.match(r"(?://[^\n]*\n)+", one.unit.texts[one.unit.main])
            parts.append("\n" + (comment[0] if comment else f"// {one.unit.main}\n"))
        for name, info in one.compiled.kernels.items():
            if name not in kernels:
                kernels.add(name)
                parts.append(_kernel(name, info, one))
    return "".join(parts) + "\n#ifdef __cplusplus\n}\n#endif\n#endif\n"


def shared_of(name: str, one: Exported) -> int | None:
    """Return the most dynamic shared memory that a kernel is launched with; None if nothing says it."""
    return DYNAMIC_SHARED.get(name, one.lines[name].dynamic_shared)


def _kernel(name: str, info: KernelInfo, one: Exported) -> str:
    prefix = name if name.startswith("kd_") else f"kd_{name}"
    fields = one.parameters[name]
    block, shared = one.lines[name].block, shared_of(name, one)
    lines = [f"\n// {name}: in {one.cubin}; {info.registers} registers\n"]
    facts = {"BLOCK": block or info.max_threads, "SHARED": shared}
    lines += [f"#define {prefix.upper()}_{k} {v}\n" for k, v in facts.items() if v is not None]
    lines.append("typedef struct {\n")
    for field, size in zip(fields, info.params or (), strict=True):
        kind = c_type(field.dtype, field.pointer)
        array = f"[{size}]" if kind == "unsigned char" and size > 1 else ""
        lines.append(f"    {kind} {field.name}{array};  // {field.text}\n")
    lines.append(f"}} {prefix}_args;\n" if fields else f"    char none;\n}} {prefix}_args;\n")
    for field, size in zip(fields, info.params or (), strict=True):
        what = f"sizeof((({prefix}_args*)0)->{field.name}) == {size}"
        lines.append(f'KD_ASSERT({what}, "{name}: {field.name}");\n')
    addresses = ", ".join(f"&args->{field.name}" for field in fields) or "0"
    lines.append(_LAUNCH.format(prefix=prefix, addresses=addresses))
    return "".join(lines)


def manifest(arch: str, found: Sequence[Exported]) -> dict[str, Any]:
    """Return what ``kernels.json`` holds: cubins, kernels, parameter sizes, registers, launch geometry."""
    rows = [
        {
            "cubin": one.cubin, "source": one.unit.main, "name": name, "arch": one.compiled.arch,
            "registers": info.registers, "static_shared": info.static_shared,
            "dynamic_shared": shared_of(name, one), "block": one.lines[name].block or info.max_threads,
            "parameters": [
                {"name": p.name, "type": p.text, "bytes": size}
                for p, size in zip(one.parameters[name], info.params or (), strict=True)
            ],
        }
        for one in found
        for name, info in one.compiled.kernels.items()
    ]  # fmt: skip
    return {"arch": arch, "nvrtc": found[0].compiled.nvrtc if found else "", "kernels": rows}


_TOP = """\
// kdtree_kernels.h: kernels of kdtree_cupy for {arch}, for the CUDA driver API.  Generated; do not edit.
//
// Per kernel: a struct of its arguments in order, and a function that launches it on a stream.
// KD_..._BLOCK is the block size, or the most threads; KD_..._SHARED the most dynamic shared memory in
// bytes: above 48 KiB set CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES once.  Grid, layouts and rules
// stand in the comment above the kernels of each file.  Scratch that a comment asks to be zero must be zero
// before the first launch.
#ifndef KDTREE_KERNELS_H
#define KDTREE_KERNELS_H
#include <cuda.h>

#ifdef __cplusplus
#define KD_ASSERT(what, why) static_assert(what, why)
extern "C" {{
#else
#define KD_ASSERT(what, why) _Static_assert(what, why)
#endif
"""

_LAUNCH = """\
static inline CUresult {prefix}_launch(CUfunction kernel, unsigned grid_x, unsigned grid_y, unsigned grid_z,
    unsigned block, unsigned shared_bytes, CUstream stream, {prefix}_args* args)
{{
    void* addresses[] = {{{addresses}}};
    return cuLaunchKernel(kernel, grid_x, grid_y, grid_z, block, 1, 1, shared_bytes, stream, addresses, 0);
}}
"""
