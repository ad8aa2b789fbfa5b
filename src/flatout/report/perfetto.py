"""Write traces as Chrome JSON for ui.perfetto.dev: every original event, below Flatout's own tracks.

In: the events of each rank's file, its segments and its charged waits. Out: a file, written in a stream; compressed if
its name ends in `.gz`. Each rank is a process, whose first tracks are "Flatout parts" and "Flatout blame", followed by
host threads and GPU streams. Only the fields of an event that must differ between ranks are rewritten: process, thread,
id, and the times (on the job's common clock, in microseconds with three decimals, from integer nanoseconds). All other
fields, with all arguments, are copied as text.
"""

from __future__ import annotations

import gzip
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Protocol

import msgspec
import numpy as np

from flatout import __version__, units
from flatout.records.diagnosis import Part
from flatout.records.events import OriginalEvent
from flatout.records.job import BlameSlice
from flatout.records.timeline import Segments
from flatout.report.files import open_new
from flatout.report.parts import PART_LABELS, part_label
from flatout.report.perfetto_tracks import Tracks, lay_out

EVENTS_PER_WRITE = 4096
TRACKS_PER_RANK = 100_000  # thread ids are unique over all ranks, and no thread id is a process id
IDS_PER_RANK = 1 << 32
PARTS_TRACK, BLAME_TRACK, FIRST_ORIGINAL_TRACK = 1, 2, 3

_NAMES_OF_TRACKS = {"process_name", "process_labels", "process_sort_index", "thread_name", "thread_sort_index"}
_REWRITTEN = {"pid", "tid", "ts", "dur", "id", "bind_id"}
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
# Escapes of control characters: valid JSON that Perfetto refuses (#598).
_ESCAPE = re.compile(rb"(\\\\)|\\(u00[01][0-9a-fA-F]|u007[fF])")


class OriginalEvents(Protocol):
    """The events of a rank's file. They are iterated twice: to find their tracks, and to write them."""

    def __iter__(self) -> Iterator[OriginalEvent]: ...

    @property
    def metadata(self) -> dict[str, msgspec.Raw]:
        """Return the fields around the events in the file; available only after an iteration."""


class PerfettoRank(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The data to draw for one rank. `segments` and `slices` are on the job's common clock."""

    rank: int
    originals: OriginalEvents
    segments: Segments
    slices: tuple[BlameSlice, ...] = ()  # of this waiting rank
    clock_offset_ns: int = 0  # added to the times of `originals` to put them on the common clock


def write_perfetto(
    path: str | Path, ranks: Iterable[PerfettoRank], *, origin_ns: int, force: bool = False
) -> dict[int, int]:
    """Write the trace. Raises OutputError if the file exists (without `force`) or cannot be written.

    Times count from `origin_ns`. Ranks are read one by one, so that a generator never holds two of them. Returns the
    number of skipped events of each rank that has any: events without a usable time.
    """
    with open_new(path, force=force) as file:
        if str(path).endswith(".gz"):
            with gzip.GzipFile(filename="", fileobj=file, mode="wb", compresslevel=5, mtime=0) as compressed:
                return _write(compressed, ranks, origin_ns)
        return _write(file, ranks, origin_ns)


def _write(file: BinaryIO | gzip.GzipFile, ranks: Iterable[PerfettoRank], origin_ns: int) -> dict[int, int]:
    file.write(f'{{"displayTimeUnit":"ns","otherData":{{"flatout":"{__version__}"}},"traceEvents":[\n'.encode())
    pending: list[bytes] = []
    separator = b""
    num_skipped: dict[int, int] = {}
    metadata: list[bytes] = []
    for rank in ranks:
        tracks = lay_out(rank.originals)
        if tracks.num_without_time:
            num_skipped[rank.rank] = tracks.num_without_time
        for line in _rank_lines(rank, tracks, origin_ns):
            pending.append(line)
            if len(pending) >= EVENTS_PER_WRITE:
                file.write(separator + b",\n".join(pending))
                pending.clear()
                separator = b",\n"
        metadata.append(b'"%d":%b' % (rank.rank, _object(rank.originals.metadata.items())))
    if pending:
        file.write(separator + b",\n".join(pending))
    file.write(b'\n],"ranks":{%b}}\n' % b",\n".join(metadata))
    return num_skipped


def _rank_lines(rank: PerfettoRank, tracks: Tracks, origin_ns: int) -> Iterator[bytes]:
    process = rank.rank + 1  # process 0 is Perfetto's idle process
    first_track = process * TRACKS_PER_RANK
    yield _metadata(process, 0, "process_name", f'"name":{_quoted(f"rank {rank.rank}")}')
    yield _metadata(process, 0, "process_sort_index", f'"sort_index":{rank.rank}')
    yield from _track(process, first_track + PARTS_TRACK, "Flatout parts")
    yield from _slice_lines(_part_slices(rank.segments), process, first_track + PARTS_TRACK, origin_ns)
    if rank.slices:
        yield from _track(process, first_track + BLAME_TRACK, "Flatout blame")
        waits = _blame_slices(rank.slices, rank.segments)
        yield from _slice_lines(waits, process, first_track + BLAME_TRACK, origin_ns)
    for track, label in enumerate(tracks.labels, start=first_track + FIRST_ORIGINAL_TRACK):
        yield from _track(process, track, label)
    yield from _original_lines(rank, tracks, process, first_track + FIRST_ORIGINAL_TRACK, origin_ns)


def _metadata(process: int, track: int, name: str, argument: str) -> bytes:
    return f'{{"ph":"M","pid":{process},"tid":{track},"name":"{name}","args":{{{argument}}}}}'.encode()


def _track(process: int, track: int, label: str) -> Iterator[bytes]:
    yield _metadata(process, track, "thread_name", f'"name":{_quoted(label)}')
    yield _metadata(process, track, "thread_sort_index", f'"sort_index":{track}')


def _quoted(text: str) -> str:
    """Return a JSON string. Perfetto refuses even escaped control characters (#598), so they are written as text."""
    text = _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text)
    return msgspec.json.encode(text.encode("utf-8", "backslashreplace").decode()).decode()


