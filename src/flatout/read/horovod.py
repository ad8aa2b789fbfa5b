"""Read a timeline of Horovod (HOROVOD_TIMELINE), which rank 0 writes for all ranks, as an event table of one rank.

In: a `TraceSource`. Out: an `EventTable` of the rank in `source.part`, with one event per operation: from the moment at
which that rank was ready for it, to its end on all ranks. The file of all ranks raises SeveralRanksError. What a rank
does between two operations is not recorded, so it is unknown. Times and names: horovod/common/timeline.cc.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from flatout.errors import InputError
from flatout.read.assembled import Source, assemble
from flatout.read.decoded import Columns
from flatout.read.event_text import EventText
from flatout.read.metadata import FileMetadata
from flatout.read.processes import RankPart, SeveralRanksError
from flatout.read.quality import damage_quality
from flatout.read.sources import TraceSource
from flatout.read.stream import ByteStream
from flatout.read.timed_events import EventDecoder, is_placed, spans_ns
from flatout.read.times import MAX_US
from flatout.records.events import NULL, CollectiveArgs, EventTable, Kind, Quality, TraceFormat

_NEGOTIATE = "NEGOTIATE_"
_MOST_RANKS = 1 << 16
_MOST_DIGITS = 8  # of a rank in the name of a tick
_MIN_ROUNDS = 2  # of all tensors, for steps to be known
_UNSHARED = 1 << 48  # this number and higher ones are of one rank alone


class _Arguments(msgspec.Struct, gc=False):
    epoch_us: Any = msgspec.field(name="start_time_since_epoch_in_micros", default=None)


class _Event(msgspec.Struct, gc=False):
    ph: str = ""
    name: str = ""
    ts: float = 0.0
    pid: int = 0
    args: _Arguments | None = None


class _Tensor:
    """Where a tensor is: it is negotiated, then in an operation, which has activities within it."""

    __slots__ = ("depth", "is_negotiating", "kind", "negotiated_us", "number", "ready_us", "start_us")

    def __init__(self, number: int) -> None:
        self.number = number
        self.is_negotiating = False
        self.negotiated_us: dict[int, float] = {}  # by rank, of the negotiation in progress or just ended
        self.kind: str | None = None  # of the operation that runs
        self.ready_us = self.negotiated_us  # of that operation
        self.start_us = 0.0
        self.depth = 0  # of its activities

    def begin(self, name: str, start_us: float) -> None:
        if name.startswith(_NEGOTIATE):
            self.negotiated_us = {}
            self.is_negotiating = True
        elif self.kind is not None:
            self.depth += 1
        else:
            self.kind = name.lower() or "unknown"
            self.ready_us, self.negotiated_us = self.negotiated_us, {}
            self.start_us = start_us

    def tick(self, rank: int | None, time_us: float) -> None:
        if self.is_negotiating and rank is not None:
            self.negotiated_us.setdefault(rank, time_us)


class _Operation(NamedTuple):
    """One operation on a tensor; times in us."""

    tensor: int
    kind: str
    ready_us: dict[int, float]
    start_us: float
    end_us: float


class _Timeline(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The operations in order of their starts; times in us."""

    tensors: NDArray[np.int64]
    kinds: NDArray[np.int64]  # index into `kind_names`
    kind_names: tuple[str, ...]
    ready_us: tuple[dict[int, float], ...]  # by rank; empty where the answer was cached
    start_us: NDArray[np.float64]
    end_us: NDArray[np.float64]
    first_us: float  # when the first rank was ready for the first operation
    ranks: tuple[int, ...]
    epoch_us: int | None
    quality: tuple[Quality, ...]


_DECODER = EventDecoder(_Event)


