"""Decode the wire format of protocol buffers, without a schema: one message at a time, or many of one kind at once.

In: bytes. Out: fields by number, as varints or as spans of bytes. A message that is damaged is read up to the damage.
The second form is for messages that occur by the million: it decodes field after field for all of them with numpy.
Format: https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

Positions = NDArray[np.int64]
Span = tuple[int, int]  # the first byte, and the byte after the last one

VARINT, FIXED_64, LENGTH, FIXED_32 = 0, 1, 2, 5
PADDING = bytes(16)  # after the last byte, so that no varint leads beyond the end
_MAX_VARINT_BYTES = 10
_MAX_FIELDS = 1024  # of one of many messages; events of profilers have some tens
_TO_SIGNED = 1 << 64


class WireError(Exception):
    """A message does not end where it should, or has a field of an unknown form."""


def varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the number at a position, and the position after it."""
    value = shift = 0
    while shift < 7 * _MAX_VARINT_BYTES:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
    raise WireError


def fields(data: bytes, span: Span) -> Iterator[tuple[int, int | Span]]:
    """Yield the number of each field with its value: a number, or the span of a text, a message or a fixed number.

    Raises DamagedError where the message is damaged, after its fields before the damage.
    """
    at, end = span
    while at < end:
        tag, at = varint(data, at)
        form = tag & 7
        if form == VARINT:
            value, at = varint(data, at)
            if at > end:
                raise WireError
            yield tag >> 3, value
            continue
        size, at = varint(data, at) if form == LENGTH else (_FIXED_SIZE.get(form, -1), at)
        if size < 0 or at + size > end:
            raise WireError
        yield tag >> 3, (at, at + size)
        at += size


_FIXED_SIZE = {FIXED_64: 8, FIXED_32: 4}


def signed(value: int) -> int:
    """Return a varint as the signed number that it stands for."""
    return value - _TO_SIGNED if value >= _TO_SIGNED >> 1 else value


def spans_of_field(data: bytes, span: Span, field: int) -> tuple[Positions, Positions, list[tuple[int, int | Span]]]:
    """Return the spans of a repeated message, and the other fields of the message that holds them.

    A damaged message is read up to the damage; its last entry is then `(0, 0)`, which no field of a message can be.
    """
    at, end = span
    tag = field << 3 | LENGTH
    starts: list[int] = []
    long_ends: dict[int, int] = {}  # ends by start, of messages whose size takes more than one byte
    others: list[tuple[int, int | Span]] = []
    add = starts.append
    try:
        while at < end:
            size = data[at + 1]
            if data[at] == tag and size < 128:
                at += 2
                add(at)
                at += size
            else:
                number, value = next(fields(data, (at, end)))
                if number == field and not isinstance(value, int):
                    add(value[0])
                    long_ends[value[0]] = value[1]
                else:
                    others.append((number, value))
                at = _end_of(data, at, value)
        if at > end:
            starts.pop()
            raise WireError
    except WireError:
        others.append((0, 0))
    start = np.array(starts, np.int64)
    sizes = np.frombuffer(data, np.uint8)[start - 1] if len(start) else start
    ends = start + sizes
    if long_ends:
        rows = np.searchsorted(start, np.fromiter(long_ends, np.int64, len(long_ends)))
        ends[rows] = np.fromiter(long_ends.values(), np.int64, len(long_ends))
    return start, ends, others


def _end_of(data: bytes, at: int, value: int | Span) -> int:
    if not isinstance(value, int):
        return value[1]
    _, at = varint(data, at)
    return varint(data, at)[1]


