"""Every kernel against its reference on this machine, as one record that can be shared.

The golden files (:mod:`kdtree_cupy.golden`) are run through the public stage functions on the chosen backend
and compared with the recorded results: integers, bits and moved rows exactly, floating-point results within
the bounds of docs/numerics.md.  Then each file of kernels has its ``self_check``: small inputs of more types
and sizes, so that other kernels of the file run too.  Each stage is timed on one shape, to notice a machine
that is far off.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from . import golden
from .checks import host
from .errors import BackendError
from .library import KernelLibrary
from .library.doctor import findings
from .library.driver import driver
from .library.stage_hooks import hook
from .stage_run import leaves, to_device
from .version import __version__

STAGES = (
    "topk_logprob", "tree_build", "verify_attn", "verify_attn_gqa",
    "target_token", "tree_accept", "kv_commit",
)  # fmt: skip
KERNELS = ("verify_attn_fp8", "tree_budget", "masks", "row_product")
"""Files of kernels beside those stages: no golden file, but a check of their own against the reference."""
LOGPROB_BOUND = 2.0**-21
"""abs(error) <= this * max(1, abs(value))."""
ATTENTION_BOUND = {"float32": 2.0**-20, "float16": 2.0**-9, "bfloat16": 2.0**-6}
"""Relative to the largest value: about two roundings of the type of the queries."""
_REPEATS = 20


def default_backend() -> str:
    """Return "cuda" if a device and CuPy are there, else "host" if a compiler is, else "numpy"."""
    if driver().devices:
        return "cuda"
    from .library.host_compiler import problem

    return "numpy" if problem() else "host"


def selftest(
    backend: str | None = None,
    *,
    stages: Sequence[str] | None = None,
    progress: Callable[[str], object] | None = None,
) -> dict[str, Any]:
    """Run stages and return what to send back.

    Parameters
    ----------
    backend : {"cuda", "host", "numpy"}, optional
        Default: the best this machine has.
    stages : sequence of str, optional
        Those to run, of :data:`STAGES` and :data:`KERNELS`.  Default: all; on numpy, which has no kernels,
        the stages.
    progress : callable, optional
        Called with the name of each stage before it runs.

    Returns
    -------
    dict
        ``ok, backend, seconds, machine, stages``; a stage has ``ok, ran_on, cases, largest_error, bound, us``
        and ``problem``.  ``ran_on`` says "numpy" where a stage has no kernel yet; ``cases`` are golden ones.

    Raises
    ------
    ValueError
        One of :data:`KERNELS` was asked for with the numpy backend.

    Notes
    -----
    Waits for the device.
    """
    began = time.perf_counter()
    chosen = backend or default_backend()
    library = KernelLibrary(backend=chosen)
    results: dict[str, Any] = {}
    if stages is None:
        stages = STAGES if chosen == "numpy" else STAGES + KERNELS
    if chosen == "numpy" and not set(KERNELS).isdisjoint(stages):
        raise ValueError(
            f"stages: got {list(stages)} with backend numpy, which has no kernels of {list(KERNELS)}"
        )
    for stage in stages:
        if progress is not None:
            progress(stage)
        results[stage] = _stage(stage, library)
    return {
        "ok": all(result["ok"] for result in results.values()),
        "backend": chosen,
        "version": __version__,
        "seconds": round(time.perf_counter() - began, 2),
        "machine": [asdict(finding) for finding in findings()],
        "stages": results,
    }


def _stage(stage: str, library: KernelLibrary) -> dict[str, Any]:
    cases = golden.load(stage) if stage in STAGES else {}
    if f"{stage}.cu" not in library.sources.files():  # no kernel yet: the reference stands in, and it is said
        library = KernelLibrary(backend="numpy")
    result: dict[str, Any] = {"ok": False, "ran_on": library.backend, "cases": len(cases), "problem": ""}
    result |= {"largest_error": 0.0, "bound": 0.0, "us": None}
    try:
        for name, case in cases.items():
            got = run_case(case, library)
            error, bound = compare(case, got)
            if error > bound:
                result["problem"] = (
                    f"case {name!r}: not what the reference gives (error {error:.3g}, allowed {bound:.3g})"
                )
                return result
            result["largest_error"] = max(result["largest_error"], error)
            result["bound"] = max(result["bound"], bound)
        self_check = hook(f"{stage}.cu", "self_check")
        if library.backend != "numpy" and self_check is not None:
            self_check(library)
        if cases:
            result["us"] = _time(next(reversed(cases.values())), library)
        result["ok"] = True
    except (BackendError, ValueError, TypeError, RuntimeError, OSError) as error:
        result["problem"] = f"{type(error).__name__}: {error}"
    return result


def run_case(case: golden.GoldenCase, library: KernelLibrary) -> dict[str, np.ndarray]:
    """Call the stage with fresh copies of a case's arguments; return results (and moved caches) as numpy."""
    arguments = moved(copy.deepcopy(case.arguments), library)
    result = leaves(_function(case.stage)(**arguments, library=library))
    if "caches" in case.wanted:
        result["caches"] = arguments["caches"]
    return {name: host(array) for name, array in result.items()}


