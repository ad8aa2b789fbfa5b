"""Read an XSpace, the profile that XLA writes as `*.xplane.pb`: JAX, TensorFlow, PyTorch/XLA, on GPUs, TPUs and CPUs.

In: the bytes of a file. Out: an `XlaProfile` with the planes wanted. Of a damaged file, everything before the damage is
read, and the damage is noted. Fields and their numbers: tsl/profiler/protobuf/xplane.proto.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from flatout.read import wire
from flatout.read.decoded import Codes
from flatout.read.wire import Span, WireError
from flatout.read.xla_lines import NUMBERS, TEXTS, XlaLine, XlaProfile
from flatout.records.events import NULL, Quality

_PS_PER_NS = 1000
_EPOCH_NS = 1 << 60  # later than any time since a profile's start; a time above it is since 1970
_MAX_NS = 1 << 62
_MAX_TEXT_BYTES = 4096
_MOST_DENSE_IDS = 1 << 20  # ids up to here are looked up in a table
_CHUNK_EVENTS = 1 << 15  # decoded at once: their columns stay in the processor's cache
ENVIRONMENT = "Task Environment"


class _Plane(msgspec.Struct, kw_only=True):
    name: str = ""
    lines: list[Span] = []
    event_names: dict[int, str] = {}
    stat_names: dict[int, str] = {}
    stats: list[Span] = []


def read_xspace(data: bytes, wants: Callable[[str], bool]) -> XlaProfile:
    """Read the planes that are wanted by their name; the others are counted and skipped.

    `data` must end with `wire.PADDING`.
    """
    return _Reader(data).read((0, len(data) - len(wire.PADDING)), wants)


_COPY = " copy-done("  # in an instruction


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.messages = wire.Messages(data)
        self.names: Codes[str] = Codes()
        self.damage: list[str] = []
        self.num_bad_events = 0
        self.num_events = 0
        self.text_code: dict[bytes, int] = {}

    def read(self, span: Span, wants: Callable[[str], bool]) -> XlaProfile:
        planes, hostname = self._planes(span)
        stats = {plane.name: self._stats(plane) for plane in planes}
        environment = stats.get(ENVIRONMENT, {})
        start_ns = environment.get("profile_start_time")
        wanted = [self._line(plane, line, wants) for plane in planes for line in plane.lines]
        lines = [line for line in wanted if line is not None and len(line.start_ns)]
        devices = {name: _device_name(of_plane) for name, of_plane in stats.items()}
        return XlaProfile(
            lines=tuple(_shifted(line, start_ns) for line in lines),
            names=tuple(self.names),
            hostname=hostname,
            process=_process_id(stats),
            start_ns=start_ns if isinstance(start_ns, int) else None,
            device_names={name: device for name, device in devices.items() if device},
            quality=self._quality(),
            num_events=self.num_events,
        )

    def _planes(self, span: Span) -> tuple[list[_Plane], str | None]:
        """Return the planes of the file, and its host's name; None if it has none."""
        planes: list[_Plane] = []
        hostname = ""
        for number, value in self._fields(span, "the file"):
            if number == 1 and isinstance(value, tuple):
                planes.append(self._plane(value))
            elif number == 4 and isinstance(value, tuple):
                hostname = hostname or self._text(value)
        return planes, hostname or None

    def _fields(self, span: Span, what: str) -> list[tuple[int, int | Span]]:
        """Return the fields of a message, up to its damage, which is noted."""
        found: list[tuple[int, int | Span]] = []
        try:
            found.extend(wire.fields(self.data, span))
        except WireError:
            found = self._up_to_damage(span)
            self.damage.append(what)
        return found

    def _up_to_damage(self, span: Span) -> list[tuple[int, int | Span]]:
        """Return the fields before the damage; a message that goes beyond the end counts as one that ends there."""
        found: list[tuple[int, int | Span]] = []
        at = span[0]
        try:
            for number, value in wire.fields(self.data, span):
                found.append((number, value))
                at = value[1] if isinstance(value, tuple) else at
        except WireError:
            pass
        last = self._cut_message(at, span[1])
        return [*found, last] if last is not None else found

    def _cut_message(self, at: int, end: int) -> tuple[int, Span] | None:
        try:
            tag, at = wire.varint(self.data, at)
            size, at = wire.varint(self.data, at)
        except WireError:
            return None
        is_message = tag & 7 == wire.LENGTH and at < end < at + size
        return (tag >> 3, (at, end)) if is_message else None

    def _plane(self, span: Span) -> _Plane:
        plane = _Plane(lines=[], event_names={}, stat_names={}, stats=[])
        for number, value in self._fields(span, "a plane"):
            if isinstance(value, int):
                continue
            if number == 2:
                plane.name = self._text(value)
            elif number == 3:
                plane.lines.append(value)
            elif number == 4:
                self._add_name(plane.event_names, value)
            elif number == 5:
                self._add_name(plane.stat_names, value)
            elif number == 6:
                plane.stats.append(value)
        return plane

    def _add_name(self, names: dict[int, str], entry: Span) -> None:
        """Add the entry of a map from ids to metadata, of which the name is used."""
        try:
            of_entry = dict(wire.fields(self.data, entry))
            key, message = of_entry.get(1, 0), of_entry.get(2)
            if not isinstance(key, int) or not isinstance(message, tuple):
                return
            metadata = dict(wire.fields(self.data, message))
        except WireError:
            return
        name, shown = (self._text(each) if isinstance(each := metadata.get(field), tuple) else "" for field in (2, 4))
        # On TPUs, the name is the whole instruction, which says from where a copy is, and the short one is for display.
        is_instruction = name.startswith("%") and _COPY not in name
        names[wire.signed(key)] = shown if shown and (not name or is_instruction) else name

    def _text(self, span: Span) -> str:
        return self.data[span[0] : min(span[1], span[0] + _MAX_TEXT_BYTES)].decode("utf-8", "replace")

    def _stats(self, plane: _Plane) -> dict[str, Any]:
        """Return the facts about a plane by name."""
        facts: dict[str, Any] = {}
        for span in plane.stats:
            try:
                stat = dict(wire.fields(self.data, span))
            except WireError:
                continue
            key = stat.get(1)
            value = next((stat[field] for field in (3, 4, 5, 7) if field in stat), None)
            if not isinstance(key, int) or value is None:
                continue
            name = plane.stat_names.get(key, "")
            if 7 in stat and isinstance(value, int):
                facts[name] = plane.stat_names.get(value, "")
            else:
                facts[name] = self._text(value) if isinstance(value, tuple) else wire.signed(value)
        return facts

    def _line(self, plane: _Plane, span: Span, wants: Callable[[str], bool]) -> XlaLine | None:
        start, end, others = wire.spans_of_field(self.data, span, 4)
        self.num_events += len(start)
        if (0, 0) in others:
            self.damage.append("a line")
        if not wants(plane.name):
            return None
        fields = dict(others)
        name = next((text for field in (2, 11) if (text := self._text_of(fields.get(field)))), "")
        timestamp = fields.get(3, 0)
        timestamp_ns = wire.signed(timestamp) if isinstance(timestamp, int) else 0
        pieces = [
            self._events(plane, start[first : first + _CHUNK_EVENTS], end[first : first + _CHUNK_EVENTS])
            for first in range(0, len(start), _CHUNK_EVENTS)
        ]
        return _joined(plane.name, name, timestamp_ns, pieces)

    def _text_of(self, value: Any) -> str:
        return self._text(value) if isinstance(value, tuple) else ""

    def _events(self, plane: _Plane, start: NDArray[np.int64], end: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        """Return the columns of some events: name, start_ps, duration_ps, and the numbers and texts of their stats."""
        wanted = _wanted_ids(plane.stat_names)
        decoded = self.messages.decode(start, end, numbers={1: 0, 2: 0, 3: 0}, spans={4: wanted})
        columns: dict[str, NDArray[Any]] = {
            "name": self._name_codes(plane.event_names, decoded.numbers[1]),
            "start_ps": decoded.numbers[2],
            "duration_ps": decoded.numbers[3],
        }
        columns |= self._stat_columns(plane, decoded.spans[4], len(start))
        is_bad = decoded.is_damaged | (decoded.numbers[3] < 0)
        self.num_bad_events += int(is_bad.sum())
        return {name: values[~is_bad] for name, values in columns.items()} if is_bad.any() else columns

    def _name_codes(self, names: dict[int, str], ids: NDArray[np.int64]) -> NDArray[np.int32]:
        """Return the code of the name that each id stands for."""
        if not len(ids):
            return np.zeros(0, np.int32)
        lowest, highest = int(ids.min()), int(ids.max())
        if lowest >= 0 and highest < _MOST_DENSE_IDS:
            distinct = np.flatnonzero(np.bincount(ids))
            codes = np.zeros(highest + 1, np.int32)
            codes[distinct] = [self.names[names.get(each, "")] for each in distinct.tolist()]
            return codes[ids]
        distinct, inverse = np.unique(ids, return_inverse=True)
        codes = np.array([self.names[names.get(each, "")] for each in distinct.tolist()], np.int32)
        return codes[inverse].astype(np.int32)

    def _stat_columns(
        self, plane: _Plane, stats: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]], num_events: int
    ) -> dict[str, NDArray[Any]]:
        event, start, end = stats
        if not len(event):
            return {}
        numbers = {1: NULL, 3: NULL, 4: NULL, 7: NULL}
        decoded = self.messages.decode(start, end, numbers=numbers, spans={5: None})
        columns: dict[str, NDArray[Any]] = {}
        for key, name in plane.stat_names.items():
            is_number, is_text = name in NUMBERS, name in TEXTS
            if not is_number and not is_text:
                continue
            rows = np.flatnonzero(decoded.numbers[1] == key)
            if not len(rows):
                continue
            if is_number:
                column = columns.setdefault(name, np.full(num_events, NULL, np.int64))
                unsigned, number = decoded.numbers[3][rows], decoded.numbers[4][rows]
                column[event[rows]] = np.where(number == NULL, unsigned, number)
                self._numbers_as_text(column, event, rows, decoded.spans[5])
            else:
                column = columns.setdefault(name, np.full(num_events, NULL, np.int32))
                self._texts(plane, column, event, rows, decoded)
        return columns

    def _numbers_as_text(
        self, column: NDArray[Any], event: NDArray[np.int64], rows: NDArray[np.int64], spans: Any
    ) -> None:
        """Fill in the numbers that are written as text: hosts write the values of annotations so."""
        message, start, end = spans
        for stat, first, last in _of_rows(message, start, end, rows):
            text = self.data[first : min(last, first + 20)]
            if text.isdigit() and len(text) < 19:
                column[event[stat]] = int(text)

    def _texts(
        self, plane: _Plane, column: NDArray[Any], event: NDArray[np.int64], rows: NDArray[np.int64], decoded: Any
    ) -> None:
        """Fill in texts, which are either a reference to the name of a stat or written out."""
        reference = decoded.numbers[7][rows]
        has_reference = reference != NULL
        column[event[rows[has_reference]]] = self._name_codes(plane.stat_names, reference[has_reference])
        message, start, end = decoded.spans[5]
        for stat, first, last in _of_rows(message, start, end, rows):
            column[event[stat]] = self._code_of_text(self.data[first : min(last, first + _MAX_TEXT_BYTES)])

    def _code_of_text(self, text: bytes) -> int:
        code = self.text_code.get(text)
        if code is None:
            code = self.text_code[text] = self.names[text.decode("utf-8", "replace")]
        return code

    def _quality(self) -> tuple[Quality, ...]:
        notes = []
        if self.damage:
            notes.append(
                Quality(
                    problem=f"the file is damaged or truncated: {self.damage[0]} does not end where it should",
                    effect="events after the damage are missing, and show as idle time",
                    max_confidence="inconclusive",
                )
            )
        if self.num_bad_events:
            notes.append(
                Quality(
                    problem=f"{self.num_bad_events:,} events could not be read: their bytes are damaged",
                    effect="their time shows as idle or unattributed",
                    max_confidence="medium",
                )
            )
        return tuple(notes)


