"""Decode a block of event text to columns.

In: bytes that hold complete JSON events, separated by commas. Out: one numpy array per column of the event table, with
times relative to the file's base time, and ids into this decoder's own dictionaries; `table` joins the blocks. Text
that does not decode strictly goes to `lenient`. This module does not depend on files or processes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import compress
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from flatout.read.collectives import as_integer, collective_args, host_collective_args
from flatout.read.decoded import Codes, Columns, Dictionaries
from flatout.read.schema import (
    MTIA_DEVICE,
    SKIPPED,
    UNREADABLE,
    AnyEvent,
    AnyExactEvent,
    Arguments,
    CompleteEvent,
    ExactEvent,
    KindOfCategory,
)
from flatout.read.times import exact_times_ns, times_ns
from flatout.records.events import COLUMNS, GPU_WORK, NULL, CollectiveArgs, Kind

_NO_SHAPES = (b"", b"null")
_IS_ON_DEVICE = np.zeros(256, np.bool_)
_IS_ON_DEVICE[[*GPU_WORK, Kind.GPU_ANNOTATION, Kind.SYNC, MTIA_DEVICE]] = True

# Only Python functions that wait for data or write a checkpoint are used; the others are most of the file.
# torch/utils/checkpoint.py is activation recomputation, not a checkpoint.
_KEPT_PYTHON = re.compile(
    r"torch/utils/data/|data_?loader|dataset|torch/serialization\.py\(\d+\): _?(?:legacy_)?save"
    r"|distributed/checkpoint/|(?:save|write|dump)_?(?:model_?|training_?)?(?:checkpoint|ckpt|state)|checkpointing\.py",
    re.IGNORECASE,
)


class _KeptPython(dict[str, bool]):
    def __missing__(self, name: str) -> bool:
        kept = self[name] = _KEPT_PYTHON.search(name) is not None
        return kept


class BlockDecoder:
    """Decodes blocks one after another; its dictionaries and counts grow over all of them."""

    def __init__(self) -> None:
        self.names: Codes[str] = Codes()
        self.threads: Codes[tuple[int | str, int | str]] = Codes()
        self.shapes: Codes[bytes] = Codes()
        self.collectives: Codes[CollectiveArgs] = Codes()
        self.kinds = KindOfCategory()
        self.dropped: Counter[str] = Counter()  # dropped by design: phases and categories that no analysis needs
        self.damage: Counter[str] = Counter()  # keys of `quality.DAMAGE`
        self._kept_python = _KeptPython()
        self._strict = msgspec.json.Decoder(list[AnyEvent])
        self._exact = msgspec.json.Decoder(list[AnyExactEvent])

    def decode(self, block: bytes | memoryview) -> Columns:
        text = b"".join((b"[", block, b"]"))
        try:
            columns = self._columns(self._strict.decode(text), CompleteEvent)
            if columns is None:
                columns = self._columns(self._exact.decode(text), ExactEvent)
        except UNREADABLE:
            from flatout.read import lenient  # slow to import, and rarely needed

            columns = self._columns(lenient.decode(text[1:-1], self.damage), ExactEvent)
        assert columns is not None
        return columns

    def finish(self) -> Dictionaries:
        return Dictionaries(
            names=list(self.names),
            threads=list(self.threads),
            shapes=list(self.shapes),
            collectives=list(self.collectives),
            dropped=self.dropped,
            damage=self.damage,
            unknown_categories=self.kinds.unknown,
        )

    def _columns(self, events: list[Any], complete: type[CompleteEvent] | type[ExactEvent]) -> Columns | None:
        """Return the columns of decoded events; None if `CompleteEvent` cannot hold their times exactly."""
        rows: list[Any] = [event for event in events if type(event) is complete]
        kind_of = self.kinds
        kind = np.fromiter([kind_of[row.cat or row.pid] for row in rows], np.uint8, len(rows))
        times = times_ns(rows) if complete is CompleteEvent else exact_times_ns(rows)
        if times is None:
            return None
        start_ns, duration_ns, placed = times
        self.dropped["other phases"] += len(events) - len(rows)
        kept = placed & self._needed(rows, kind, placed)
        if not kept.all():
            rows = list(compress(rows, kept))
            kind, start_ns, duration_ns = kind[kept], start_ns[kept], duration_ns[kept]
        names, threads = self.names, self.threads
        return {
            "kind": kind,
            "name": np.fromiter([names[row.name] for row in rows], np.int32, len(rows)),
            "start_ns": start_ns,
            "duration_ns": duration_ns,
            "thread": np.fromiter([threads[row.pid, row.tid] for row in rows], np.int32, len(rows)),
            **self._argument_columns(rows, kind),
        }

    def _needed(self, rows: list[Any], kind: NDArray[np.uint8], placed: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return True for events that an analysis needs; count the others."""
        self.damage["no time"] += len(rows) - int(placed.sum())
        needed = np.ones(len(rows), np.bool_)
        for index in np.flatnonzero(((kind == SKIPPED) | (kind == Kind.PYTHON)) & placed).tolist():
            row = rows[index]
            if kind[index] == SKIPPED or not self._kept_python[row.name]:
                needed[index] = False
                self.dropped[row.cat or "no category"] += 1
        return needed

    def _argument_columns(self, rows: list[Any], kind: NDArray[np.uint8]) -> Columns:
        """Return the columns of `args`. Lists are built only for rows that can have a value, in a third of the time."""
        arguments = [row.args for row in rows]
        external_id = self._integers([a.external_id for a in arguments])
        without = np.flatnonzero(external_id == NULL)
        external_id[without] = self._integers([arguments[i].external_id_2021 for i in without.tolist()])
        return {
            "correlation": self._integers([a.correlation for a in arguments]),
            "external_id": external_id,
            "shape": _codes([a.input_dims for a in arguments], self.shapes),
            **self._device_columns(arguments, np.flatnonzero(_IS_ON_DEVICE[kind])),
            **self._collective_columns(arguments, self._host_collectives(rows, kind)),
        }

    def _host_collectives(self, rows: list[Any], kind: NDArray[np.uint8]) -> dict[int, CollectiveArgs]:
        """Return the collectives on the CPU, of which shapes and types of tensors are recorded, by row."""
        annotations = np.flatnonzero(kind == Kind.USER_ANNOTATION).tolist()
        recorded = {index: host_collective_args(rows[index].name, rows[index].args) for index in annotations}
        return {index: args for index, args in recorded.items() if args is not None}

    def _device_columns(self, arguments: list[Arguments], on_device: NDArray[np.intp]) -> Columns:
        on = [arguments[i] for i in on_device.tolist()]
        device = self._integers([a.device for a in on])
        columns = {
            "device": np.where((device >= 0) & (device < 1 << 31), device, NULL),
            "stream": self._integers([a.stream for a in on]),
            "num_bytes": self._integers([a.num_bytes for a in on]),
        }
        return {column: _scattered(values, on_device, len(arguments), column) for column, values in columns.items()}

    def _collective_columns(self, arguments: list[Arguments], on_host: dict[int, CollectiveArgs]) -> Columns:
        operations = [a.operation for a in arguments]
        collective = np.full(len(arguments), NULL, np.int32)
        sequence = np.full(len(arguments), NULL, np.int64)
        for index, args in on_host.items():
            collective[index] = self.collectives[args]
        if operations.count(None) < len(operations):
            for index in [i for i, operation in enumerate(operations) if operation is not None]:
                collective[index] = self.collectives[collective_args(arguments[index])]
                sequence[index] = self._integer(arguments[index].sequence)
        return {"collective": collective, "sequence": sequence}

    def _integers(self, values: Sequence[Any]) -> NDArray[np.int64]:
        try:
            return np.fromiter(values, np.int64, len(values))
        except (TypeError, ValueError, OverflowError):
            return np.fromiter(map(self._integer, values), np.int64, len(values))

    def _integer(self, value: Any) -> int:
        """Return an id as a number, whatever type it was written as; NULL if it is not a number or exceeds 64 bits."""
        number = as_integer(value)
        if number is None:
            return NULL
        if not -(1 << 63) <= number < 1 << 63:
            self.damage["oversized id"] += 1
            return NULL
        return number


def _scattered(values: NDArray[np.int64], rows: NDArray[np.intp], num_rows: int, column: str) -> NDArray[Any]:
    scattered = np.full(num_rows, NULL, COLUMNS[column])
    scattered[rows] = values
    return scattered


def _codes(raw_texts: list[msgspec.Raw], codes: Codes[bytes]) -> NDArray[np.int32]:
    texts = [bytes(raw) for raw in raw_texts]
    if texts.count(b"") == len(texts):
        return np.full(len(texts), NULL, np.int32)
    return np.fromiter([NULL if text in _NO_SHAPES else codes[text] for text in texts], np.int32, len(texts))