def moved(arguments: dict[str, Any], library: KernelLibrary) -> dict[str, Any]:
    """Return the arguments with every array where ``library`` works."""
    if library.backend != "cuda":
        return arguments
    out = {name: to_device(value, library) for name, value in arguments.items()}
    if "budget" in arguments and not np.isscalar(arguments["budget"]) and "num_nodes" not in arguments:
        out["num_nodes"] = int(np.max(arguments["budget"])) + 1  # a device budget cannot be looked at
    return out


def compare(case: golden.GoldenCase, got: dict[str, np.ndarray]) -> tuple[float, float]:
    """Return (largest error, bound); an exact array that differs counts as infinitely wrong."""
    worst, bound = 0.0, 0.0
    for name, wanted in case.wanted.items():
        have = got[name.removeprefix("tree.")]
        if have.shape != wanted.shape:
            return np.inf, 0.0
        if name == "logprobs":
            limit = LOGPROB_BOUND * np.maximum(1.0, np.abs(np.where(np.isfinite(wanted), wanted, 0.0)))
            error, allowed = _relative(have, wanted, limit), LOGPROB_BOUND
        elif case.stage.startswith("verify_attn"):
            allowed = ATTENTION_BOUND[str(case.arguments["q"].dtype)]
            finite = np.abs(wanted[np.isfinite(wanted)]).max(initial=1e-30)
            error = _relative(have, wanted, np.full(wanted.shape, finite * allowed))
        else:
            same = np.array_equal(have, wanted, equal_nan=wanted.dtype.kind == "f")
            error, allowed = (0.0, 0.0) if same else (np.inf, 0.0)
        worst, bound = max(worst, error * (allowed or 1.0)), max(bound, allowed)
    return worst, bound


def _relative(have: np.ndarray, wanted: np.ndarray, limit: np.ndarray) -> float:
    """Return the largest error in units of ``limit``; infinities and NaN must agree."""
    have, wanted = have.astype(np.float64), wanted.astype(np.float64)
    finite = np.isfinite(wanted)
    if not np.isfinite(have[finite]).all():
        return np.inf
    if not np.array_equal(np.where(finite, 0, have), np.where(finite, 0, wanted), equal_nan=True):
        return np.inf
    return float((np.abs(have[finite] - wanted[finite]) / limit[finite]).max(initial=0.0))


def _time(case: golden.GoldenCase, library: KernelLibrary) -> float:
    """Return the median time of a call in microseconds, Python included, small golden shape."""
    arguments, times = moved(copy.deepcopy(case.arguments), library), []
    function = _function(case.stage)
    for _ in range(_REPEATS):
        begin = time.perf_counter()
        function(**arguments, library=library)
        if library.backend == "cuda":
            import cupy

            cupy.cuda.get_current_stream().synchronize()
        times.append(time.perf_counter() - begin)
    return round(1e6 * float(np.median(times)), 1)


def _function(stage: str) -> Callable[..., Any]:
    import kdtree_cupy

    return getattr(kdtree_cupy, stage)
