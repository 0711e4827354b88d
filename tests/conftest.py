"""Fixtures shared by all tests: the backends, poisoned outputs, hypothesis settings."""

from __future__ import annotations

import signal
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "fixed",
    derandomize=True,  # a test run says the same thing every time
    deadline=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
settings.register_profile("explore", settings.get_profile("fixed"), derandomize=False, max_examples=2000)
settings.load_profile("fixed")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Started in the background of a shell: children would inherit that and Ctrl-C could not be tested.
    signal.signal(signal.SIGINT, signal.default_int_handler)

GUARD = 64  # elements on either side of a poisoned output


@dataclass(frozen=True)
class Backend:
    """How one test body runs on one backend: arrays go in as numpy and come back as numpy."""

    name: str
    library: Any = None

    def to(self, value: Any) -> Any:
        """Return ``value`` with every numpy array in it as an array of this backend's kind."""
        if self.name != "cuda":
            return value
        import cupy

        return _each(value, lambda x: cupy.asarray(x) if isinstance(x, np.ndarray) else x)

    def back(self, value: Any) -> Any:
        """Return ``value`` with every array of this backend's kind in it as numpy."""
        return _each(value, lambda x: x.get() if hasattr(x, "get") else x)

    def run(self, stage: Any, *args: Any, **kwargs: Any) -> Any:
        """Call a public stage function on this backend; arguments and result are numpy."""
        moved = {name: self.to(value) for name, value in kwargs.items()}
        return self.back(stage(*map(self.to, args), library=self.library, **moved))

    def poisoned(self, shape: tuple[int, ...], dtype: Any, poison: float) -> tuple[Any, Any]:
        """Return an array full of ``poison`` inside a guarded buffer, and the buffer."""
        size = int(np.prod(shape))
        whole = self.to(np.full(size + 2 * GUARD, poison, dtype))
        return whole[GUARD : GUARD + size].reshape(shape), whole


class Poisoned:
    """An ``out=`` like a given result, full of poison, and the guard bands around each array of it."""

    def __init__(self, backend: Backend, result: Any) -> None:
        self.backend, self.buffers = backend, []
        self.out = self._like(result)

    def _like(self, value: Any) -> Any:
        if is_dataclass(value):
            return type(value)(**{f.name: self._like(getattr(value, f.name)) for f in fields(value)})
        if isinstance(value, tuple):
            return type(value)(*map(self._like, value))
        poison = {"f": np.nan, "V": np.nan, "i": -2, "u": 0xDEAD, "b": True}[value.dtype.kind]
        array, whole = self.backend.poisoned(value.shape, value.dtype, poison)
        self.buffers.append((whole, np.full(GUARD, poison, value.dtype)))
        return array

    def assert_guards_survived(self) -> None:
        for whole, guard in self.buffers:
            host = self.backend.back(whole)
            for band in (host[:GUARD], host[-GUARD:]):
                assert band.tobytes() == guard.tobytes(), "wrote outside an output"


def assert_same(got: Any, wanted: Any, where: str = "result") -> None:
    """Assert that two results agree in structure, dtype, shape and every bit of meaning (NaN equals NaN)."""
    if is_dataclass(wanted):
        wanted = {f.name: getattr(wanted, f.name) for f in fields(wanted)}
    elif isinstance(wanted, tuple) and hasattr(wanted, "_fields"):
        wanted = wanted._asdict()
    if isinstance(wanted, dict):
        for name, value in wanted.items():
            assert_same(getattr(got, name), value, f"{where}.{name}")
        return
    assert got.dtype == wanted.dtype, f"{where}: dtype {got.dtype}, wanted {wanted.dtype}"
    np.testing.assert_array_equal(got, wanted, err_msg=where)


def run_into_poison(backend: Backend, stage: Any, *args: Any, **kwargs: Any) -> Any:
    """Return the stage's result after checking that ``out=`` gives it too and stays inside its arrays."""
    fresh = backend.run(stage, *args, **kwargs)
    poisoned = Poisoned(backend, fresh)
    written = backend.run(stage, *args, out=poisoned.out, **kwargs)
    assert_same(written, fresh, stage.__name__)
    poisoned.assert_guards_survived()
    return fresh


def _each(value: Any, move: Any) -> Any:
    """Apply ``move`` to everything inside records and tuples."""
    if is_dataclass(value):
        return type(value)(**{f.name: _each(getattr(value, f.name), move) for f in fields(value)})
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_each(one, move) for one in value))
    return move(value)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that wants a ``backend`` on each of its module's ``BACKENDS``; numpy if it names none."""
    if "backend" in metafunc.fixturenames:
        names = getattr(metafunc.module, "BACKENDS", ("numpy",))
        marked = [
            pytest.param(name, marks=[pytest.mark.gpu] if name.startswith("cuda") else []) for name in names
        ]
        metafunc.parametrize("backend", marked, indirect=True)


@cache
def library_of(name: str) -> Any:
    """Return the library of one backend, or skip the test by name where that cannot run."""
    from kdtree_cupy.library import KernelLibrary
    from kdtree_cupy.library.resolve import host_problem

    if name == "host" and (problem := host_problem()):
        pytest.skip(f"host: {problem}")
    if name == "cuda":
        cupy = pytest.importorskip("cupy", reason="cuda: CuPy is not installed")
        if not cupy.cuda.is_available():
            pytest.skip("cuda: no NVIDIA GPU, or no driver for it")
    return KernelLibrary(backend=name)


@pytest.fixture
def backend(request: pytest.FixtureRequest) -> Backend:
    return Backend(request.param, library_of(request.param))