class Fields(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of many messages of one kind. Messages are numbered in the order in which they were passed."""

    numbers: dict[int, NDArray[np.int64]]  # by field: one value per message; `absent` where it lacks the field
    # By field: the message that each value belongs to, and the value's first byte and the byte after its last.
    spans: dict[int, tuple[Positions, Positions, Positions]]
    is_damaged: NDArray[np.bool_]  # by message


class Messages:
    """Many messages of one kind at once: their spans in the bytes of a file, which must end with `PADDING`."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._bytes = np.frombuffer(data, np.uint8)
        # The eight bytes that begin at each position, as one number.
        self._words = np.ndarray((len(data) - 8,), "<u8", data, strides=(1,))
        self._end = len(data) - len(PADDING)

    def decode(
        self,
        start: Positions,
        end: Positions,
        *,
        numbers: Mapping[int, int],
        spans: Mapping[int, NDArray[np.bool_] | None],
    ) -> Fields:
        """Return the wanted fields of the messages at the spans.

        `numbers` maps each field that is wanted as a number to its value where it is absent; of a number that occurs
        twice, the last counts. `spans` maps each field that is wanted as a span to a table of the ids wanted: of its
        messages that begin with an id in field 1, only those are returned. Without a table, all are.
        """
        columns = {field: np.full(len(start), absent, np.int64) for field, absent in numbers.items()}
        pieces: dict[int, list[tuple[Positions, Positions, Positions]]] = {field: [] for field in spans}
        is_damaged = np.zeros(len(start), np.bool_)
        row = np.flatnonzero(start < end)
        at, limit = start[row], end[row]
        for _ in range(_MAX_FIELDS):
            if not len(row):
                break
            after = np.full(len(row), -1, np.int64)
            tags = self._bytes[at]
            for tag in np.flatnonzero(np.bincount(tags, minlength=256)).tolist():
                chosen: NDArray[np.intp] | slice = slice(None)
                if tags[0] != tag or tags[-1] != tag or (tags != tag).any():
                    chosen = np.flatnonzero(tags == tag)
                if tag > 127:  # fields above 15, which no version has yet
                    of_tag = at[chosen].tolist(), limit[chosen].tolist()
                    after[chosen] = [self._skip(*span) for span in zip(*of_tag, strict=True)]
                    continue
                field, form = tag >> 3, tag & 7
                place = (row[chosen], at[chosen] + 1, limit[chosen])
                after[chosen] = self._field(
                    place,
                    form,
                    columns.get(field),
                    pieces.get(field),
                    spans.get(field),
                )
            is_bad = (after < 0) | (after > limit)
            if is_bad.any():
                is_damaged[row[is_bad]] = True
            goes_on = (after < limit) & ~is_bad
            if not goes_on.all():
                row, after, limit = row[goes_on], after[goes_on], limit[goes_on]
            at = after
        is_damaged[row] = True
        joined = {field: _joined(of_field) for field, of_field in pieces.items()}
        return Fields(numbers=columns, spans=joined, is_damaged=is_damaged)

    def _field(
        self,
        place: tuple[NDArray[np.intp], Positions, Positions],
        form: int,
        column: NDArray[np.int64] | None,
        pieces: list[tuple[Positions, Positions, Positions]] | None,
        wanted: NDArray[np.bool_] | None,
    ) -> Positions:
        """Take one field, of the same number and form in all rows; return the positions after it, -1 if damaged."""
        row, at, limit = place
        if form in _FIXED_SIZE:
            start, after = at, at + _FIXED_SIZE[form]
        elif form in (VARINT, LENGTH):
            value, start = self._varints(at)
            if form == VARINT:
                if column is not None:
                    column[row] = value
                return start
            is_bad = (value < 0) | (value > self._end)
            after = np.where(is_bad, -1, start + value)
        else:
            return np.full(len(row), -1, np.int64)
        if pieces is not None:
            is_inside = after <= limit if wanted is None else (after <= limit) & self._has_id(start, wanted)
            if is_inside.any():
                pieces.append((row[is_inside], start[is_inside], after[is_inside]))
        return after

    def _has_id(self, start: Positions, wanted: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return whether each message begins with a wanted id, or with another field, so that the id may follow."""
        start = np.minimum(start, self._end)
        first, second = self._bytes[start + 1], self._bytes[start + 2]
        number = np.where(first < 128, first, (first & 127) + (second.astype(np.int64) << 7))
        is_short = (first < 128) | (second < 128)
        return np.asarray((self._bytes[start] != 8) | ~is_short | wanted[np.minimum(number, len(wanted) - 1)])

    def _varints(self, at: Positions) -> tuple[NDArray[np.int64], Positions]:
        """Return the number at each position as 64 bits, and the position after it; -1 if it is too long."""
        at = np.minimum(at, self._end)
        first = self._bytes[at]
        if first.max() < 128:  # most sizes and ids
            return first.astype(np.int64), at + 1
        word = self._words[at]
        stops = ~word & _HIGH_BITS
        last = stops & (~stops + _ONE)  # the highest bit of the last byte
        value = word & ((last << _ONE) - _ONE) & ~_HIGH_BITS
        value = value & _SEVENS[0] | (value & _SEVENS[1]) >> np.uint64(1)
        value = value & _FOURTEENS[0] | (value & _FOURTEENS[1]) >> np.uint64(2)
        value = value & _TWENTY_EIGHTS[0] | (value & _TWENTY_EIGHTS[1]) >> np.uint64(4)
        size = np.frexp(last.astype(np.float64))[1] >> 3
        numbers, after = value.astype(np.int64), at + size
        longer = np.flatnonzero(stops == 0)
        for row in longer.tolist():
            numbers[row], after[row] = self._long_varint(int(at[row]))
        return numbers, after

    def _skip(self, at: int, end: int) -> int:
        """Return the position after a field of any number; -1 if it is damaged."""
        try:
            _, value = next(fields(self._data, (at, end)))
            return _end_of(self._data, at, value)
        except WireError:
            return -1

    def _long_varint(self, at: int) -> tuple[int, int]:
        try:
            value, after = varint(self._data, at)
        except WireError:
            return 0, -1
        return signed(value % _TO_SIGNED), after


_ONE = np.uint64(1)
_HIGH_BITS = np.uint64(0x8080808080808080)
# Groups of 7, 14 and 28 bits: the lower ones of each pair, and the upper ones, which move down by 1, 2 and 4 bits.
_SEVENS = np.uint64(0x007F007F007F007F), np.uint64(0x7F007F007F007F00)
_FOURTEENS = np.uint64(0x00003FFF00003FFF), np.uint64(0x3FFF00003FFF0000)
_TWENTY_EIGHTS = np.uint64(0x000000000FFFFFFF), np.uint64(0x0FFFFFFF00000000)


def _joined(pieces: Sequence[tuple[Positions, Positions, Positions]]) -> tuple[Positions, Positions, Positions]:
    if not pieces:
        none = np.zeros(0, np.int64)
        return none, none, none
    message, start, end = (np.concatenate(column) for column in zip(*pieces, strict=True))
    return message, start, end
