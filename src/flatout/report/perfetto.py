"""A trace written back as Chrome JSON for ui.perfetto.dev, with Flatout's own tracks above the original ones.

In: for each rank its event table, its segments and its charged waits. Out: a file, written as it is made; gzip if its
name ends in `.gz`. A process for each rank; its first tracks are "Flatout parts" and "Flatout blame", then host threads
and GPU streams. Times are exact: microseconds with three decimals made from integer nanoseconds, since the earliest
event. Perfetto drops events that overlap on a track (google/perfetto#4280), so those get another lane.
"""

from __future__ import annotations

import gzip
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import msgspec
import numpy as np
from numpy.typing import NDArray

from flatout import __version__, units
from flatout.records.diagnosis import Part
from flatout.records.events import GPU_WORK, NULL, EventTable, Kind
from flatout.records.job import BlameSlice
from flatout.records.timeline import Segments
from flatout.report.files import open_new
from flatout.report.parts import PART_LABELS, part_label

EVENTS_PER_WRITE = 4096
TRACKS_PER_RANK = 100_000  # thread ids are unique over all ranks, and no thread id is a process id
PARTS_TRACK, BLAME_TRACK, FIRST_ORIGINAL_TRACK = 1, 2, 3

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_CATEGORIES = {
    Kind.CPU_OP: "cpu_op",
    Kind.USER_ANNOTATION: "user_annotation",
    Kind.GPU_ANNOTATION: "gpu_user_annotation",
    Kind.RUNTIME: "cuda_runtime",
    Kind.KERNEL: "kernel",
    Kind.MEMCPY: "gpu_memcpy",
    Kind.MEMSET: "gpu_memset",
    Kind.SYNC: "cuda_sync",
    Kind.PYTHON: "python_function",
    Kind.OVERHEAD: "overhead",
}


class PerfettoRank(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One rank as it is drawn. `segments` and `slices` are on the job's common clock."""

    rank: int
    events: EventTable
    segments: Segments
    slices: tuple[BlameSlice, ...] = ()  # of this waiting rank
    clock_offset_ns: int = 0  # added to the times of `events` to put them on the common clock


def write_perfetto(
    path: str | Path, ranks: Iterable[PerfettoRank], *, origin_ns: int | None = None, force: bool = False
) -> None:
    """Write the trace; OutputError where the file exists (without `force`) or cannot be written.

    Times count from `origin_ns`, by default the earliest of all ranks; where it is given, ranks are taken one by one,
    so that a generator need never hold two of them.
    """
    if origin_ns is None:
        ranks = list(ranks)
        origin_ns = min((start for rank in ranks for start in _first_starts(rank)), default=0)
    with open_new(path, force=force) as file:
        if str(path).endswith(".gz"):
            with gzip.GzipFile(filename="", fileobj=file, mode="wb", compresslevel=5, mtime=0) as compressed:
                _write(compressed, ranks, origin_ns)
        else:
            _write(file, ranks, origin_ns)


def _first_starts(rank: PerfettoRank) -> list[int]:
    starts = [int(rank.events.start_ns[0]) + rank.clock_offset_ns] if rank.events.num_events else []
    return starts + ([int(rank.segments.start_ns[0])] if len(rank.segments.part) else [])


def _write(file: BinaryIO | gzip.GzipFile, ranks: Iterable[PerfettoRank], origin_ns: int) -> None:
    file.write(f'{{"displayTimeUnit":"ns","otherData":{{"flatout":"{__version__}"}},"traceEvents":[\n'.encode())
    pending: list[str] = []
    separator = ""
    for rank in ranks:
        for line in _rank_lines(rank, origin_ns):
            pending.append(line)
            if len(pending) >= EVENTS_PER_WRITE:
                file.write((separator + ",\n".join(pending)).encode())
                pending.clear()
                separator = ",\n"
    if pending:
        file.write((separator + ",\n".join(pending)).encode())
    file.write(b"\n]}\n")


def _rank_lines(rank: PerfettoRank, origin_ns: int) -> Iterator[str]:
    process = rank.rank + 1  # process 0 is Perfetto's idle process
    first_track = process * TRACKS_PER_RANK
    yield _metadata(process, 0, "process_name", f"rank {rank.rank}")
    yield f'{{"ph":"M","pid":{process},"tid":0,"name":"process_sort_index","args":{{"sort_index":{rank.rank}}}}}'
    yield from _track(process, first_track + PARTS_TRACK, "Flatout parts")
    yield from _slice_lines(_part_slices(rank.segments), process, first_track + PARTS_TRACK, origin_ns)
    if rank.slices:
        yield from _track(process, first_track + BLAME_TRACK, "Flatout blame")
        waits = _blame_slices(rank.slices, rank.segments)
        yield from _slice_lines(waits, process, first_track + BLAME_TRACK, origin_ns)
    names = [_quoted(name) for name in rank.events.names]
    arrows = _arrows(rank.events)
    for track, (label, rows) in enumerate(_lanes(rank.events), start=first_track + FIRST_ORIGINAL_TRACK):
        yield from _track(process, track, label)
        for first in range(0, len(rows), EVENTS_PER_WRITE):
            chunk = rows[first : first + EVENTS_PER_WRITE]
            yield from _event_lines(rank, chunk, names, arrows, track, origin_ns)


def _metadata(process: int, track: int, name: str, value: str) -> str:
    return f'{{"ph":"M","pid":{process},"tid":{track},"name":"{name}","args":{{"name":{_quoted(value)}}}}}'


def _track(process: int, track: int, label: str) -> Iterator[str]:
    yield _metadata(process, track, "thread_name", label)
    yield f'{{"ph":"M","pid":{process},"tid":{track},"name":"thread_sort_index","args":{{"sort_index":{track}}}}}'


def _quoted(text: str) -> str:
    """A JSON string. Control characters, which Perfetto refuses even escaped (#598), are spelled out."""
    text = _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text)
    return msgspec.json.encode(text.encode("utf-8", "backslashreplace").decode()).decode()