def _wanted_ids(stat_names: dict[int, str]) -> NDArray[np.bool_]:
    """Return which ids of stats are wanted; the last entry stands for all higher ids."""
    ids = [key for key, name in stat_names.items() if name in NUMBERS or name in TEXTS]
    known = [key for key in ids if 0 <= key < _MOST_DENSE_IDS]
    wanted = np.zeros(max(known, default=0) + 2, np.bool_)
    wanted[known] = True
    wanted[-1] = len(known) < len(ids)
    return wanted


def _of_rows(
    message: NDArray[np.int64], start: NDArray[np.int64], end: NDArray[np.int64], rows: NDArray[np.int64]
) -> list[tuple[int, int, int]]:
    """Return the messages with their spans, of those in `rows`."""
    if not len(message):
        return []
    chosen = np.isin(message, rows)
    return list(zip(message[chosen].tolist(), start[chosen].tolist(), end[chosen].tolist(), strict=True))


def _joined(plane: str, name: str, timestamp_ns: int, pieces: list[dict[str, NDArray[Any]]]) -> XlaLine:
    """Join the pieces of a line, with times in ns. An event that ends when the next begins still does so in ns."""
    lengths = [len(piece["start_ps"]) for piece in pieces]
    columns: dict[str, NDArray[Any]] = {}
    for column in dict.fromkeys(column for piece in pieces for column in piece):
        columns[column] = np.concatenate(
            [piece.get(column, np.full(length, NULL)) for piece, length in zip(pieces, lengths, strict=True)]
        )
    start_ps = columns.get("start_ps", np.zeros(0, np.int64))
    duration_ps = columns.get("duration_ps", np.zeros(0, np.int64))
    base_ns = timestamp_ns if 0 <= timestamp_ns < _MAX_NS else 0
    start_ns = base_ns + start_ps // _PS_PER_NS
    end_ns = base_ns + start_ps // _PS_PER_NS + (start_ps % _PS_PER_NS + duration_ps) // _PS_PER_NS
    return XlaLine(
        plane=plane,
        name=name,
        event_name=columns.get("name", np.zeros(0, np.int32)).astype(np.int32),
        start_ns=start_ns,
        duration_ns=end_ns - start_ns,
        numbers={each: columns[each].astype(np.int64) for each in NUMBERS if each in columns},
        texts={each: columns[each].astype(np.int32) for each in TEXTS if each in columns},
    )


def _shifted(line: XlaLine, profile_start_ns: Any) -> XlaLine:
    """Return the line in unix time, if the file says when the profile began, and its times count from then."""
    is_known = isinstance(profile_start_ns, int) and 0 < profile_start_ns < _MAX_NS
    if not is_known or int(line.start_ns.max()) > _EPOCH_NS:
        return line
    return msgspec.structs.replace(line, start_ns=line.start_ns + profile_start_ns)


def _process_id(stats: dict[str, dict[str, Any]]) -> str | None:
    return next((str(of_plane["process_id"]) for of_plane in stats.values() if "process_id" in of_plane), None)


def _device_name(stats: dict[str, Any]) -> str | None:
    named = next(
        (stats[key] for key in ("gpu_device_name", "device_type_string", "device_vendor") if key in stats), None
    )
    return str(named) if named else None
