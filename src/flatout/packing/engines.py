"""Run the tasks of a pack: on processes of this machine, on Ray Data, or on Dask.

In: the tasks. Out: their outcomes, as they finish. Each engine calls `pack_shard`, so the shards have the same bytes
whichever wrote them. Ray's and Dask's workers must see the source and the folder under the same paths, and have Flatout
with its extra `data`. Raises UsageError if a package is missing or a cluster is not reached, FlatoutError if a new Ray
does not start.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import msgspec

from flatout.errors import OutputError, UsageError
from flatout.packing.extras import needs_extra
from flatout.packing.shard import ShardOutcome, ShardTask, pack_shard
from flatout.submit.ray_start import connect_ray

ENGINES = ("local", "ray", "dask")
Engine = Callable[[Sequence[ShardTask]], Iterator[ShardOutcome]]
_PR_SET_PDEATHSIG = 1
_CONNECT_S = 30.0


def engine_of(text: str, num_processes: int | None) -> Engine:
    """Return the engine of `--on`: local, ray[=ADDRESS] or dask[=ADDRESS]. Raise UsageError for anything else."""
    name, _, address = text.partition("=")
    if name not in ENGINES or (name == "local" and "=" in text) or text.endswith("="):
        raise UsageError(
            f"`--on` must be local, ray, dask, ray=ADDRESS or dask=ADDRESS, but is `{text}`",
            hint="e.g. --on dask=tcp://scheduler:8786",
        )
    if name != "local" and num_processes is not None:
        raise UsageError(f"`--jobs` is for processes of this machine, but the shards are written on {name}")
    if name == "ray":
        return lambda tasks: on_ray(tasks, address or None)
    if name == "dask":
        return lambda tasks: on_dask(tasks, address or None)
    return lambda tasks: on_processes(tasks, num_processes or len(os.sched_getaffinity(0)))


def on_processes(tasks: Sequence[ShardTask], num_processes: int) -> Iterator[ShardOutcome]:
    """Run the tasks on processes of this machine; one process is this one."""
    with needs_extra("data", "to write shards"):
        import webdataset.writer  # noqa: F401 - once, before the processes are forked
    if num_processes == 1 or len(tasks) == 1:
        yield from map(pack_shard, tasks)
        return
    context = multiprocessing.get_context("fork")
    pool = ProcessPoolExecutor(min(num_processes, len(tasks)), context, initializer=_end_with, initargs=(os.getpid(),))
    try:
        for future in as_completed([pool.submit(pack_shard, task) for task in tasks]):
            yield future.result()
    except BrokenProcessPool as error:
        raise OutputError(
            "a process that packs was killed, perhaps because the memory was full",
            hint="finished shards are kept; run the same command again, with fewer --jobs",
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _end_with(parent: int) -> None:
    """Let the kernel kill this process when its parent ends for any reason: nothing else would stop it then."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if os.getppid() != parent:
        os._exit(1)


def on_ray(tasks: Sequence[ShardTask], address: str | None) -> Iterator[ShardOutcome]:
    """Run the tasks on Ray Data, one block a task; without an address, on the cluster that Ray finds, or a new one."""
    with needs_extra("ray", "for --on ray"):
        import ray
        import ray.data
    is_ours = not ray.is_initialized()
    if is_ours:
        connect_ray(ray, address)
    try:
        rows = [{"task": msgspec.msgpack.encode(task)} for task in tasks]
        ray.data.DataContext.get_current().enable_progress_bars = False
        outcomes = ray.data.from_items(rows, override_num_blocks=len(rows)).map(_pack_row)
        for row in outcomes.iter_rows():
            yield _outcome(row)
    finally:
        if is_ours:
            ray.shutdown()


def on_dask(tasks: Sequence[ShardTask], address: str | None) -> Iterator[ShardOutcome]:
    """Run the tasks on a Dask cluster; without an address, on a new one on this machine."""
    with needs_extra("dask", "for --on dask"):
        import distributed
    try:
        client = distributed.Client(address, timeout=_CONNECT_S, set_as_default=False, **_local_options(address))
    except (OSError, TimeoutError, ValueError) as error:
        where = f" at {address}" if address is not None else ""
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise UsageError(f"no Dask cluster can be reached{where}: {reason}") from error
    try:
        rows = [{"task": msgspec.msgpack.encode(task)} for task in tasks]
        for future in distributed.as_completed(client.map(_pack_row, rows, pure=False), loop=client.loop):
            yield _outcome(future.result())
    finally:
        client.close()


def _local_options(address: str | None) -> dict[str, Any]:
    return {} if address is not None else {"threads_per_worker": 1, "dashboard_address": None}


def _pack_row(row: dict[str, Any]) -> dict[str, Any]:
    """Run a task on a worker of a cluster. An error of the user's is a value, as clusters wrap what is raised."""
    try:
        outcome = pack_shard(msgspec.msgpack.decode(row["task"], type=ShardTask))
    except (OutputError, UsageError) as error:
        return {"outcome": b"", "error": str(error), "hint": error.hint, "is_usage": isinstance(error, UsageError)}
    return {"outcome": msgspec.msgpack.encode(outcome), "error": "", "hint": "", "is_usage": False}


def _outcome(row: dict[str, Any]) -> ShardOutcome:
    if row["error"]:
        kind = UsageError if row["is_usage"] else OutputError
        raise kind(row["error"], hint=row["hint"])
    return msgspec.msgpack.decode(row["outcome"], type=ShardOutcome)
