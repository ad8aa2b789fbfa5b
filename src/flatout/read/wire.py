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


class DamagedError(Exception):
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
    raise DamagedError


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
                raise DamagedError
            yield tag >> 3, value
            continue
        size, at = varint(data, at) if form == LENGTH else (_FIXED_SIZE.get(form, -1), at)
        if size < 0 or at + size > end:
            raise DamagedError
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
    ends: list[int] = []
    others: list[tuple[int, int | Span]] = []
    try:
        while at < end:
            size = data[at + 1]
            if data[at] != tag or size > 127:
                at = _slow_field(data, (at, end), field, starts, ends, others)
                continue
            at += 2
            if at + size > end:
                raise DamagedError
            starts.append(at)
            at += size
            ends.append(at)
    except DamagedError:
        others.append((0, 0))
    return np.array(starts, np.int64), np.array(ends, np.int64), others


def _slow_field(
    data: bytes, rest: Span, field: int, starts: list[int], ends: list[int], others: list[tuple[int, int | Span]]
) -> int:
    """Add the next field, of any number and size, and return the position after it."""
    for number, value in fields(data, rest):
        if number != field or isinstance(value, int):
            others.append((number, value))
            return _end_of(data, rest[0], value)
        starts.append(value[0])
        ends.append(value[1])
        return value[1]
    return rest[1]


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


def many(
    data: NDArray[np.uint8], start: Positions, end: Positions, *, numbers: Mapping[int, int], spans: Sequence[int]
) -> Fields:
    """Decode the messages at the spans: `numbers` maps each field wanted as a number to its value where it is absent.

    `data` must end with `PADDING`, which no message includes. The last value of a number that occurs twice counts.
    """
    num_messages = len(start)
    values = {field: np.full(num_messages, absent, np.int64) for field, absent in numbers.items()}
    found: dict[int, list[tuple[Positions, Positions, Positions]]] = {field: [] for field in spans}
    is_damaged = np.zeros(num_messages, np.bool_)
    row = np.flatnonzero(start < end)
    at = start[row]
    for _ in range(_MAX_FIELDS):
        if not len(row):
            break
        tag, at = _varints(data, at)
        field, form = tag >> 3, tag & 7
        value, after = _values(data, at, form)
        is_bad = (after > end[row]) | (after < at) | ~np.isin(form, (VARINT, FIXED_64, LENGTH, FIXED_32))
        is_damaged[row[is_bad]] = True
        is_number = (form == VARINT) & ~is_bad
        for wanted, column in values.items():
            rows = is_number & (field == wanted)
            column[row[rows]] = value[rows]
        is_span = (form != VARINT) & ~is_bad
        for wanted, pieces in found.items():
            rows = is_span & (field == wanted)
            if rows.any():
                pieces.append((row[rows], value[rows], after[rows]))
        goes_on = ~is_bad & (after < end[row])
        row, at = row[goes_on], after[goes_on]
    is_damaged[row] = True
    return Fields(
        numbers=values, spans={field: _joined(pieces) for field, pieces in found.items()}, is_damaged=is_damaged
    )


def _varints(data: NDArray[np.uint8], at: Positions) -> tuple[NDArray[np.int64], Positions]:
    """Return the number at each position as 64 bits, and the position after it. One too long leads beyond any end."""
    byte = data[at]
    value = (byte & 127).astype(np.uint64)
    at = at + 1
    more = np.flatnonzero(byte > 127)
    for shift in range(7, 7 * _MAX_VARINT_BYTES, 7):
        if not len(more):
            return value.astype(np.int64), at
        byte = data[at[more]]
        value[more] |= (byte & 127).astype(np.uint64) << np.uint64(shift)
        at[more] += 1
        more = more[byte > 127]
    at[more] = np.iinfo(np.int64).max
    return value.astype(np.int64), at


def _values(data: NDArray[np.uint8], at: Positions, form: NDArray[np.int64]) -> tuple[NDArray[np.int64], Positions]:
    """Return each field's number, or the position where its bytes begin; and the position after the field."""
    last = len(data) - len(PADDING)
    at = np.minimum(at, last)
    value = at.copy()
    after = np.full(len(at), -1, np.int64)
    has_number = np.flatnonzero((form == VARINT) | (form == LENGTH))
    number, behind = _varints(data, at[has_number])
    is_length = form[has_number] == LENGTH
    size = np.where((number < 0) | (number > last), last + 1, number)
    value[has_number] = np.where(is_length, behind, number)
    after[has_number] = np.where(is_length, np.minimum(behind, last) + size, behind)
    for kind, num_bytes in _FIXED_SIZE.items():
        after[form == kind] = at[form == kind] + num_bytes
    return value, after


def _joined(pieces: Sequence[tuple[Positions, Positions, Positions]]) -> tuple[Positions, Positions, Positions]:
    if not pieces:
        none = np.zeros(0, np.int64)
        return none, none, none
    message, start, end = (np.concatenate(column) for column in zip(*pieces, strict=True))
    order = np.argsort(message, kind="stable")
    return message[order], start[order], end[order]
