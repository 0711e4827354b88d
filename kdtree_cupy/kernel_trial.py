"""Try an edit of a kernel: compile, compare with the reference, time, and say it in one line.

>>> from kdtree_cupy.kernel_trial import affected
>>> from kdtree_cupy.library import KernelLibrary
>>> affected(KernelLibrary(backend="numpy"), "tree_frontier.cuh")
('tree_build.cu',)
"""

from __future__ import annotations

import time as clock
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np

from .bench import CPU_QUICK, QUICK, plan
from .bench_cases import Case
from .bench_data import Place
from .errors import BackendError
from .kernel_trial_text import Trial
from .library import KernelLibrary, host, make, nvrtc, printed, rehearse
from .library.compiled import define_texts
from .library.report import Report
from .library.resolve import default_library
from .selftest import STAGES, default_backend
from .timing import graph_times, wall_times

__all__ = ["Trial", "affected", "derived", "time_case", "try_kernel"]
_NOTHING: Mapping[str, Any] = {}


def affected(library: KernelLibrary, file: str) -> tuple[str, ...]:
    """Return the ``.cu`` files that an edit of ``file`` changes: itself, or those that include the header.

    Raises
    ------
    ValueError
        No kernel includes it.
    """
    if file.endswith(".cu"):
        return (file,)
    users = tuple(name for name in library.files() if file in library.sources.unit(name).texts)
    if not users:
        raise ValueError(f"{file}: no kernel includes it; wanted a .cu file or a header of one")
    return users


def derived(
    library: KernelLibrary, *, backend: str | None = None, defines: Mapping[str, Any] = _NOTHING
) -> KernelLibrary:
    """Return a library of the same sources and edits, with another backend or with macros on top."""
    new = KernelLibrary(
        library.sources.folders, backend or library.backend, library.arch, library.merged(defines)
    )
    for name, text in library.sources.replaced.items():
        new.replace(name, text, new=True)
    new.host_options.update(library.host_options)
    new.checks_edits, new.passed = library.checks_edits, library.passed
    return new


def try_kernel(
    file: str,
    text: str | None = None,
    *,
    check: bool = True,
    time: bool = False,
    arch: str | None = None,
    defines: Mapping[str, Any] = _NOTHING,
    new: bool = False,
    library: KernelLibrary | None = None,
) -> Trial:
    """Compile ``file`` with a new text or other macros, compare it with the reference, time it.

    Parameters
    ----------
    file : str
        A ``.cu`` or a header, such as ``"tree_build.cu"``; a header tries every kernel that includes it.
    text : str, optional
        New text, given to ``library.replace``; None tries the file as it is.
    check : bool
        Run the stage's comparison with its reference in the worker process.
    time : bool
        Time the stage on a small shape, after a check on that very input.
    arch : str, optional
        Architecture of the resource table, such as ``"sm_120"``; default: the library's.
    defines : mapping
        Macros; they hold in the returned ``library`` only.
    new : bool
        Allow a name that no folder has.
    library : KernelLibrary, optional
        Default: the one that stages use when they are given none.

    Returns
    -------
    Trial
        One line when printed, a table in a notebook; ``trial.library`` runs what was tried.

    Raises
    ------
    CompileError, KernelError, BackendError, ValueError
        The text does not compile, is not right, or cannot run here; the library keeps what it had.
    """
    library = library or default_library()
    backend = default_backend() if library.backend == "auto" else library.backend
    before = dict(library.sources.replaced)
    try:
        if text is not None:
            library.replace(file, text, new=new)
        runner = derived(library, backend=backend, defines=defines)
        trial = Trial(file, affected(runner, file), backend, runner)
        _compile_and_check(trial, check, arch)
        if time:
            _time(trial)
    except BaseException:
        for name in {file, *library.sources.replaced} - before.keys():
            library.replace(name, None)
        for name, old in before.items():
            library.replace(name, old, new=True)
        raise
    return trial


