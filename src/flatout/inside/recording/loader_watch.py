"""Observe how a DataLoader makes its first batches: by computing or waiting, with random draws, with state.

In: each call of a fetcher, in the training process or in a loader's worker. Out: a `LoaderObservations` per data set
and process; a worker writes its report to a file in the state folder, which the training process reads. After a few
batches nothing is watched any more. The data set is inspected, never called.
"""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import random
import sys
import time
import weakref
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from flatout.inside.log import LOG
from flatout.inside.protocol import NUM_WATCHED_BATCHES, partial_name
from flatout.inside.recording.fetchers import hook_fetchers_with

_WRITE_AT = (2, 4, 8, NUM_WATCHED_BATCHES)  # batches after which a worker writes its report
_MAX_DEPTH, _MAX_PARTS, _MAX_ELEMENTS = 3, 200, 8
_PLAIN = (type(None), bool, int, float, complex, str, bytes)
_CONTAINERS = (list, tuple, dict, set, frozenset)


@dataclass(slots=True, kw_only=True)
class LoaderObservations:
    """Observations of one data set's batches in one process."""

    num_batches: int = 0
    wall_s: float = 0.0
    cpu_s: float = 0.0  # of the thread that made the batches
    queued_s: float = 0.0  # time in which that thread could have run, but other threads used the cores
    draws: bool = False  # random numbers of the process were drawn: torch, random or numpy
    keeps_state: bool = False  # the data set was changed by making a batch, or names an epoch
    watch_s: float = 0.0  # time that watching added to these batches


class _OfDataset:
    """The report of one data set, which it does not keep alive: a later data set may then have the same `id`."""

    def __init__(self, report: LoaderObservations, dataset: Any) -> None:
        self.report = report
        self._reference: Callable[[], Any] | None
        try:
            self._reference = weakref.ref(dataset)
        except TypeError:  # of a class with __slots__: its `id` must do
            self._reference = None

    def is_of(self, dataset: Any) -> bool:
        return self._reference is None or self._reference() is dataset


class LoaderWatch:
    """The reports of this process, by the data set's `id`. A forked child begins with none."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._pid = os.getpid()
        self._reports: dict[int, _OfDataset] = {}

    def report_of(self, dataset: Any) -> LoaderObservations | None:
        """Return this process's report for a data set."""
        if self._pid != os.getpid():
            return None
        watched = self._reports.get(id(dataset))
        return watched.report if watched is not None and watched.is_of(dataset) else None

    def fetch(self, original: Callable[[Any, Any], Any], fetcher: Any, index: Any) -> Any:
        """Return the batch that the fetcher makes, and measure how it was made if it is one of the first."""
        entered = time.perf_counter()
        report = before = None
        try:
            report = self._open_report(fetcher.dataset)
            before = None if report is None else _state(fetcher.dataset)
        except Exception:  # noqa: BLE001 - an error of ours is never the job's
            LOG.error("loader watch")
        if report is None or before is None:
            return original(fetcher, index)
        began = _clocks()
        batch = original(fetcher, index)
        spent = [end - start for start, end in zip(began, _clocks(), strict=True)]
        try:
            self._add(report, fetcher.dataset, before, spent)
            report.watch_s += time.perf_counter() - entered - spent[0]
        except Exception:  # noqa: BLE001 - an error of ours is never the job's
            LOG.error("loader watch")
        return batch

    def _open_report(self, dataset: Any) -> LoaderObservations | None:
        """Return the data set's report; None if it is complete."""
        if self._pid != os.getpid():
            self._pid, self._reports = os.getpid(), {}
        report = self.report_of(dataset)
        if report is None:
            report = LoaderObservations(keeps_state=names_epoch(dataset))
            self._reports[id(dataset)] = _OfDataset(report, dataset)
        return report if report.num_batches < NUM_WATCHED_BATCHES else None

    def _add(self, report: LoaderObservations, dataset: Any, before: _State, spent: list[float]) -> None:
        after = _state(dataset)
        report.draws = report.draws or after.random != before.random
        if report.num_batches == 1:  # the first batch also opens files: neither its time nor that change counts
            report.wall_s = report.cpu_s = report.queued_s = 0.0
        if report.num_batches > 0:
            report.keeps_state = report.keeps_state or after.dataset != before.dataset
        report.wall_s += spent[0]
        report.cpu_s += spent[1]
        report.queued_s += spent[2]
        report.num_batches += 1
        if report.num_batches in _WRITE_AT and torch.utils.data.get_worker_info() is not None:
            self._write(report)

    def _write(self, report: LoaderObservations) -> None:
        parent = multiprocessing.parent_process()
        owner = parent.pid if parent is not None else os.getppid()
        path = self._folder / f"loader-{owner}-{os.getpid()}.json"
        partial = path.with_name(partial_name(path.name))
        self._folder.mkdir(parents=True, exist_ok=True)
        partial.write_text(json.dumps(asdict(report)), encoding="utf-8")
        partial.replace(path)

    def facts_of(self, iterator: Any) -> dict[str, Any]:
        """Return the facts of the loader that the iterator belongs to; {} if none of its batches was watched."""
        if iterator._num_workers:
            workers = [worker.pid for worker in getattr(iterator, "_workers", ())]
            reports = self._worker_reports(workers) or self._worker_reports(None)
        else:
            own = self.report_of(iterator._dataset)
            reports = [own] if own is not None else []
        if not reports:
            return {}
        # Time in the queue for a core is neither computing nor waiting: on a free core, the thread would run.
        running_s = sum(max(report.wall_s - report.queued_s, report.cpu_s) for report in reports)
        cpu_s = sum(report.cpu_s for report in reports)
        return {
            "loader_cpu_share": cpu_s / running_s if running_s > 0 else None,
            "loader_draws": any(report.draws for report in reports),
            "loader_keeps_state": any(report.keeps_state for report in reports),
            "loader_watch_s": max(report.watch_s / max(report.num_batches, 1) for report in reports),
        }

    def _worker_reports(self, workers: list[int] | None) -> list[LoaderObservations]:
        """Read the reports of these workers of this process; None: of all of its workers so far."""
        paths = sorted(self._folder.glob(f"loader-{os.getpid()}-*.json"))
        if workers is not None:
            paths = [path for path in paths if int(path.stem.rpartition("-")[2]) in workers]
        return [LoaderObservations(**json.loads(path.read_text(encoding="utf-8"))) for path in paths]


