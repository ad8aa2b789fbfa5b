"""Read the rows of an SQLite table from its pages into numpy arrays, without a Python object per value.

In: a file, and the number of the first page of a table. Out: blocks of rows, whose integers and texts are read by
column. What is not plain raises NotPlainError, and SQLite itself must read the table: damage, values of other types,
values in overflow pages, rows that were written before a column was added. Python's `sqlite3` needs 0.6 us for a row of
seven integers; this module needs a fifth of it.
Format: https://www.sqlite.org/fileformat2.html, sections 1.3, 1.5, 1.6 and 2.1.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from flatout.records.events import NULL

_Places = NDArray[np.int64]  # offsets into the bytes of a block
_Numbers = NDArray[Any]  # of 8 bits if all of them have one byte, else of 64
_BLOCK_BYTES = 1 << 20  # of pages that are decoded at a time: they and their columns stay in the processor's cache
_MARGIN = 16  # bytes around the pages, so that a number can be read together with its neighbours
_INTERIOR, _LEAF = 5, 13  # kinds of pages of a table
_LEAF_HEADER, _INTERIOR_HEADER = 8, 12
_UTF_8 = 1
_HEADER_BYTES, _SMALLEST_PAGE = 100, 512
_MOST_LEVELS = 20
_FLOAT, _ZERO, _ONE, _FIRST_BLOB, _FIRST_TEXT = 7, 8, 9, 12, 13  # serial types of values
# Of values, by the serial types of one byte. Texts and blobs alternate.
_SIZES = np.array([0, 1, 2, 3, 4, 6, 8, 8, 0, 0, 0, 0, *(size // 2 for size in range(128 - _FIRST_BLOB))], np.int64)
_CONSTANTS = np.array([NULL, *[0] * _ZERO, 1], np.int64)  # values without bytes, by their serial types


class NotPlainError(Exception):
    """SQLite itself must read the table."""


class Pages:
    """The pages of a file."""

    def __init__(self, file: IO[bytes], header: bytes) -> None:
        self._descriptor = file.fileno()
        size = int.from_bytes(header[16:18], "big")
        self.size = 1 << 16 if size == 1 else max(size, _SMALLEST_PAGE)
        self.usable = self.size - header[20]
        self.has_utf_8 = int.from_bytes(header[56:60], "big") == _UTF_8
        self.count = os.fstat(self._descriptor).st_size // self.size

    def read(self, numbers: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Return the bytes of pages, one after the other, with a margin on both sides."""
        if numbers.min() < 2 or numbers.max() > self.count:  # the first page has the schema
            raise NotPlainError
        data = np.zeros(2 * _MARGIN + len(numbers) * self.size, np.uint8)
        view = data.data
        runs = np.flatnonzero(np.diff(numbers) != 1) + 1
        for first, end in zip([0, *runs.tolist()], [*runs.tolist(), len(numbers)], strict=True):
            target = view[_MARGIN + first * self.size : _MARGIN + end * self.size]
            offset = (int(numbers[first]) - 1) * self.size
            if os.preadv(self._descriptor, [target], offset) != len(target):
                raise NotPlainError
        return data

    def starts(self, num_pages: int) -> _Places:
        """Return where each page begins in what `read` returned."""
        return _MARGIN + self.size * np.arange(num_pages, dtype=np.int64)

    def leaves(self, root: int) -> NDArray[np.int64]:
        """Return the numbers of the pages that have a table's rows, in the order of the rows."""
        numbers = np.array([root], np.int64)
        for _ in range(_MOST_LEVELS):
            kind = self.read(numbers[:1])[_MARGIN]
            if kind == _LEAF:
                return numbers
            numbers = self._children(numbers)
            if len(np.unique(numbers)) < len(numbers):  # the tree would have a loop
                raise NotPlainError
        raise NotPlainError

    def _children(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the pages that pages of the interior of the tree refer to: one for each cell, and one more."""
        children = []
        for number in numbers:
            data = self.read(np.array([number]))
            cells, _ = _cells(data, self.starts(1), self.size, _INTERIOR, _INTERIOR_HEADER)
            last = _big_endian(data, np.array([_MARGIN + 8]), 4)
            children += [_big_endian(data, cells, 4), last]
        return np.concatenate(children)


class RowBlock:
    """Some rows of a table, and the places of their first columns."""

    def __init__(self, pages: Pages, data: NDArray[np.uint8], num_columns: int) -> None:
        self.data = data
        starts = pages.starts((len(data) - 2 * _MARGIN) // pages.size)
        cells, owner = _cells(data, starts, pages.size, _LEAF, _LEAF_HEADER)
        num_bytes, place = _varint(data, cells)
        number, place = _varint(data, place)
        self.rowid = number.astype(np.int64)
        header_bytes, column = _varint(data, place)
        header_end = place + header_bytes
        end = place + _local(num_bytes, pages.usable)
        value = header_end
        self._types: list[_Numbers] = []
        self._values: list[_Places] = []
        for _ in range(num_columns):
            kind, column = _varint(data, column)
            self._types.append(kind)
            self._values.append(value)
            value = value + _sizes(kind)
        is_within = (column <= header_end) & (value <= end) & (end <= owner + pages.usable)
        is_whole = (column < header_end) | (value == place + num_bytes)  # the values of a whole row fill it
        if not (is_within & is_whole).all():
            raise NotPlainError

    def keep(self, chosen: NDArray[np.bool_]) -> None:
        """Drop all rows but the chosen ones."""
        self.rowid = self.rowid[chosen]
        self._types = [kind[chosen] for kind in self._types]
        self._values = [value[chosen] for value in self._values]

    def integers(self, column: int) -> NDArray[np.int64]:
        """Return a column; `NULL` for an absent value."""
        kind = self._types[column]
        if ((kind == _FLOAT) | (kind > _ONE)).any():
            raise NotPlainError
        size = _SIZES[kind]
        unused = 8 * (8 - size)
        numbers = _big_endian(self.data, self._values[column] + size - 8, 8) << unused >> unused
        is_constant = size == 0
        if is_constant.any():
            numbers[is_constant] = _CONSTANTS[kind[is_constant]]
        return numbers

    def texts(self, column: int, limit: int) -> list[bytes]:
        """Return a column of texts, at most `limit` bytes of each; an empty one where there is none."""
        kind, begin = self._types[column], self._values[column]
        is_text = (kind >= _FIRST_TEXT) & (kind % 2 == 1)
        if not (is_text | (kind == 0)).all():
            raise NotPlainError
        end = begin + np.minimum(_sizes(kind), limit)
        raw = self.data.tobytes()
        return [raw[first:last] for first, last in zip(begin.tolist(), end.tolist(), strict=True)]


def pages_of(file: IO[bytes]) -> Pages | None:
    """Return the pages of a file; None if it has no header."""
    header = os.pread(file.fileno(), _HEADER_BYTES, 0)
    return Pages(file, header) if len(header) == _HEADER_BYTES else None


def blocks(pages: Pages, root: int, num_columns: int) -> Iterator[RowBlock]:
    """Yield the rows of a table, with as many of the columns that a row begins with."""
    leaves = pages.leaves(root)
    at_a_time = max(1, _BLOCK_BYTES // pages.size)
    for first in range(0, len(leaves), at_a_time):
        data = pages.read(leaves[first : first + at_a_time])
        try:
            yield RowBlock(pages, data, num_columns)
        except IndexError as error:
            raise NotPlainError from error


def _cells(data: NDArray[np.uint8], starts: _Places, page_size: int, kind: int, header: int) -> tuple[_Places, _Places]:
    """Return where the cells of pages begin, in the order of the rows, and where the page of each begins."""
    if (data[starts] != kind).any():
        raise NotPlainError
    counts = _big_endian(data, starts + 3, 2)
    if (header + 2 * counts > page_size).any() or (len(counts) > 1 and not counts.all()):
        raise NotPlainError
    owner = np.repeat(starts, counts)
    number = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
    offset = _big_endian(data, owner + header + 2 * number, 2)
    if ((offset < header) | (offset >= page_size)).any():
        raise NotPlainError
    return owner + offset, owner


def _big_endian(data: NDArray[np.uint8], places: _Places, size: int) -> NDArray[np.int64]:
    """Return the integers of a size that begin at the places: those of 8 bytes are signed, others are not."""
    items: NDArray[np.void] = np.ndarray(len(data) - size + 1, f"V{size}", data, strides=(1,))
    return items[places].view(f">{'i' if size == 8 else 'u'}{size}").astype(np.int64)


def _varint(data: NDArray[np.uint8], places: _Places) -> tuple[_Numbers, _Places]:
    """Return the numbers of up to 8 bytes at the places, and the places after them."""
    byte = data[places]
    after = places + 1
    if not len(byte) or byte.max() < 128:
        return byte, after
    numbers = byte.astype(np.int64) & 127
    rows = np.flatnonzero(byte > 127)
    for position in range(1, 8):
        byte = data[places[rows] + position]
        numbers[rows] = numbers[rows] << 7 | byte & 127
        after[rows] += 1
        rows = rows[byte > 127]
        if not len(rows):
            return numbers, after
    raise NotPlainError  # a number has more than 56 bits


def _sizes(kind: _Numbers) -> NDArray[np.int64]:
    """Return the sizes of values by their serial types."""
    if kind.dtype == np.uint8:
        return _SIZES[kind]
    if int(kind.max()) >> 32:
        raise NotPlainError
    return np.where(kind < len(_SIZES), _SIZES[kind.clip(max=len(_SIZES) - 1)], (kind - _FIRST_BLOB) >> 1)


def _local(num_bytes: _Numbers, usable: int) -> _Numbers:
    """Return how many bytes of each row are in its page: the rest of a long one is in overflow pages."""
    most = usable - 35
    if not len(num_bytes) or int(num_bytes.max()) <= most:
        return num_bytes
    least = (usable - 12) * 32 // 255 - 23
    filling = least + (num_bytes - least) % (usable - 4)
    return np.where(num_bytes <= most, num_bytes, np.where(filling <= most, filling, least))