def _compile_and_check(trial: Trial, check: bool, arch: str | None) -> None:
    """Let NVRTC compile here while the worker checks: two cores, and seconds each for a large kernel."""
    try:
        nvrtc.choose()
    except BackendError as error:
        trial.notes.append(f"no resource table: {error}")
        _build_and_check(trial, check, seen=False)
        return
    with ThreadPoolExecutor(1) as pool:
        checked = pool.submit(_build_and_check, trial, check, seen=True)
        _report(trial, arch)  # its error is the better one: it names the line
        checked.result()


def _report(trial: Trial, arch: str | None) -> None:
    """Fill in the resource table of the files that are for ``arch``."""
    library = trial.library
    wanted = library.arch if arch is None else arch
    fitting = [
        name
        for name in trial.files
        if wanted == "auto" or make.fitting_arch(library.sources.unit(name), wanted) is not None
    ]
    left = [name for name in trial.files if name not in fitting]
    if left:
        trial.notes.append(f"{', '.join(left)}: not for {wanted}")
    trial.report = Report(library.report(fitting, arch=arch).rows)


def _build_and_check(trial: Trial, check: bool, seen: bool) -> None:
    """Check in the worker; compile for the host where no other compiler has ``seen`` the text."""
    library, backend = trial.library, trial.backend
    if backend == "numpy":
        trial.notes.append("not run: no GPU and no C++ compiler here")
        return
    device = 0 if backend == "cuda" else None
    began = clock.perf_counter()
    for name in trial.files:
        unit = library.sources.unit(name)
        if unit.only_arch is not None and not _runs_here(unit.only_arch, backend):
            trial.notes.append(f"{name}: written for {unit.only_arch}, not run here")
            continue
        if backend == "host" and not seen:
            host.load(unit, library.defines, library.cache)
        macros = define_texts(library.defines, _NOTHING)
        if check:
            trial.checked[name] = rehearse.check_stage(library, unit, backend, device, macros)
    if check:
        trial.check_seconds = clock.perf_counter() - began


def _runs_here(arch: str, backend: str) -> bool:
    if backend != "cuda":
        return False
    from .library.cuda import capability

    return nvrtc.split_arch(arch)[0] == 10 * capability(0)[0] + capability(0)[1]


def stage_of(file: str) -> str | None:
    """Return the stage that a ``.cu`` file belongs to, or None."""
    stem = file.removesuffix(".cu")
    found = [stage for stage in STAGES if stem == stage or stem.startswith(f"{stage}_")]
    return max(found, key=len, default=None)


def _time(trial: Trial) -> None:
    """Time the stages of the tried files; each is checked on its input before."""
    if trial.backend == "numpy":
        trial.notes.append("not timed: no GPU and no C++ compiler here")
        return
    stages = list(dict.fromkeys(filter(None, map(stage_of, trial.files))))
    quick = QUICK if trial.backend == "cuda" else CPU_QUICK
    dtypes = quick.dtypes if trial.backend == "cuda" else ("bfloat16",)
    place = Place(trial.library)
    for stage in stages:
        bench = "tree" if stage.startswith("tree") else stage
        grid = replace(quick, stages=(bench,), dtypes=dtypes, batches=(1,))
        with printed.silent():
            for _, shape, build in plan(grid):
                made = build(place, 0)
                for case in made if isinstance(made, list) else [made]:
                    if case.stage == stage:
                        trial.times[stage] = time_case(case, place.backend), shape
    idle = [name for name in trial.files if name not in trial.library.loaded_files]
    if len(idle) == len(trial.files):
        trial.times.clear()  # the benchmark's case takes another kernel of the stage
    trial.notes += [f"{name}: not timed, no benchmark case of this machine runs it" for name in idle]


def time_case(case: Case, backend: str) -> float:
    """Check a case on its own input, then time it; return the median in microseconds.

    Device time of a call inside a graph on "cuda", the wall clock on a CPU.  What kernels print is dropped.

    Raises
    ------
    ValueError
        The result is not right.
    """
    with printed.silent():
        case.check()
        if backend == "cuda":
            samples = graph_times(case.calls[:1], before=case.before)
        else:
            samples = wall_times(case.calls[0], before=case.before)
        if case.after is not None:
            case.after()
    return float(np.median(samples))
