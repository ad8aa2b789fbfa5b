"""Read the `trace.json.gz` that JAX and TensorFlow write with an XPlane: the same events, with known losses.

In: a `TraceSource`. Out: an `EventTable` as from the XPlane. The file lacks the time at which it begins, the host and
the device's name, and XLA stops writing it at a million events (jax issue 21295). The XPlane in its folder has all.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from flatout.errors import InputError
from flatout.read.decoded import Codes
from flatout.read.event_text import EventText
from flatout.read.processes import SeveralRanksError
from flatout.read.quality import damage_quality
from flatout.read.sources import TraceSource
from flatout.read.stream import ByteStream
from flatout.read.timed_events import EventDecoder, is_placed, spans_ns
from flatout.read.times import MAX_US
from flatout.read.xla_devices import parts_of
from flatout.read.xla_lines import NUMBERS, TEXTS, XlaLine, XlaProfile
from flatout.read.xla_table import xla_table
from flatout.records.events import NULL, EventTable, Quality, TraceFormat

MOST_EVENTS = 1_000_000  # that XLA writes
_Place = tuple[int | str, int | str]


class _Event(msgspec.Struct, gc=False):
    ph: str = ""
    pid: int | str = 0
    tid: int | str = 0
    ts: float = -1.0
    dur: float = 0.0
    name: str = ""
    args: dict[str, Any] | None = None


_DECODER = EventDecoder(_Event)


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
    def __init__(self) -> None:
        self.num_events = 0
        self._names: Codes[str] = Codes()
        self._planes: dict[int | str, str] = {}
        self._lines: dict[_Place, str] = {}
        self._rows: dict[_Place, list[_Event]] = defaultdict(list)

    def add(self, events: list[_Event]) -> None:
        self.num_events += sum(event.ph == "X" for event in events)
        for event in events:
            if event.ph == "X" and is_placed(event.ts) and event.dur < MAX_US:
                self._rows[event.pid, event.tid].append(event)
            elif event.ph == "M" and event.args is not None:
                text = str(event.args.get("name", ""))
                if event.name == "process_name":
                    self._planes[event.pid] = text
                elif event.name == "thread_name":
                    self._lines[event.pid, event.tid] = text

    def profile(self, quality: tuple[Quality, ...]) -> XlaProfile:
        lines = [self._line(place, rows) for place, rows in self._rows.items()]
        pid = next((str(pid) for pid, plane in self._planes.items() if plane.startswith("/host:")), None)
        return XlaProfile(lines=tuple(lines), names=tuple(self._names), process=pid, quality=quality)

    def _line(self, place: _Place, rows: list[_Event]) -> XlaLine:
        ends_us = [row.ts + max(row.dur, 0.0) for row in rows]
        start_ns, duration_ns = spans_ns([row.ts for row in rows], ends_us)
        event_name = np.array([self._names[row.name] for row in rows], np.int32)
        numbers, texts = self._arguments(rows)
        return XlaLine(
            plane=self._planes.get(place[0], "/host:CPU"),
            name=self._lines.get(place, str(place[1])),
            event_name=event_name,
            start_ns=start_ns,
            duration_ns=duration_ns,
            numbers=numbers,
            texts=texts,
        )

    def _arguments(self, rows: list[_Event]) -> tuple[dict[str, NDArray[np.int64]], dict[str, NDArray[np.int32]]]:
        """Return the arguments that are used, which the file has as texts."""
        numbers: dict[str, NDArray[np.int64]] = {}
        texts: dict[str, NDArray[np.int32]] = {}
        for row, event in enumerate(rows):
            if not event.args:
                continue
            for key, value in event.args.items():
                if key in NUMBERS:
                    number = _number(value)
                    numbers.setdefault(key, np.full(len(rows), NULL, np.int64))[row] = number
                elif key in TEXTS:
                    texts.setdefault(key, np.full(len(rows), NULL, np.int32))[row] = self._names[str(value)]
        return numbers, texts


def _number(value: Any) -> int:
    text = str(value)
    is_number = text.removeprefix("-").isdecimal() and text.isascii() and len(text) < 19
    return int(text) if is_number else NULL