def _time(ns: int) -> str:
    sign = "-" if ns < 0 else ""
    return f"{sign}{abs(ns) // 1000}.{abs(ns) % 1000:03d}"


def _part_slices(segments: Segments) -> Iterator[tuple[str, int, int]]:
    """(part, start, end), neighbours of one part as one."""
    if not len(segments.part):
        return
    begins = np.flatnonzero(np.diff(segments.part, prepend=segments.part[:1] + 1))
    ends = np.append(begins[1:], len(segments.part)) - 1
    labels = [PART_LABELS[part.name.lower()] for part in Part]
    columns = (segments.part[begins], segments.start_ns[begins], segments.end_ns[ends])
    for part, start_ns, end_ns in zip(*(column.tolist() for column in columns), strict=True):
        yield labels[part], start_ns, end_ns


def _blame_slices(slices: Sequence[BlameSlice], segments: Segments) -> Iterator[tuple[str, int, int]]:
    """(who is waited for, start, end): each charged wait laid over the waiting that follows its start."""
    waits: dict[int, list[BlameSlice]] = defaultdict(list)
    for piece in slices:
        waits[piece.start_ns].append(piece)
    is_wait = segments.part == Part.WAIT
    starts, ends = segments.start_ns[is_wait].tolist(), segments.end_ns[is_wait].tolist()
    at, done_ns = 0, -(2**63)
    for start_ns, pieces in sorted(waits.items()):
        text = _blame_text(pieces)
        left_ns = round(sum(piece.wait_ns for piece in pieces))
        done_ns = max(done_ns, start_ns)
        while left_ns > 0 and at < len(starts):
            begin_ns = max(starts[at], done_ns)
            end_ns = min(ends[at], begin_ns + left_ns)
            if end_ns > begin_ns:
                yield text, begin_ns, end_ns
                left_ns -= end_ns - begin_ns
                done_ns = end_ns
            if left_ns > 0:
                at += 1


def _blame_text(pieces: Sequence[BlameSlice]) -> str:
    total_ns = sum(piece.wait_ns for piece in pieces) or 1.0
    causes = sorted(pieces, key=lambda piece: -piece.wait_ns)
    if len(causes) == 1:
        return f"waits for rank {causes[0].blamed_rank}: {part_label(causes[0].part)}"
    texts = [
        f"rank {cause.blamed_rank}: {part_label(cause.part)} {units.percent(cause.wait_ns / total_ns)}"
        for cause in causes
        if cause.wait_ns >= 0.01 * total_ns
    ]
    return f"waits for {', '.join(texts)}"


def _slice_lines(slices: Iterable[tuple[str, int, int]], process: int, track: int, origin_ns: int) -> Iterator[str]:
    for text, start_ns, end_ns in slices:
        if end_ns > start_ns:
            yield (
                f'{{"ph":"X","cat":"flatout","name":{_quoted(text)},"pid":{process},"tid":{track},'
                f'"ts":{_time(start_ns - origin_ns)},"dur":{_time(end_ns - start_ns)}}}'
            )


