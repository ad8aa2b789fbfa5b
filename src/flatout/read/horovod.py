"""Read a timeline of Horovod (HOROVOD_TIMELINE), which rank 0 writes for all ranks, as an event table of one rank.

In: a `TraceSource`. Out: an `EventTable` of the rank in `source.part`, with one event per operation: from the moment at
which that rank was ready for it, to its end on all ranks. The file of all ranks raises SeveralRanksError. What a rank
does between two operations is not recorded, so it is unknown. Times and names: horovod/common/timeline.cc.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

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
from flatout.records.events import CollectiveArgs, EventTable, Kind, Quality, TraceFormat

_NEGOTIATE = "NEGOTIATE_"
_EPOCH = "start_time_since_epoch_in_micros"
_MOST_RANKS = 1 << 16
_MIN_ROUNDS = 2  # of all tensors, for steps to be known
_UNSHARED = 1 << 48  # this number and higher ones are of one rank alone


class _Event(msgspec.Struct, gc=False):
    ph: str = ""
    name: str = ""
    ts: float = 0.0
    pid: int = 0
    args: Any = None


class _Operation(msgspec.Struct, kw_only=True):
    """One operation on a tensor; times in us."""

    tensor: int
    kind: str = ""
    ready_us: dict[int, float] = {}  # by rank
    start_us: float = 0.0
    end_us: float = 0.0


class _Timeline(msgspec.Struct, frozen=True, kw_only=True):
    operations: tuple[_Operation, ...]
    ranks: tuple[int, ...]
    epoch_us: int | None
    quality: tuple[Quality, ...]


_DECODER = EventDecoder(_Event)


def read_horovod(source: TraceSource) -> EventTable:
    """Read one rank. Raises InputError if the file has no operation, SeveralRanksError if it names several ranks."""
    status = Path(source.path).stat()
    timeline = _timeline(source.path, source.name, status.st_size, status.st_mtime_ns)
    if not timeline.operations:
        raise InputError(f"{source.name} is a timeline of Horovod without a complete operation", hint="record it again")
    if source.part is None and len(timeline.ranks) > 1:
        parts = tuple(RankPart(rank=rank, by="the ranks in its events") for rank in timeline.ranks)
        raise SeveralRanksError(f"{source.name} has the events of {len(parts)} ranks", parts)
    rank = source.part.rank if source.part is not None else 0
    return _table(timeline, rank or 0, source.name)


def _table(timeline: _Timeline, rank: int, name: str) -> EventTable:
    operations = [
        operation for operation in timeline.operations if rank in operation.ready_us or not operation.ready_us
    ]
    kinds = sorted({operation.kind for operation in operations})
    names = [f"mpi:{kind}" for kind in kinds]
    marks = _rounds(operations)
    names += [f"ProfilerStep#{number}" for number in range(len(marks))]
    base_ns = (timeline.epoch_us or 0) * 1000
    numbers = {id(operation): number for number, operation in enumerate(timeline.operations)}
    starts = [operation.ready_us.get(rank, operation.start_us) for operation in operations]
    ends = [operation.end_us for operation in operations]
    codes = [kinds.index(operation.kind) for operation in operations]
    sequences = [
        numbers[id(each)] if each.ready_us else _UNSHARED + numbers[id(each)] * _MOST_RANKS + rank
        for each in operations
    ]
    count = len(operations)
    start_ns, duration_ns = spans_ns(
        [*starts, *(mark[0] for mark in marks)],
        [*ends, *(mark[1] for mark in marks)],
    )
    columns: Columns = {
        "kind": np.full(count + len(marks), Kind.USER_ANNOTATION, np.int64),
        "name": np.array(codes + [len(kinds) + number for number in range(len(marks))], np.int64),
        "start_ns": base_ns + start_ns,
        "duration_ns": duration_ns,
        "thread": np.zeros(count + len(marks), np.int64),
        "collective": np.array([*codes, *[-1] * len(marks)], np.int64),
        "sequence": np.array([*sequences, *[-1] * len(marks)], np.int64),
    }
    source = Source(
        path=name,
        format=TraceFormat.HOROVOD,
        metadata=FileMetadata(rank=rank, world_size=len(timeline.ranks) or None),
        names=names,
        threads=[("horovod", f"rank {rank}")],
        collectives=[CollectiveArgs(operation=kind) for kind in kinds],
        quality=(*timeline.quality, *_lacks(timeline, bool(marks))),
        knows_host=False,
    )
    return assemble(columns, source)


def _rounds(operations: list[_Operation]) -> list[tuple[float, float]]:
    """Return the steps: each lasts until all tensors that are in every step have been reduced once more."""
    ends: dict[int, list[float]] = defaultdict(list)
    for operation in operations:
        ends[operation.tensor].append(operation.end_us)
    if not ends:
        return []
    num_rounds = max(map(len, ends.values()))
    if num_rounds < _MIN_ROUNDS:
        return []
    of_each_round = [of_tensor for of_tensor in ends.values() if len(of_tensor) == num_rounds]
    round_ends = [max(of_tensor[number] for of_tensor in of_each_round) for number in range(num_rounds)]
    begin = min(min(operation.ready_us.values(), default=operation.start_us) for operation in operations)
    return list(zip([begin, *round_ends[:-1]], round_ends, strict=True))


def _lacks(timeline: _Timeline, has_steps: bool) -> list[Quality]:
    notes = [
        Quality(
            problem="a timeline of Horovod has the operations on tensors, and nothing of what ranks do in between",
            effect="compute, data loading and the host's work are unknown: a late rank is named without its cause",
        )
    ]
    num_cached = sum(not operation.ready_us for operation in timeline.operations)
    if num_cached:
        notes.append(
            Quality(
                problem=f"{num_cached:,} of {len(timeline.operations):,} operations were not negotiated: their answer"
                " was cached",
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
            for event in _DECODER.events(block, damage):
                builder.add(event)
        is_cut = stream.problem is not None
    quality = damage_quality(damage, set(), Counter())
    if is_cut:
        problem = f"the file could be read only in part: {stream.problem}"
        quality.append(Quality(problem=problem, effect="later operations are missing", max_confidence="medium"))
    return _Timeline(
        operations=tuple(sorted(builder.operations, key=lambda operation: operation.start_us)),
        ranks=tuple(sorted(builder.ranks)),
        epoch_us=builder.epoch_us,
        quality=tuple(quality),
    )


class _Builder:
    """Follows each tensor through its states: negotiated, then the operation with its activities."""

    def __init__(self) -> None:
        self.operations: list[_Operation] = []
        self.ranks: set[int] = set()
        self.epoch_us: int | None = None
        self._ready: dict[int, dict[int, float]] = {}  # by tensor, of the negotiation in progress or just ended
        self._running: dict[int, _Operation] = {}
        self._depth: dict[int, int] = {}  # of activities within the operation of a tensor
        self._is_negotiating: set[int] = set()

    def add(self, event: _Event) -> None:
        if not is_placed(event.ts):
            return
        if event.ph == "B":
            self._begin(event)
        elif event.ph == "X":
            self._tick(event)
        elif event.ph == "E":
            self._end(event)
        elif event.ph == "M" and isinstance(event.args, dict) and isinstance(event.args.get(_EPOCH), int):
            epoch_us = event.args[_EPOCH]
            self.epoch_us = epoch_us if epoch_us and is_placed(epoch_us) else None

    def _begin(self, event: _Event) -> None:
        if event.name.startswith(_NEGOTIATE):
            self._ready[event.pid] = {}
            self._is_negotiating.add(event.pid)
        elif event.pid in self._running:
            self._depth[event.pid] += 1
        else:
            ready_us = self._ready.pop(event.pid, {})
            kind = event.name.lower() or "unknown"
            self._running[event.pid] = _Operation(tensor=event.pid, kind=kind, ready_us=ready_us, start_us=event.ts)
            self._depth[event.pid] = 0

    def _tick(self, event: _Event) -> None:
        rank = int(event.name) if event.name.isascii() and event.name.isdigit() and len(event.name) < 8 else _MOST_RANKS
        if event.pid in self._is_negotiating and rank < _MOST_RANKS:
            self._ready[event.pid].setdefault(rank, event.ts)
            self.ranks.add(rank)

    def _end(self, event: _Event) -> None:
        if event.pid in self._is_negotiating:
            self._is_negotiating.discard(event.pid)
        elif self._depth.get(event.pid, 0) > 0:
            self._depth[event.pid] -= 1
        elif event.pid in self._running:
            operation = self._running.pop(event.pid)
            operation.end_us = max(event.ts, operation.start_us)
            self.operations.append(operation)
