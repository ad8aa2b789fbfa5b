"""Read the `trace.json.gz` that JAX and TensorFlow write with an XPlane: the same events, with known losses.

In: a `TraceSource`. Out: an `EventTable` as from the XPlane. The file lacks the time at which it begins, the host and
the device's name, and XLA stops writing it at a million events (jax issue 21295). The XPlane in its folder has all.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from flatout.errors import InputError
from flatout.read.decoded import Codes
from flatout.read.event_text import EventText
from flatout.read.lookups import integers
from flatout.read.processes import SeveralRanksError
from flatout.read.quality import damage_quality
from flatout.read.sources import TraceSource
from flatout.read.stream import ByteStream
from flatout.read.timed_events import EventDecoder, Fields, spans_ns
from flatout.read.times import MAX_US
from flatout.read.xla_devices import parts_of
from flatout.read.xla_lines import NUMBERS, TEXTS, XlaLine, XlaProfile
from flatout.read.xla_table import xla_table
from flatout.records.events import NULL, EventTable, Quality, TraceFormat

MOST_EVENTS = 1_000_000  # that XLA writes
_INTEGER = re.compile(r"-?[0-9]{1,19}")
_Place = tuple[int | str, int | str]
_Text = int | float | str | None


class _Arguments(msgspec.Struct, gc=False, frozen=True):
    """The arguments that are used, which the file has as texts: NUMBERS, TEXTS and the name."""

    step_num: int = NULL
    correlation_id: int = NULL
    run_id: int = NULL
    device_ordinal: int = NULL
    num_bytes: int = NULL
    hlo_op: _Text = None
    memcpy_details: _Text = None
    memset_details: _Text = None
    name: _Text = None  # of a process or a thread


class _Event(msgspec.Struct, gc=False):
    ph: str = ""
    pid: int | str = 0
    tid: int | str = 0
    ts: float = -1.0
    dur: float = 0.0
    name: str = ""
    args: _Arguments = _Arguments()


def _with_known_numbers(fields: Fields) -> Fields:
    """Drop the arguments that should be integers and are not."""
    arguments = fields.get("args")
    if arguments is None:
        return {key: value for key, value in fields.items() if key != "args"}
    if not isinstance(arguments, dict):
        return fields
    numbers = {key: int(str(arguments[key])) for key in NUMBERS if _INTEGER.fullmatch(str(arguments.get(key)))}
    return fields | {"args": {key: value for key, value in arguments.items() if key not in NUMBERS} | numbers}


_DECODER = EventDecoder(_Event, is_strict=False, repair=_with_known_numbers)


def read_jax_trace(source: TraceSource) -> EventTable:
    """Read the file. Raises InputError if it has no events, and SeveralRanksError if it has several devices."""
    builder = _Builder()
    damage: Counter[str] = Counter()
    with ByteStream(Path(source.path), source.name) as stream:
        text = EventText(stream, source.name)
        for block in text.blocks():
            builder.add(_DECODER.events(block, damage))
        is_cut = text.is_cut_short or stream.problem is not None
    quality = [*damage_quality(damage, set(), Counter()), *_losses(builder.num_events, is_cut=is_cut)]
    profile = builder.profile(tuple(quality))
    if not profile.lines:
        raise InputError(f"{source.name} is a trace of XLA without events", hint="pass the .xplane.pb in its folder")
    if source.part is None:
        parts = parts_of(profile)
        if parts:
            raise SeveralRanksError(f"{source.name} has the events of {len(parts)} devices", parts)
    return xla_table(profile, source.name, TraceFormat.JAX_TRACE, source.part, source.rank_hint)


def _losses(num_events: int, *, is_cut: bool) -> list[Quality]:
    notes = [
        Quality(
            problem="a trace.json.gz of XLA has less than the .xplane.pb that is written with it",
            effect="host, device and the time at which it begins are unknown: pass the .xplane.pb if there is one",
        )
    ]
    if num_events >= MOST_EVENTS:
        notes.append(
            Quality(
                problem=f"XLA stops writing this file at {MOST_EVENTS:,} events, and it has {num_events:,}",
                effect="events are missing, and show as idle time: pass the .xplane.pb",
                max_confidence="inconclusive",
            )
        )
    if is_cut:
        notes.append(
            Quality(
                problem="the file is damaged or truncated",
                effect="later events are missing, and show as idle time",
                max_confidence="inconclusive",
            )
        )
    return notes


class _Builder:
    """Keeps the events as columns, block by block."""

    def __init__(self) -> None:
        self.num_events = 0
        self._names: Codes[str] = Codes()
        self._places: Codes[_Place] = Codes()
        self._planes: dict[int | str, str] = {}
        self._lines: dict[_Place, str] = {}
        self._texts = _Texts(self._names)
        self._pieces: list[dict[str, NDArray[Any]]] = []

    def add(self, events: list[_Event]) -> None:
        calls = [event for event in events if event.ph == "X"]
        self.num_events += len(calls)
        self._pieces.append(self._columns(calls))
        if len(calls) == len(events):
            return
        for event in events:
            if event.ph == "M":
                self._see(event, str(event.args.name or ""))

    def _see(self, event: _Event, text: str) -> None:
        if event.name == "process_name":
            self._planes[event.pid] = text
        elif event.name == "thread_name":
            self._lines[event.pid, event.tid] = text

    def _columns(self, calls: list[_Event]) -> dict[str, NDArray[Any]]:
        """Return the columns of the events whose times can be placed."""
        start_us = np.fromiter([call.ts for call in calls], np.float64)
        duration_us = np.fromiter([call.dur for call in calls], np.float64)
        is_placed = (start_us >= 0) & (start_us < MAX_US) & (duration_us < MAX_US)
        if not is_placed.all():
            calls = [call for call, has_place in zip(calls, is_placed.tolist(), strict=True) if has_place]
            start_us, duration_us = start_us[is_placed], duration_us[is_placed]
        start_ns, duration_ns = spans_ns(start_us, start_us + duration_us.clip(min=0.0))
        places = zip([call.pid for call in calls], [call.tid for call in calls], strict=True)
        return {
            "place": _codes(self._places, places).astype(np.int32),
            "name": _codes(self._names, [call.name for call in calls]).astype(np.int32),
            "start_ns": start_ns,
            "duration_ns": duration_ns,
            **self._arguments([call.args for call in calls]),
        }

    def _arguments(self, arguments: list[_Arguments]) -> dict[str, NDArray[np.int64]]:
        """Return the numbers and the texts that some of the events have."""
        columns = {}
        for key in NUMBERS:
            numbers = integers(list(map(attrgetter(key), arguments)))
            if (numbers != NULL).any():
                columns[key] = numbers
        for key in TEXTS:
            texts = list(map(attrgetter(key), arguments))
            if texts.count(None) < len(texts):
                columns[key] = _codes(self._texts, texts)
        return columns

    def profile(self, quality: tuple[Quality, ...]) -> XlaProfile:
        columns = self._joined()
        places = columns.pop("place", np.zeros(0, np.int32))
        lines = [
            self._line(place, {column: values[places == number] for column, values in columns.items()})
            for place, number in self._places.items()
        ]
        pid = next((str(pid) for pid, plane in self._planes.items() if plane.startswith("/host:")), None)
        return XlaProfile(lines=tuple(lines), names=tuple(self._names), process=pid, quality=quality)

    def _joined(self) -> dict[str, NDArray[Any]]:
        """Return the columns of all blocks; `NULL` for an argument that none of a block's events has."""
        pieces = [piece for piece in self._pieces if len(piece["place"])]
        return {
            column: np.concatenate([piece.get(column, np.full(len(piece["place"]), NULL)) for piece in pieces])
            for column in dict.fromkeys(column for piece in pieces for column in piece)
        }

    def _line(self, place: _Place, columns: dict[str, NDArray[Any]]) -> XlaLine:
        return XlaLine(
            plane=self._planes.get(place[0], "/host:CPU"),
            name=self._lines.get(place, str(place[1])),
            event_name=columns["name"],
            start_ns=columns["start_ns"],
            duration_ns=columns["duration_ns"],
            numbers={key: columns[key] for key in NUMBERS if _is_used(columns, key)},
            texts={key: columns[key].astype(np.int32) for key in TEXTS if _is_used(columns, key)},
        )


def _codes(code_of: dict[Any, int], values: Iterable[Any]) -> NDArray[np.int64]:
    return np.fromiter(map(code_of.__getitem__, values), np.int64)


def _is_used(columns: dict[str, NDArray[Any]], key: str) -> bool:
    return key in columns and bool((columns[key] != NULL).any())


class _Texts(dict[_Text, int]):
    """The code of a text among the names; `NULL` where there is none."""

    def __init__(self, names: Codes[str]) -> None:
        super().__init__({None: NULL})
        self._names = names

    def __missing__(self, value: _Text) -> int:
        code = self[value] = self._names[str(value)]
        return code