def read_horovod(source: TraceSource) -> EventTable:
    """Read one rank. Raises InputError if the file has no operation, SeveralRanksError if it names several ranks."""
    status = Path(source.path).stat()
    timeline = _timeline(source.path, source.whole_name, status.st_size, status.st_mtime_ns)
    if not timeline.ready_us:
        raise InputError(f"{source.name} is a timeline of Horovod without a complete operation", hint="record it again")
    if source.part is None and len(timeline.ranks) > 1:
        parts = tuple(RankPart(rank=rank, by="the ranks in its events") for rank in timeline.ranks)
        raise SeveralRanksError(f"{source.name} has the events of {len(parts)} ranks", parts)
    rank = source.part.rank if source.part is not None else 0
    return _table(timeline, rank or 0, source.name)


def _table(timeline: _Timeline, rank: int, name: str) -> EventTable:
    is_cached = np.array([not ready for ready in timeline.ready_us], np.bool_)
    ready_us = np.array([ready.get(rank, np.nan) for ready in timeline.ready_us], np.float64)
    is_here = is_cached | ~np.isnan(ready_us)
    numbers = np.flatnonzero(is_here)
    starts = np.where(np.isnan(ready_us), timeline.start_us, ready_us)[is_here]
    ends = timeline.end_us[is_here]
    codes = timeline.kinds[is_here]
    round_ends = _round_ends(timeline.tensors[is_here], ends)
    round_starts = np.concatenate([[timeline.first_us], round_ends])[: len(round_ends)]
    start_ns, duration_ns = spans_ns(np.concatenate([starts, round_starts]), np.concatenate([ends, round_ends]))
    num_marks = len(round_ends)
    none = np.full(num_marks, NULL, np.int64)
    columns: Columns = {
        "kind": np.full(len(start_ns), Kind.USER_ANNOTATION, np.int64),
        "name": np.concatenate([codes, len(timeline.kind_names) + np.arange(num_marks)]),
        "start_ns": (timeline.epoch_us or 0) * 1000 + start_ns,
        "duration_ns": duration_ns,
        "thread": np.zeros(len(start_ns), np.int64),
        "collective": np.concatenate([codes, none]),
        "sequence": np.concatenate(
            [np.where(is_cached[is_here], _UNSHARED + numbers * _MOST_RANKS + rank, numbers), none]
        ),
    }
    names = [f"mpi:{kind}" for kind in timeline.kind_names]
    names += [f"ProfilerStep#{number}" for number in range(num_marks)]
    source = Source(
        path=name,
        format=TraceFormat.HOROVOD,
        metadata=FileMetadata(rank=rank, world_size=len(timeline.ranks) or None),
        names=names,
        threads=[("horovod", f"rank {rank}")],
        collectives=[CollectiveArgs(operation=kind) for kind in timeline.kind_names],
        quality=(*timeline.quality, *_lacks(int(is_cached.sum()), len(is_cached), has_steps=num_marks > 0)),
        knows_host=False,
    )
    return assemble(columns, source)