def _clocks() -> tuple[float, float, float]:
    """Return the time, this thread's CPU time, and its time in the queue for a core (0 if the kernel has no count)."""
    return time.perf_counter(), time.thread_time(), _queued_s()


def _queued_s() -> float:
    try:
        with open("/proc/thread-self/schedstat", encoding="ascii") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


@dataclass(slots=True, frozen=True)
class _State:
    random: tuple[Any, ...]
    dataset: tuple[Any, ...]


def _state(dataset: Any) -> _State:
    return _State(_random_state(), fingerprint(dataset))


def _random_state() -> tuple[Any, ...]:
    numpy = sys.modules.get("numpy")
    drawn = None
    if numpy is not None and hasattr(numpy, "random"):
        state = numpy.random.get_state()
        drawn = (state[1].tobytes(), state[2])
    return torch.get_rng_state().numpy().tobytes(), random.getstate(), drawn


def names_epoch(dataset: Any, depth: int = _MAX_DEPTH) -> bool:
    """Whether a data set, or one that it wraps, has an attribute or a method named after the epoch."""
    of_classes = (name for kind in type(dataset).__mro__ for name in vars(kind))
    if any("epoch" in name.lower() for name in (*_attributes(dataset), *of_classes)):
        return True
    inner = _attributes(dataset)
    several = inner.get("datasets")
    wrapped = [inner.get("dataset"), *(several if isinstance(several, (list, tuple)) else ())]
    return depth > 0 and any(part is not None and names_epoch(part, depth - 1) for part in wrapped)


def fingerprint(dataset: Any) -> tuple[Any, ...]:
    """Return a value that changes when the data set's attributes do, as far as a bounded look at them shows."""
    found: list[Any] = []
    _look_at(dataset, _MAX_DEPTH, found, set())
    return tuple(found)


def _look_at(part: Any, depth: int, found: list[Any], seen: set[int]) -> None:
    if len(found) >= _MAX_PARTS:
        return
    if isinstance(part, _PLAIN):
        found.append(part if part == part else "nan")
        return
    found.append(id(part))
    if id(part) in seen:
        return
    seen.add(id(part))
    if isinstance(part, _CONTAINERS):
        found.append(len(part))
        if depth > 0:
            for element in _first_elements(part):
                _look_at(element, depth - 1, found, seen)
        return
    state = _own_state(part)
    if state is not None:
        found += state
    elif depth > 0:
        for name, value in list(_attributes(part).items()):
            found.append(name)
            _look_at(value, depth - 1, found, seen)


def _own_state(part: Any) -> list[Any] | None:
    """Return what changes when a tensor or a generator of random numbers does; None for any other object."""
    if isinstance(part, torch.Tensor):
        return [] if part.is_inference() else [part._version]  # a tensor made in inference mode counts no changes
    if isinstance(part, torch.Generator):
        return [part.get_state().numpy().tobytes()]
    if isinstance(part, random.Random):
        return [part.getstate()]
    if hasattr(part, "bit_generator"):
        return [str(part.bit_generator.state)]
    return None


def _first_elements(container: Any) -> list[Any]:
    """Return the elements that are looked at; those of a set have no order."""
    if isinstance(container, (set, frozenset)):
        return []
    elements = container.values() if isinstance(container, dict) else container
    return list(itertools.islice(elements, _MAX_ELEMENTS))


def _attributes(part: Any) -> dict[str, Any]:
    attributes = getattr(part, "__dict__", None)
    return attributes if isinstance(attributes, dict) else {}


WATCHES: list[LoaderWatch] = []  # the watch of this process, if loaders are watched


def hook_fetchers(folder: Path) -> Callable[[], None]:
    """Watch each batch that a fetcher makes; return a function that removes the hooks."""
    watch = LoaderWatch(folder)
    WATCHES[:] = [watch]
    unhook = hook_fetchers_with(watch.fetch)

    def undo() -> None:
        WATCHES.clear()
        unhook()

    return undo
