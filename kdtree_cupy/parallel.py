"""Run independent tasks here, over the cores (joblib), or on a Dask cluster: same results, same order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from .errors import BackendError


def run_tasks(
    function: Callable[..., Any],
    tasks: Sequence[tuple[Any, ...]],
    *,
    jobs: int = 1,
    dask: str | None = None,
    done: Callable[[int], object] | None = None,
) -> list[Any]:
    """Return ``function(*task)`` of every task, in order.

    Parameters
    ----------
    function : callable
        Importable by name: processes and workers load it from there.
    tasks : sequence of tuple
    jobs : int
        Processes (joblib), or workers of a local Dask cluster.
    dask : str, optional
        ``"local"`` for a cluster on this machine, or a scheduler's address such as ``tcp://host:8786``.
        Dask runs whatever a peer sends: use it on trusted networks only.
    done : callable, optional
        Called with a task's index when its result has come.

    Raises
    ------
    ValueError
        jobs below 1.
    BackendError
        Dask is wanted and not installed, or the scheduler does not answer.
    """
    if jobs < 1:
        raise ValueError(f"jobs: got {jobs}, wanted at least 1")
    results = _dask(function, tasks, jobs, dask) if dask else _local(function, tasks, jobs)
    out = []
    for i, result in enumerate(results):
        out.append(result)
        if done is not None:
            done(i)
    return out


def _local(function: Callable[..., Any], tasks: Sequence[tuple[Any, ...]], jobs: int) -> Iterator[Any]:
    if jobs == 1 or len(tasks) <= 1:
        return (function(*task) for task in tasks)
    from joblib import Parallel, delayed

    return Parallel(n_jobs=jobs, return_as="generator")(delayed(function)(*task) for task in tasks)


def _dask(
    function: Callable[..., Any], tasks: Sequence[tuple[Any, ...]], jobs: int, address: str
) -> Iterator[Any]:
    with _client(address, jobs) as client:
        futures = [client.submit(function, *task, pure=False) for task in tasks]
        for future in futures:
            yield future.result()


@contextmanager
def _client(address: str, jobs: int) -> Iterator[Any]:
    try:
        from distributed import Client, LocalCluster
    except ImportError as error:
        raise BackendError("a Dask cluster needs the extra: pip install 'kdtree-cupy[dask]'") from error
    if address == "local":
        quiet = {"dashboard_address": None, "host": "127.0.0.1", "threads_per_worker": 1, "silence_logs": 40}
        with LocalCluster(n_workers=jobs, **quiet) as cluster, Client(cluster) as client:
            yield client
        return
    try:
        client = Client(address, timeout="10s")
    except (OSError, TimeoutError, ValueError) as error:
        raise BackendError(f"dask: no scheduler answers at {address!r}: {error}") from error
    with client:
        yield client