def _event_lines(
    rank: PerfettoRank,
    rows: NDArray[np.int64],
    names: Sequence[str],
    arrows: NDArray[np.int64],
    track: int,
    origin_ns: int,
) -> Iterator[str]:
    events = rank.events
    starts = events.start_ns[rows] + (rank.clock_offset_ns - origin_ns)
    columns = (events.kind, events.name, events.duration_ns, events.correlation, events.num_bytes, arrows)
    values = zip(starts.tolist(), *(column[rows].tolist() for column in columns), strict=True)
    for start_ns, kind, name, duration_ns, correlation, num_bytes, arrow in values:
        arguments = [f'"correlation":{correlation}'] if correlation != NULL else []
        if num_bytes != NULL:
            arguments.append(f'"bytes":{num_bytes}')
        place = f'"pid":{rank.rank + 1},"tid":{track},"ts":{_time(start_ns)}'
        yield (
            f'{{"ph":"X","cat":"{_CATEGORIES[kind]}","name":{names[name]},{place},'
            f'"dur":{_time(duration_ns)},"args":{{{",".join(arguments)}}}}}'
        )
        if arrow != NULL:
            end = '"ph":"s"' if kind == Kind.RUNTIME else '"ph":"f","bp":"e"'
            yield f'{{{end},"cat":"launch","name":"launch","id":{rank.rank * 2**32 + arrow},{place}}}'


def _arrows(events: EventTable) -> NDArray[np.int64]:
    """The number of the arrow that leaves a launching call and ends at the first GPU work that it launched."""
    has_correlation = events.correlation != NULL
    calls = np.flatnonzero(has_correlation & events.is_kind(Kind.RUNTIME))
    work = np.flatnonzero(has_correlation & events.is_kind(*GPU_WORK))
    call_ids, first_call = np.unique(events.correlation[calls], return_index=True)
    work_ids, first_work = np.unique(events.correlation[work], return_index=True)
    _, in_calls, in_work = np.intersect1d(call_ids, work_ids, assume_unique=True, return_indices=True)
    arrows = np.full(events.num_events, NULL, dtype=np.int64)
    arrows[calls[first_call[in_calls]]] = arrows[work[first_work[in_work]]] = np.arange(len(in_calls))
    return arrows


def _lanes(events: EventTable) -> Iterator[tuple[str, NDArray[np.int64]]]:
    """(label, rows) of each lane: host threads, then GPU streams by device and stream; each free of partial overlap."""
    is_note = events.is_kind(Kind.GPU_ANNOTATION, Kind.SYNC)
    is_device = events.is_kind(*GPU_WORK) | is_note
    has_place = is_device & ((events.device != NULL) | (events.stream != NULL))
    streams, stream = np.unique(events.stream, return_inverse=True)
    # One number a track, in the order of the tracks: host before device, work before notes on the same stream.
    track = is_device.astype(np.int64)
    track = track * (int(events.device.max(initial=0)) + 2) + np.where(is_device, events.device + 1, 0)
    track = track * (len(streams) + 1) + np.where(is_device, stream, 0)
    track = track * 2 + is_note
    track = track * (len(events.threads) + 1) + np.where(has_place, 0, events.thread + 1)
    order = np.argsort(track, kind="stable")
    bounds = np.flatnonzero(np.diff(track[order], prepend=-1, append=-1))
    for first, last in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        rows = order[first:last]
        is_host, is_work = not is_device[rows[0]], not is_note[rows[0]]
        label = _label(events, int(rows[0]), is_host=is_host, is_work=is_work)
        for number, lane in enumerate(_free_of_overlap(events, rows, may_nest=is_host or not is_work), start=1):
            yield label if number == 1 else f"{label}, overlapping {number}", lane


def _label(events: EventTable, row: int, *, is_host: bool, is_work: bool) -> str:
    device, stream, thread = int(events.device[row]), int(events.stream[row]), int(events.thread[row])
    process, name = events.threads[thread] if thread != NULL else ("?", "?")
    if is_host and process == "-1":  # where Kineto draws its own overhead
        return "profiler overhead"
    if is_host:
        return f"thread {name} (process {process})"
    if device == NULL and stream == NULL:
        place = f"device {process} {name}"
    else:
        place = f"GPU {'?' if device == NULL else device} stream {'?' if stream == NULL else stream}"
    return place if is_work else f"{place}, annotations"


def _free_of_overlap(events: EventTable, rows: NDArray[np.int64], *, may_nest: bool) -> list[NDArray[np.int64]]:
    """The rows (by start, longest first) in as few lanes as their overlaps ask for; nested events share a lane."""
    starts, ends = events.start_ns[rows], events.end_ns[rows]
    if (starts[1:] >= ends[:-1]).all():
        return [rows]
    lane_of = np.zeros(len(rows), dtype=np.int64)
    open_ends: list[list[int]] = []  # of each lane, the ends of the events that are open, outermost first
    for index, (start_ns, end_ns) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        for lane, stack in enumerate(open_ends):
            while stack and stack[-1] <= start_ns:
                stack.pop()
            if not stack or (may_nest and end_ns <= stack[-1]):
                lane_of[index] = lane
                stack.append(end_ns)
                break
        else:
            lane_of[index] = len(open_ends)
            open_ends.append([end_ns])
    return [rows[lane_of == lane] for lane in range(len(open_ends))]
