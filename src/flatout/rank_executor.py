"""Runs the same function over all ranks' traces: in this process, in one process a core, or over a Ray cluster."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from flatout.errors import FlatoutError, UsageError

Given = TypeVar("Given")
Made = TypeVar("Made")

ENGINES = ("auto", "serial", "processes", "ray")


def num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def map_ranks(
    function: Callable[[Given], Made],
    inputs: Sequence[Given],
    *,
    engine: str = "auto",
    num_workers: int | None = None,
    unpacked: Sequence[str] = (),
) -> Iterator[Made]:
    """`function` of each input, in their order. `function` and inputs must be picklable unless the engine is serial.

    `auto` takes as many processes as there are cores and inputs, and none for a single input. Raises UsageError for an
    unknown engine, a missing Ray, or a Ray cluster of several machines where inputs come from `unpacked` archives
    (their names): only this machine has those files.
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


def _over_processes(function: Callable[[Given], Made], inputs: Sequence[Given], workers: int) -> Iterator[Made]:
    # Imported only here: a lone trace needs none of it, and they take 15 ms.
    import multiprocessing
    import threading
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool

    # Forking is quick but unsafe beside other threads.
    method = "fork" if threading.active_count() == 1 and "fork" in multiprocessing.get_all_start_methods() else "spawn"
    with ProcessPoolExecutor(max_workers=workers, mp_context=multiprocessing.get_context(method)) as pool:
        try:
            yield from pool.map(function, inputs)
        except BrokenProcessPool as error:
            raise FlatoutError(
                "a process that read a trace was ended from outside, probably for want of memory",
                hint="use fewer processes: --engine serial",
            ) from error
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _over_ray(function: Callable[[Given], Made], inputs: Sequence[Given], unpacked: Sequence[str]) -> Iterator[Made]:
    try:
        import ray
    except ImportError as error:
        raise UsageError("`--engine ray` needs Ray", hint="pip install 'flatout[ray]'") from error
    started_here = not ray.is_initialized()
    if started_here:
        # An address in the environment (RAY_ADDRESS) joins that cluster; else a local one is started.
        ray.init(log_to_driver=False, logging_level="ERROR", include_dashboard=False)
    try:
        num_nodes = sum(bool(node["Alive"]) for node in ray.nodes())
        if unpacked and num_nodes > 1:
            raise UsageError(
                f"with `--engine ray`, each node must be able to read the traces, but {unpacked[0]} was unpacked on "
                f"this machine alone and the cluster has {num_nodes} nodes",
                hint="unpack it into a folder that all nodes share and give that, or take --engine processes",
            )
        remote = ray.remote(max_retries=1)(lambda given: function(given))  # Ray takes no partial
        pending = [remote.remote(item) for item in inputs]
        for reference in pending:
            try:
                yield ray.get(reference)
            except ray.exceptions.RayTaskError as error:
                raise error.as_instanceof_cause() from None
    finally:
        if started_here:
            ray.shutdown()
