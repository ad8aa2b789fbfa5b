"""Time the stages of each batch that this process makes, and write them to a file of the recording.

In: each call of a fetcher, in a loader's worker or in the training process itself. Out: `stages-<host>-<pid>.json`,
renewed once per second and when the process ends: the seconds of all batches, and by stage those of the timed ones (see
`budget`). What the batches contain is not changed: random numbers, order and values stay the same.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import time
from collections.abc import Callable
from functools import wraps
from multiprocessing import queues
from pathlib import Path
from threading import get_ident
from typing import Any

import torch
from torch.utils.data import _utils

from flatout.inside.exit_handlers import EXIT_HANDLERS
from flatout.inside.identity import find_identity
from flatout.inside.loader_stages.budget import Budget, cost_per_stage_s
from flatout.inside.loader_stages.device_copies import DeviceCopies, hook_copies
from flatout.inside.loader_stages.hooked import Hooks
from flatout.inside.loader_stages.mounts_read import READ_PATHS
from flatout.inside.loader_stages.process_state import ProcessState
from flatout.inside.loader_stages.shards import num_shards
from flatout.inside.loader_stages.stacks import StackSampler
from flatout.inside.loader_stages.stopwatch import STOPWATCH, StageTime, timed
from flatout.inside.loader_stages.thread_counters import ThreadCounters
from flatout.inside.log import LOG, guarded
from flatout.inside.protocol import (
    LOADER_FROM_DEVICE,
    LOADER_REPORT_INTERVAL_S,
    MAX_LOADER_BATCHES,
    MAX_LOADER_PASSES,
    MAX_LOADER_PLACES,
    File,
    LoaderStage,
    partial_name,
    process_name,
)
from flatout.inside.recording.batches import count_batch
from flatout.inside.recording.fetchers import hook_fetchers_with
from flatout.secrets import write_private

_now = time.perf_counter


class _OtherThread:
    """Calls of a function on any thread, e.g. of the one that sends batches; nested calls count once."""

    def __init__(self) -> None:
        self.time = StageTime()
        self._thread = 0

    def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self._thread == get_ident():
            return function(*args, **kwargs)
        before, self._thread = self._thread, get_ident()
        began, cpu_began = _now(), time.thread_time()
        try:
            return function(*args, **kwargs)
        finally:
            self.time.wall_s += _now() - began
            self.time.cpu_s += time.thread_time() - cpu_began
            self.time.num_calls += 1
            self._thread = before


class _Batches:
    """Batches of one kind, and the time to make them."""

    def __init__(self) -> None:
        self.num_batches = self.num_samples = 0
        self.wall_s = 0.0

    def add(self, num_samples: int, wall_s: float) -> None:
        self.num_batches += 1
        self.num_samples += num_samples
        self.wall_s += wall_s


class BatchWatch:
    """The batches of this process. A forked child begins with none."""

    def __init__(self, folder: Path, hooks: Hooks) -> None:
        self._folder = folder
        self._hooks = hooks
        self.sent, self.received, self.pinned = _OtherThread(), _OtherThread(), _OtherThread()
        self.copies = DeviceCopies()
        self._counters = ThreadCounters()
        self._is_child = False
        self._begin_process()

    def _begin_process(self) -> None:
        self._pid = os.getpid()
        self._counters.close()  # those of the process that was forked
        self._dataset: str | None = None
        self._is_iterable = False
        self._dataset_samples: int | None = None
        self._num_shards: int | None = None
        self._passes: list[int] = []  # samples from the beginning to the end of the data, each time
        self._state = ProcessState()
        self._has_looked_at_maps = self._ends = False
        self._budget: Budget | None = None
        self._sampler: StackSampler | None = None
        self._batch_s: list[float] = []
        self._num_batches = self._num_samples = self._num_timed = 0
        self._timed_s = self._queued_s = self._wall_s = 0.0
        self._read_bytes = self._device_bytes = self._num_reads = 0
        self._from_memory, self._from_storage = _Batches(), _Batches()  # of the timed batches that read files
        self._own_bytes = self._own_reads = 0  # what reading the kernel's counters adds to them
        self._process_began: tuple[float, float] | None = None  # time, and CPU time of the process
        self._process_last = (0.0, 0.0)
        self._first_began: float | None = None
        self._last_ended = self._written_at = 0.0
        for thread in (self.sent, self.received, self.pinned):
            thread.time = StageTime()
        self.copies.reset()
        STOPWATCH.reset()
        READ_PATHS.forget()

    def fetch(self, original: Callable[[Any, Any], Any], fetcher: Any, index: Any) -> Any:
        """Return the batch that the fetcher makes."""
        is_timed = False
        try:
            is_timed = bool(self._begin(fetcher))
        except Exception:  # noqa: BLE001 - an error of ours is never the job's
            LOG.error("loader stages")
        if LOG.is_silenced:
            return original(fetcher, index)
        began = _now()
        try:
            if is_timed:
                STOPWATCH.begin(LoaderStage.CODE)
                try:
                    batch = original(fetcher, index)
                finally:
                    STOPWATCH.finish()
            else:
                batch = original(fetcher, index)
        except StopIteration:
            self._end_stream()
            raise
        self._end(index, batch, began, is_timed=is_timed)
        return batch

    @guarded
    def _end_stream(self) -> None:
        if len(self._passes) < MAX_LOADER_PASSES:
            self._passes.append(self._num_samples - sum(self._passes))

    def _begin(self, fetcher: Any) -> bool:
        """Prepare for a batch; return whether it is timed."""
        if self._pid != os.getpid():
            self._is_child = True
            self._begin_process()
        now = _now()
        self._mark_process()
        if self._first_began is None:
            self._first_began = now
            self._dataset = type(fetcher.dataset).__name__
            self._is_iterable = isinstance(fetcher, _utils.fetch._IterableDatasetFetcher)
            self._describe(fetcher.dataset)
            self._budget = Budget(cost_per_stage_s())
            _, own_bytes, _, own_reads = (
                after - before for before, after in zip(self._counters.read(), self._counters.read(), strict=True)
            )
            self._own_bytes, self._own_reads = int(own_bytes), int(own_reads)
            if self._is_child:
                EXIT_HANDLERS.at_exit(self.finish)
        assert self._budget is not None
        if not self._budget.allows(now - self._first_began):
            return False
        self._hooks.look()
        if self._sampler is None:
            self._sampler = StackSampler(get_ident())
            self._sampler.start()
        self._before = self._counters.read()
        self._entries_before = STOPWATCH.num_entries
        self._prepared_s = _now() - now
        return True

    def _describe(self, dataset: Any) -> None:
        """Note how many samples or shards the data set has, as far as it says so itself."""
        try:
            if self._is_iterable:
                self._num_shards = num_shards(dataset)
            else:
                self._dataset_samples = len(dataset)
        except Exception:  # noqa: BLE001 - a data set's own code: without a number, less is known
            return

    def _mark_process(self) -> None:
        """Note the CPU time of the process: a training process computes between two batches, on several threads."""
        self._process_last = _now(), time.process_time()
        if self._process_began is None:
            self._process_began = self._process_last
            if torch.utils.data.get_worker_info() is None:
                self.copies.begin()

    def receive(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Return what another process has sent."""
        self._mark_process()
        return self.received.call(original, *args, **kwargs)

    @guarded
    def _end(self, index: Any, batch: Any, began: float, *, is_timed: bool) -> None:
        ended = _now()
        self._num_batches += 1
        # A data set that makes whole batches itself is asked for one item.
        num_samples = len(index) if isinstance(index, (list, tuple)) else count_batch(batch)[0] or 1
        self._num_samples += num_samples
        self._wall_s += ended - began
        self._last_ended = ended
        if len(self._batch_s) < MAX_LOADER_BATCHES:
            self._batch_s.append(round(ended - began, 7))
        if is_timed:
            self._count_timed(num_samples, began, ended)
        if ended - self._written_at >= LOADER_REPORT_INTERVAL_S:
            self._write()
        if self._budget is not None:
            self._budget.spent_s += _now() - ended

    def _count_timed(self, num_samples: int, began: float, ended: float) -> None:
        queued_s, read_bytes, device_bytes, num_reads = (
            after - before for after, before in zip(self._counters.read(), self._before, strict=True)
        )
        self._num_timed += 1
        self._timed_s += ended - began
        self._queued_s += queued_s
        own_bytes = max(int(read_bytes) - self._own_bytes, 0)
        self._read_bytes += own_bytes
        self._device_bytes += int(device_bytes)
        if own_bytes and device_bytes >= LOADER_FROM_DEVICE * own_bytes:
            self._from_storage.add(num_samples, ended - began)
        elif own_bytes and device_bytes <= (1 - LOADER_FROM_DEVICE) * own_bytes:
            self._from_memory.add(num_samples, ended - began)
        self._num_reads += max(int(num_reads) - self._own_reads, 0)
        assert self._budget is not None
        num_stages = STOPWATCH.num_entries - self._entries_before
        self._budget.add(num_stages, self._prepared_s)

    @guarded
    def finish(self) -> None:
        if self._pid != os.getpid():
            return
        has_begun = self._first_began is not None  # a worker without shards begins, and makes no batch
        if has_begun or self.received.time.num_calls or self.pinned.time.num_calls:
            if self._sampler is not None:
                self._sampler.stop()
            self._ends = True
            self._write()

    def _write(self) -> None:
        worker = torch.utils.data.get_worker_info()
        parent = multiprocessing.parent_process()
        counts = self._sampler.counts if self._sampler is not None else None
        places = dict(counts.most_common(MAX_LOADER_PLACES)) if counts is not None else {}
        process_began = self._process_began or self._process_last
        self._state.look()
        self.copies.look()
        mounts = READ_PATHS.by_mount(with_mapped=not self._has_looked_at_maps or self._ends)
        self._has_looked_at_maps = True
        report = {
            "rank": find_identity().rank,
            "worker": worker.id if worker is not None else None,
            "num_workers": worker.num_workers if worker is not None else 0,
            "pid": self._pid,
            "parent_pid": parent.pid if worker is not None and parent is not None else None,
            "cores_allowed": len(os.sched_getaffinity(0)),
            "cores": sorted(os.sched_getaffinity(0)),
            "dataset": self._dataset,
            "is_iterable": self._is_iterable,
            "dataset_samples": self._dataset_samples,
            "num_shards": self._num_shards,
            "passes": self._passes,
            "mounts": mounts,
            **self._state.report(),
            "process_elapsed_s": self._process_last[0] - process_began[0],
            "process_cpu_s": self._process_last[1] - process_began[1],
            "num_batches": self._num_batches,
            "num_samples": self._num_samples,
            "wall_s": self._wall_s,
            "elapsed_s": self._last_ended - (self._first_began or 0.0) if self._num_batches else 0.0,
            "batch_s": self._batch_s,
            "num_timed": self._num_timed,
            "timed_s": self._timed_s,
            "queued_s": self._queued_s,
            "read_bytes": self._read_bytes,
            "device_bytes": self._device_bytes,
            "num_reads": self._num_reads,
            "from_memory": vars(self._from_memory),
            "from_storage": vars(self._from_storage),
            "watch_s": (self._budget.spent_s if self._budget is not None else 0.0) + self.copies.spent_s,
            "stages": {stage: _as_dict(spent) for stage, spent in list(STOPWATCH.times.items())},
            "sent": _as_dict(self.sent.time),
            "received": _as_dict(self.received.time),
            "pinned": _as_dict(self.pinned.time),
            "copied": self.copies.report(),
            "places": places,
            "num_places": sum(counts.values()) if counts is not None else 0,
        }
        path = self._folder / File.STAGES.of(process_name(os.uname().nodename, self._pid))
        partial = path.with_name(partial_name(path.name))
        self._written_at = _now()
        try:
            write_private(partial, json.dumps(report).encode())
            partial.replace(path)
        except OSError as error:  # a full disk: the steps are still recorded as far as there is space
            LOG.write(f"the stages of batches were not written: {error.strerror}")
            partial.unlink(missing_ok=True)