def _time(ns: int) -> str:
    sign = "-" if ns < 0 else ""
    return f"{sign}{abs(ns) // 1000}.{abs(ns) % 1000:03d}"


def _part_slices(segments: Segments) -> Iterator[tuple[str, int, int]]:
    """Yield part, start and end; neighbouring segments of the same part are merged."""
    if not len(segments.part):
        return
    begins = np.flatnonzero(np.diff(segments.part, prepend=segments.part[:1] + 1))
    ends = np.append(begins[1:], len(segments.part)) - 1
    labels = [PART_LABELS[part.name.lower()] for part in Part]
    columns = (segments.part[begins], segments.start_ns[begins], segments.end_ns[ends])
    for part, start_ns, end_ns in zip(*(column.tolist() for column in columns), strict=True):
        yield labels[part], start_ns, end_ns


def _blame_slices(slices: Sequence[BlameSlice], segments: Segments) -> Iterator[tuple[str, int, int]]:
    """Yield label, start and end: each charged wait is placed on the waiting time after its start."""
    waits: dict[int, list[BlameSlice]] = defaultdict(list)
    for piece in slices:
        waits[piece.start_ns].append(piece)
    is_wait = segments.part == Part.WAIT
    starts, ends = segments.start_ns[is_wait].tolist(), segments.end_ns[is_wait].tolist()
    index, done_ns = 0, -(2**63)
    for start_ns, pieces in sorted(waits.items()):
        text = _blame_text(pieces)
        remaining_ns = round(sum(piece.wait_ns for piece in pieces))
        done_ns = max(done_ns, start_ns)
        while remaining_ns > 0 and index < len(starts):
            begin_ns = max(starts[index], done_ns)
            end_ns = min(ends[index], begin_ns + remaining_ns)
            if end_ns > begin_ns:
                yield text, begin_ns, end_ns
                remaining_ns -= end_ns - begin_ns
                done_ns = end_ns
            if remaining_ns > 0:
                index += 1


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


def _slice_lines(slices: Iterable[tuple[str, int, int]], process: int, track: int, origin_ns: int) -> Iterator[bytes]:
    for text, start_ns, end_ns in slices:
        if end_ns > start_ns:
            yield (
                f'{{"ph":"X","cat":"flatout","name":{_quoted(text)},"pid":{process},"tid":{track},'
                f'"ts":{_time(start_ns - origin_ns)},"dur":{_time(end_ns - start_ns)}}}'
            ).encode()


def _original_lines(
    rank: PerfettoRank, tracks: Tracks, process: int, first_track: int, origin_ns: int
) -> Iterator[bytes]:
    """Yield the file's events. Events that start together on a track are put in the order that Perfetto nests."""
    shift_ns = rank.clock_offset_ns - origin_ns
    ids: dict[bytes, int] = {}
    held: dict[int, list[tuple[int, bytes]]] = defaultdict(list)
    for index, event in enumerate(rank.originals):
        fields = event.fields
        if event.phase == "M":
            name = bytes(fields.get("name", b"")).strip(b'"').decode("utf-8", "replace")
            if name in _NAMES_OF_TRACKS:
                continue  # Flatout writes these itself
        elif event.start_ns is None:
            continue
        rewritten = f'"pid":{process},"tid":{first_track + int(tracks.track[index])}'
        if event.start_ns is not None:
            rewritten += f',"ts":{_time(event.start_ns + shift_ns)}'
        if event.phase == "X" or "dur" in fields:
            rewritten += f',"dur":{_time(event.duration_ns)}'
        for key in ("id", "bind_id"):
            if key in fields:
                number = ids.setdefault(bytes(fields[key]), len(ids))
                rewritten += f',"{key}":{process * IDS_PER_RANK + number}'
        line = _object(((key, raw) for key, raw in fields.items() if key not in _REWRITTEN), rewritten.encode())
        group = int(tracks.group[index])
        if group < 0:
            yield line
            continue
        held[group].append((int(tracks.position[index]), line))
        if len(held[group]) == tracks.group_sizes[group]:
            yield from (text for _, text in sorted(held.pop(group)))


def _object(fields: Iterable[tuple[str, msgspec.Raw]], last: bytes = b"") -> bytes:
    parts = [b"%b:%b" % (msgspec.json.encode(key), bytes(raw)) for key, raw in fields]
    if last:
        parts.append(last)
    text = b"{" + b",".join(parts) + b"}"
    if b"\\u00" not in text:
        return text
    return _ESCAPE.sub(lambda match: match[1] or rb"\\" + match[2], text)
