"""Map one function over the traces of all ranks: in this process, in one process per core, or on a Ray cluster."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from flatout.errors import FlatoutError, UsageError

Input = TypeVar("Input")
Output = TypeVar("Output")

ENGINES = ("auto", "serial", "processes", "ray")


def num_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def map_ranks(
    function: Callable[[Input], Output],
    inputs: Sequence[Input],
    *,
    engine: str = "auto",
    num_workers: int | None = None,
    unpacked: Sequence[str] = (),
) -> Iterator[Output]:
    """Yield `function(input)` for each input, in order. Function and inputs must be picklable unless `serial` is used.

    `auto` uses up to one process per core and input, and no extra process for a single input. Raises UsageError for an
    unknown engine, for a missing Ray, and for a Ray cluster of several machines if inputs come from `unpacked` archives
    (their names), because only this machine has those files.
    """
    if engine not in ENGINES:
        raise UsageError(f"`--engine` must be one of {', '.join(ENGINES)}, but got {engine}")
    if engine == "ray":
        yield from _over_ray(function, inputs, unpacked)
        return
    workers = min(num_workers or num_cores(), len(inputs))
    if engine == "serial" or workers < 2:
        yield from map(function, inputs)
        return
    yield from _over_processes(function, inputs, workers)


def _over_processes(function: Callable[[Input], Output], inputs: Sequence[Input], workers: int) -> Iterator[Output]:
    # Imported here because these modules take 15 ms, and a single trace does not need them.
    import multiprocessing
    import threading
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool

    # Forking is quick, but unsafe in a process with several threads.
    can_fork = threading.active_count() == 1 and "fork" in multiprocessing.get_all_start_methods()
    method = "fork" if can_fork else "spawn"
    with ProcessPoolExecutor(max_workers=workers, mp_context=multiprocessing.get_context(method)) as pool:
        try:
            yield from pool.map(function, inputs)
        except BrokenProcessPool as error:
            raise FlatoutError(
                "a process that was reading a trace was killed, probably for lack of memory",
                hint="use fewer processes: --engine serial",
            ) from error
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _over_ray(
    function: Callable[[Input], Output], inputs: Sequence[Input], unpacked: Sequence[str]
) -> Iterator[Output]:
    try:
        import ray
    except ImportError as error:
        raise UsageError("`--engine ray` needs Ray", hint="pip install 'flatout[ray]'") from error
    from flatout.submit.ray_cluster import own_cluster
    from flatout.submit.ray_start import connect_ray

    started_here = not ray.is_initialized()
    if started_here:
        # An address in the environment (RAY_ADDRESS) joins that cluster, and without one Ray joins the cluster whose
        # address is in the temporary folder, whoever wrote it: without a cluster of this user, a local one is started.
        is_known = bool(os.environ.get("RAY_ADDRESS")) or own_cluster(os.environ) is not None
        address = None if is_known else "local"
        connect_ray(ray, address)
    try:
        num_nodes = sum(bool(node["Alive"]) for node in ray.nodes())
        if unpacked and num_nodes > 1:
            raise UsageError(
                f"with `--engine ray`, each node must be able to read the traces, but {unpacked[0]} was unpacked on "
                f"this machine alone and the cluster has {num_nodes} nodes",
                hint="unpack it into a folder that all nodes share and pass that folder, or use --engine processes",
            )
        remote = ray.remote(max_retries=1)(lambda item: function(item))  # Ray accepts no partial
        pending = [remote.remote(item) for item in inputs]
        for reference in pending:
            try:
                yield ray.get(reference)
            except ray.exceptions.RayTaskError as error:
                raise error.as_instanceof_cause() from None
    finally:
        if started_here:
            ray.shutdown()
