"""Read the events of a trace file unchanged, to write them again without loss.

In: a `TraceSource`. Out: every event of every phase and category, with its fields as JSON text, in file order.
`read_trace` keeps only what an analysis needs; this module keeps everything, is slower, and is used only to write a
trace again. One block of text is in memory at a time. Text that no JSON parser accepts is repaired by `lenient`, as for
the analysis.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

import msgspec

from flatout.read.event_text import EventText
from flatout.read.formats import other_reader
from flatout.read.schema import MTIA_DEVICE, OPERATOR, SKIPPED, UNREADABLE, KindOfCategory
from flatout.read.sources import TraceSource
from flatout.read.stream import ByteStream
from flatout.read.table_events import events_of
from flatout.read.trace import input_errors
from flatout.records.events import Kind, OriginalEvent

Fields = dict[str, msgspec.Raw]

_decode = msgspec.json.Decoder(list[Fields]).decode
_encode = msgspec.json.Encoder(decimal_format="number").encode
_MAX_US = 1 << 52  # as for the analysis: the sum of a start and a duration in ns fits 64 bits
_MISSING = msgspec.Raw(b"null")
# Halves of a surrogate pair, which no JSON parser accepts, are written as plain text.
_HALF = re.compile(
    rb"(\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})|\\(u[dD][89a-fA-F][0-9a-fA-F]{2})"
)


class Originals:
    """The events of one file; each iteration reads it again."""

    def __init__(self, source: TraceSource, *, base_ns: int = 0, earliest_ns: int | None = None) -> None:
        """Add `base_ns` to all times. Times before `earliest_ns` (such as 0, which means unknown) count as missing."""
        self.metadata: Fields = {}  # the fields around the events; empty before an iteration, or if damaged
        self._source = source
        self._base_ns = base_ns
        self._earliest_ns = earliest_ns
        self._kinds = KindOfCategory()
        self._values: dict[
            bytes, Any
        ] = {}  # decoded short texts that repeat: phases, categories, process and thread ids

    def __iter__(self) -> Iterator[OriginalEvent]:
        source = self._source
        with input_errors(source.name):
            read_other = other_reader(source)
        if read_other is not None:
            yield from events_of(read_other(source))
            return
        with input_errors(source.name), ByteStream(Path(source.path), source.name) as stream:
            text = EventText(stream, source.name)
            for block in text.blocks():
                for fields in _fields(block):
                    event = self._event(fields)
                    if source.part is None or source.part.has(event.process):
                        yield event
            self.metadata = _around(text)

    def _event(self, fields: Fields) -> OriginalEvent:
        category, process = self._value(fields, "cat"), self._value(fields, "pid")
        start_ns = _ns(fields.get("ts"))
        if start_ns is not None:
            start_ns += self._base_ns
            if self._earliest_ns is not None and start_ns < self._earliest_ns:
                start_ns = None
        phase = self._value(fields, "ph")
        return OriginalEvent(
            fields=fields,
            phase=phase if isinstance(phase, str) else "X" if "dur" in fields else "",
            process=_identity(process),
            thread=_identity(self._value(fields, "tid")),
            kind=_kind(self._kinds[category if category and isinstance(category, str) else _identity(process)]),
            start_ns=start_ns,
            duration_ns=max(0, _ns(fields.get("dur")) or 0),
        )

    def _value(self, fields: Fields, key: str) -> Any:
        text = bytes(fields.get(key, _MISSING))
        if text not in self._values:
            self._values[text] = _text_value(text)
        return self._values[text]


def _fields(block: bytes) -> list[Fields]:
    if b"\\u" in block:
        block = _HALF.sub(lambda match: match[1] or rb"\\" + match[2], block)
    try:
        return _decode(b"".join((b"[", block, b"]")))
    except UNREADABLE:
        from flatout.read import lenient

        objects = lenient.objects(block, Counter())
        return [{key: msgspec.Raw(_encode(value)) for key, value in each.items()} for each in objects]


def _around(text: EventText) -> Fields:
    """Return the keys other than `traceEvents`."""
    if not text.head:
        return {}
    try:
        found = msgspec.json.decode(text.head + b"]" + (text.tail.strip() or b"}"), type=Fields)
    except UNREADABLE:
        return {}
    return {key: value for key, value in found.items() if key != "traceEvents"}


def _text_value(text: bytes) -> Any:
    try:
        return msgspec.json.decode(text)
    except UNREADABLE:
        return text.decode("utf-8", "replace")


def _identity(value: Any) -> int | str:
    return value if isinstance(value, int) and not isinstance(value, bool) else "0" if value is None else str(value)


def _kind(code: int) -> Kind | None:
    if code in (OPERATOR, MTIA_DEVICE):
        return Kind.CPU_OP if code == OPERATOR else Kind.KERNEL
    return None if code == SKIPPED else Kind(code)


def _ns(raw: msgspec.Raw | None) -> int | None:
    """Convert decimal microseconds, written as a number or a text, to integer nanoseconds; None if not a time."""
    if raw is None:
        return None
    text = bytes(raw).strip(b'"')
    whole, _, decimals = text.partition(b".")
    if whole.isdigit() and len(whole) < 16 and len(decimals) <= 3 and (decimals.isdigit() or not decimals):
        return int(whole) * 1000 + int(decimals.ljust(3, b"0"))
    try:
        value = Decimal(text.decode("ascii"))
    except (InvalidOperation, ValueError):
        return None
    return round(value * 1000) if value.is_finite() and -_MAX_US < value < _MAX_US else None
