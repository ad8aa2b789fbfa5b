"""Choose the track of each event, and the order of events that start at the same time.

In: a file's events. Out: `Tracks`: host threads, then GPU streams by device and stream, then the rest. Perfetto nests
the events of a track and drops or misplaces those that overlap partly (google/perfetto#4280), as kernels of one stream
can: these get another lane. Of events that start together, Perfetto needs the longest first, and arrows after the
events that they are tied to; the order in a file does not guarantee that.
"""

from __future__ import annotations

import re
from array import array
from collections import defaultdict
from collections.abc import Iterable

import msgspec
import numpy as np
from numpy.typing import NDArray

from flatout.records.events import GPU_WORK, Kind, OriginalEvent

Place = tuple[int | str, int | str, bool]  # process, thread, and whether it holds annotations of the device

_NOTES = (Kind.GPU_ANNOTATION, Kind.SYNC)


class Tracks(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The tracks of a file. Each column has one entry per event, in the order of the file."""

    labels: tuple[str, ...]  # labels of the tracks, in drawing order
    track: NDArray[np.int64]  # index into `labels`
    group: NDArray[np.int64]  # events that start together and are in the wrong order in the file; -1 for all others
    position: NDArray[np.int64]  # order of the events of a group
    group_sizes: dict[int, int]
    num_without_time: int  # events without a time, except metadata, which needs none


class _Seen:
    """Counts and places of the events, collected in one iteration."""

    def __init__(self, events: Iterable[OriginalEvent]) -> None:
        self.places: dict[Place, int] = {}
        self.has_work: set[Place] = set()
        self.thread_names: dict[Place, str] = {}
        self.num_without_time = 0
        place, start_ns, duration_ns, drawn = array("q"), array("q"), array("q"), array("b")
        for event in events:
            key = (event.process, event.thread, event.kind in _NOTES and event.phase == "X")
            if event.phase == "M":
                self._note_name(event, key)
            elif event.start_ns is None:
                self.num_without_time += 1
            if event.kind in GPU_WORK:
                self.has_work.add(key)
            place.append(self.places.setdefault(key, len(self.places)))
            start_ns.append(event.start_ns or 0)
            duration_ns.append(event.duration_ns)
            drawn.append(_drawn(event))
        self.place = np.array(place, np.int64)
        self.start_ns = np.array(start_ns, np.int64)
        self.duration_ns = np.array(duration_ns, np.int64)
        self.is_slice = np.array(drawn, np.int64) == 2
        self.is_drawn = np.array(drawn, np.int64) > 0

    def _note_name(self, event: OriginalEvent, key: Place) -> None:
        if bytes(event.fields.get("name", b"")) == b'"thread_name"' and "args" in event.fields:
            try:
                name = msgspec.json.decode(event.fields["args"]).get("name")
            except (msgspec.MsgspecError, UnicodeDecodeError, AttributeError):
                return
            if isinstance(name, str) and name.strip():
                self.thread_names[key] = name.strip()


def _drawn(event: OriginalEvent) -> int:
    """Return 0 for an event that is not drawn, 2 for a slice, and 1 for any other drawn event."""
    if event.start_ns is None or event.phase == "M":
        return 0
    return 2 if event.phase == "X" else 1


def lay_out(events: Iterable[OriginalEvent]) -> Tracks:
    """Assign each event of a file to a track."""
    seen = _Seen(events)
    ordered = sorted(seen.places, key=lambda place: _order(place, place in seen.has_work))
    labels: list[str] = []
    track = np.zeros(len(seen.place), np.int64)
    for place in ordered:
        rows = np.flatnonzero((seen.place == seen.places[place]) & seen.is_drawn)
        if not len(rows):
            continue
        label = _label(place, place in seen.has_work, seen.thread_names.get(place))
        slices = rows[seen.is_slice[rows]]
        slices = slices[np.lexsort((slices, -seen.duration_ns[slices], seen.start_ns[slices]))]
        lanes = _free_of_overlap(
            seen.start_ns[slices],
            seen.start_ns[slices] + seen.duration_ns[slices],
            may_nest=place not in seen.has_work,
        )
        track[rows] = len(labels)
        track[slices] = len(labels) + lanes
        labels += [label, *(f"{label}, overlapping {lane + 1}" for lane in range(1, int(lanes.max(initial=0)) + 1))]
    _tie_arrows(seen, track)
    group, position = _misplaced(seen, track)
    numbers, sizes = np.unique(group[group >= 0], return_counts=True)
    return Tracks(
        labels=tuple(labels),
        track=track,
        group=group,
        position=position,
        group_sizes=dict(zip(numbers.tolist(), sizes.tolist(), strict=True)),
        num_without_time=seen.num_without_time,
    )


def _number(value: int | str) -> int | None:
    """Return the number of a process or thread: `7` for 7, "7" and "stream 7"."""
    if isinstance(value, int):
        return value
    digits = re.search(r"\d+$", value)
    return int(digits[0]) if digits and len(digits[0]) < 16 else None


def _order(place: Place, has_work: bool) -> tuple[int, int, str, int, str, bool]:
    process, thread, is_note = place
    process_number, thread_number = _number(process), _number(thread)
    if has_work or is_note:
        group = 1  # GPU streams
    elif process_number is not None:
        group = 0  # host threads
    else:
        group = 2
    return group, process_number or 0, str(process), thread_number or 0, str(thread), is_note


def _label(place: Place, has_work: bool, name: str | None) -> str:
    process, thread, is_note = place
    if has_work or is_note:
        device, stream = _number(process), _number(thread)
        label = f"GPU {device} stream {stream}"
        if device is None or stream is None:
            label = f"device {process} {thread}"
        return f"{label}, annotations" if is_note else label
    if process == -1:  # the process in which Kineto draws its own overhead
        return "profiler overhead"
    if _number(process) is None:
        return f"{process}: {thread}" if process or thread else "no thread"
    return f"{name or f'thread {thread}'}, process {process}"


def _free_of_overlap(starts: NDArray[np.int64], ends: NDArray[np.int64], *, may_nest: bool) -> NDArray[np.int64]:
    """Assign a lane to each event (by start, longest first), with as few lanes as possible; nested events share one."""
    lane_of = np.zeros(len(starts), np.int64)
    if (starts[1:] >= ends[:-1]).all():
        return lane_of
    open_ends: list[list[int]] = []  # per lane, the ends of the open events, outermost first
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
    return lane_of


def _tie_arrows(seen: _Seen, track: NDArray[np.int64]) -> None:
    """Move arrows to the track of the slice that they start or end at, if a thread or stream has several tracks."""
    places_of: dict[tuple[int | str, int | str], list[int]] = defaultdict(list)
    for (process, thread, _), number in seen.places.items():
        places_of[process, thread].append(number)
    for numbers in places_of.values():
        rows = np.flatnonzero(np.isin(seen.place, numbers) & seen.is_drawn)
        slices, others = rows[seen.is_slice[rows]], rows[~seen.is_slice[rows]]
        if not len(others) or len(np.unique(track[rows])) < 2:
            continue
        slices = slices[
            np.argsort(track[slices], kind="stable")
        ]  # work precedes annotations, and the first lane precedes the others
        starts, first = np.unique(seen.start_ns[slices], return_index=True)
        at = np.searchsorted(starts, seen.start_ns[others]).clip(max=len(starts) - 1)
        is_tied = starts[at] == seen.start_ns[others]
        track[others[is_tied]] = track[slices[first[at[is_tied]]]]


def _misplaced(seen: _Seen, track: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Find groups of events that start together on a track, but are in the wrong order in the file.

    The order is wrong if a shorter event precedes a longer one, or an arrow precedes another event.
    """
    rows = np.flatnonzero(seen.is_drawn)
    keys = (rows, -seen.duration_ns[rows], ~seen.is_slice[rows], seen.start_ns[rows], track[rows])
    rows = rows[np.lexsort(keys)]
    is_new = np.ones(len(rows), np.bool_)
    is_new[1:] = (np.diff(seen.start_ns[rows]) != 0) | (np.diff(track[rows]) != 0)
    number = np.cumsum(is_new)
    wrong = np.unique(number[1:][~is_new[1:] & (np.diff(rows) < 0)])
    is_member = np.isin(number, wrong)
    group = np.full(len(track), -1, np.int64)
    position = np.zeros(len(track), np.int64)
    group[rows[is_member]] = number[is_member]
    position[rows] = np.arange(len(rows))
    return group, position