def _round_ends(tensors: NDArray[np.int64], ends_us: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the ends of the steps: each lasts until all tensors that are in every step have been reduced once more."""
    _, of_tensor, counts = np.unique(tensors, return_inverse=True, return_counts=True)
    num_rounds = int(counts.max(initial=0))
    if num_rounds < _MIN_ROUNDS:
        return np.zeros(0, np.float64)
    rows = np.flatnonzero(counts[of_tensor] == num_rounds)
    by_tensor = rows[np.argsort(tensors[rows], kind="stable")]
    latest: NDArray[np.float64] = ends_us[by_tensor].reshape(-1, num_rounds).max(axis=0)
    return latest


def _lacks(num_cached: int, num_operations: int, *, has_steps: bool) -> list[Quality]:
    notes = [
        Quality(
            problem="a timeline of Horovod has the operations on tensors, and nothing of what ranks do in between",
            effect="compute, data loading and the host's work are unknown: a late rank is named without its cause",
        )
    ]
    if num_cached:
        notes.append(
            Quality(
                problem=f"{num_cached:,} of {num_operations:,} operations were not negotiated: their answer was cached",
                effect="which rank was ready last is unknown for them: record with HOROVOD_CACHE_CAPACITY=0",
            )
        )
    if has_steps:
        notes.append(
            Quality(
                problem="a timeline of Horovod marks no steps",
                effect="a step lasts until every tensor has been reduced once more",
            )
        )
    return notes


@lru_cache(maxsize=1)
def _timeline(path: str, name: str, size: int, mtime_ns: int) -> _Timeline:
    """Return the operations of a file, which is parsed once for all of its ranks."""
    builder = _Builder()
    damage: Counter[str] = Counter()
    with ByteStream(Path(path), name) as stream:
        text = EventText(stream, name)
        for block in text.blocks():
            builder.add(_DECODER.events(block, damage))
        is_cut = stream.problem is not None
    quality = damage_quality(damage, set(), Counter())
    if is_cut:
        problem = f"the file could be read only in part: {stream.problem}"
        quality.append(Quality(problem=problem, effect="later operations are missing", max_confidence="medium"))
    return builder.timeline(tuple(quality))


class _Builder:
    """Follows each tensor through its states, and notes the operations that ended."""

    def __init__(self) -> None:
        self._tensors: dict[int, _Tensor] = {}
        self._rank_of = _RankOf()
        self._epoch_us: int | None = None
        self._operations: list[_Operation] = []

    def add(self, events: list[_Event]) -> None:
        for event in events:
            if not 0 <= event.ts < MAX_US:
                continue
            tensor = self._tensors.get(event.pid)
            if tensor is None:
                tensor = self._tensors[event.pid] = _Tensor(len(self._tensors))
            if event.ph == "X":
                tensor.tick(self._rank_of[event.name], event.ts)
            elif event.ph == "B":
                tensor.begin(event.name, event.ts)
            elif event.ph == "E":
                self._end(tensor, event.ts)
            elif event.ph == "M":
                self._see(event.args)

    def _end(self, tensor: _Tensor, end_us: float) -> None:
        if tensor.is_negotiating:
            tensor.is_negotiating = False
        elif tensor.depth:
            tensor.depth -= 1
        elif tensor.kind is not None:
            start_us = tensor.start_us
            operation = _Operation(tensor.number, tensor.kind, tensor.ready_us, start_us, max(end_us, start_us))
            self._operations.append(operation)
            tensor.kind = None

    def _unfinished(self) -> Iterator[dict[int, float]]:
        """Yield the readiness of ranks for operations that did not end."""
        for tensor in self._tensors.values():
            yield tensor.negotiated_us
            yield tensor.ready_us

    def _see(self, arguments: _Arguments | None) -> None:
        epoch_us = None if arguments is None else arguments.epoch_us
        if isinstance(epoch_us, int):
            self._epoch_us = epoch_us if epoch_us and is_placed(epoch_us) else None

    def timeline(self, quality: tuple[Quality, ...]) -> _Timeline:
        operations = sorted(self._operations, key=lambda operation: operation.start_us)
        kind_names = sorted({operation.kind for operation in operations})
        number_of = {kind: number for number, kind in enumerate(kind_names)}
        ready_us = tuple(operation.ready_us for operation in operations)
        firsts_us = (min(operation.ready_us.values(), default=operation.start_us) for operation in operations)
        return _Timeline(
            tensors=np.array([operation.tensor for operation in operations], np.int64),
            kinds=np.array([number_of[operation.kind] for operation in operations], np.int64),
            kind_names=tuple(kind_names),
            ready_us=ready_us,
            start_us=np.array([operation.start_us for operation in operations], np.float64),
            end_us=np.array([operation.end_us for operation in operations], np.float64),
            first_us=min(firsts_us, default=0.0),
            ranks=tuple(sorted({*chain.from_iterable(ready_us), *chain.from_iterable(self._unfinished())})),
            epoch_us=self._epoch_us,
            quality=quality,
        )


class _RankOf(dict[str, int | None]):
    """The rank that a tick is named by; None for other names."""

    def __missing__(self, name: str) -> int | None:
        is_number = name.isascii() and name.isdigit() and len(name) < _MOST_DIGITS
        rank = int(name) if is_number and int(name) < _MOST_RANKS else None
        self[name] = rank
        return rank