def _as_dict(spent: StageTime) -> dict[str, float]:
    return {"num_calls": spent.num_calls, "wall_s": spent.wall_s, "cpu_s": spent.cpu_s}


def hook_stages(folder: Path) -> Callable[[], None]:
    """Time each batch that a fetcher makes; return a function that removes the hooks."""
    hooks = Hooks()
    hooks.open_files()
    watch = BatchWatch(folder, hooks)
    EXIT_HANDLERS.at_exit(watch.finish)
    undos = [
        hook_fetchers_with(watch.fetch),
        _hook_collate(),
        _hook_transport(watch),
        hook_copies(watch.copies),
        hooks.undo,
    ]

    def undo() -> None:
        watch.finish()
        for each in reversed(undos):
            each()

    return undo


def _hook_collate() -> Callable[[], None]:
    """Make the function that puts samples together a stage, where a fetcher takes it."""
    kind = _utils.fetch._BaseDatasetFetcher
    original = kind.__init__

    @wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        self.collate_fn = timed(LoaderStage.COLLATE, self.collate_fn)

    kind.__init__ = init

    def undo() -> None:
        kind.__init__ = original

    return undo


def _hook_transport(watch: BatchWatch) -> Callable[[], None]:
    """Time how workers send batches, how the training process receives them, and how it pins them."""
    pickler, pinning = queues._ForkingPickler, _utils.pin_memory  # type: ignore[attr-defined]
    original_dumps, original_loads, original_pin = pickler.dumps, pickler.loads, pinning.pin_memory

    @wraps(original_dumps)
    def dumps(*args: Any, **kwargs: Any) -> Any:
        return watch.sent.call(original_dumps, *args, **kwargs)

    @wraps(original_loads)
    def loads(*args: Any, **kwargs: Any) -> Any:
        return watch.receive(original_loads, *args, **kwargs)

    @wraps(original_pin)
    def pin_memory(*args: Any, **kwargs: Any) -> Any:
        return watch.pinned.call(original_pin, *args, **kwargs)

    pickler.dumps, pickler.loads, pinning.pin_memory = dumps, staticmethod(loads), pin_memory

    def undo() -> None:
        del pickler.dumps
        pickler.dumps, pickler.loads, pinning.pin_memory = original_dumps, staticmethod(original_loads), original_pin

    return undo
