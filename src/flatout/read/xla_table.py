"""Turn the lines of an XLA profile into the event table of one device.

In: an `XlaProfile`, and the device if it has several. Out: an `EventTable`: kernels and copies of a GPU or TPU, or the
operators of XLA on a CPU; launches; calls in Python that wait for data, for the device or for a checkpoint; step marks.
The host's main thread counts as the one that launches. What no analysis needs is skipped and counted.
"""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from flatout.read import xla_names
from flatout.read.assembled import Source, assemble
from flatout.read.decoded import Codes
from flatout.read.lookups import distinct
from flatout.read.metadata import FileMetadata
from flatout.read.processes import RankPart
from flatout.read.xla_devices import cpu_devices, cpu_rank, device_number, is_of_tpu
from flatout.read.xla_lines import XlaLine, XlaProfile
from flatout.read.xla_rows import Rows, all_of, concatenated, is_within_another, kept, number_repetitions, times_of
from flatout.read.xla_steps import Marks, find_marks
from flatout.records.events import NULL, CollectiveArgs, EventTable, Kind, Quality, TraceFormat

_SIZE = re.compile(r"(?:^|\s)(?:size|num_bytes):(\d{1,18})(?!\d)")
_DIRECTION = re.compile(r"^(Memcpy)?\s*([HDP])(?:to|2)([HDP])$")
_MAX_PARENTS = 64
_OPERATORS, _ASYNCHRONOUS = "XLA Ops", "Async XLA Ops"  # lines of a TPU


class _Names:
    """The names of the table, and what each name of the profile means, found out once per name."""

    def __init__(self, names: Sequence[str]) -> None:
        self.of_profile = names
        self.codes: Codes[str] = Codes()

    def matching(self, test: Callable[[str], object]) -> NDArray[np.bool_]:
        """Return whether each name of the profile passes the test; one more entry, False, is for NULL."""
        matches: NDArray[np.bool_] = np.array([*(bool(test(name)) for name in self.of_profile), False], np.bool_)
        return matches

    def table_codes(self, rename: Callable[[str], str]) -> NDArray[np.int32]:
        """Return the code in the table of each name of the profile after renaming it."""
        return np.array([*(self.codes[rename(name)] for name in self.of_profile), NULL], np.int32)


def xla_table(
    profile: XlaProfile, name: str, file_format: TraceFormat, part: RankPart | None, rank_hint: int | None
) -> EventTable:
    """Return the table of a profile, or of one of its devices."""
    return _Builder(profile, part).build(name, file_format, rank_hint)


class _Builder:
    def __init__(self, profile: XlaProfile, part: RankPart | None) -> None:
        self.profile = profile
        self.part = part
        self.names = _Names(profile.names)
        self.threads: Codes[tuple[str, str]] = Codes()
        self.collectives: Codes[CollectiveArgs] = Codes()
        self.dropped: Counter[str] = Counter()
        self.pid = profile.process or "host"
        self.operation = [xla_names.collective(each) for each in profile.names]
        self.is_collective = self.names.matching(xla_names.collective)
        self.is_container = self.names.matching(xla_names.is_container)
        self.is_end = self.names.matching(xla_names.is_end_of_collective)
        self.is_device_copy = self.names.matching(xla_names.is_device_copy)
        self.asynchronous_planes = {line.plane for line in profile.lines if line.name == _ASYNCHRONOUS}
        self.meanings = [xla_names.meaning(each) for each in profile.names]
        self.meaning_code = np.array(
            [
                *(
                    NULL if meaning is None else self.names.codes[f"{meaning} ({name.lstrip('$')})"]
                    for name, meaning in zip(profile.names, self.meanings, strict=True)
                ),
                NULL,
            ],
            np.int32,
        )
        self.plain_code = self.names.table_codes(lambda each: each)

    def build(self, name: str, file_format: TraceFormat, rank_hint: int | None) -> EventTable:
        device_lines = self._device_lines()
        host_lines = [line for line in self.profile.lines if line.plane.startswith("/host:")]
        marks = find_marks(self.profile, host_lines, device_lines)
        self.main = self.threads[self.pid, marks.thread or "host"]
        pieces = [rows for line in device_lines if (rows := self._device_rows(line)) is not None]
        is_on_cpu = not pieces
        launched = all_of(pieces, "correlation")
        pieces += [
            rows for line in host_lines if (rows := self._host_rows(line, launched, marks, is_on_cpu)) is not None
        ]
        if len(marks.number):
            pieces.append(self._mark_rows(marks))
        source = Source(
            path=name,
            format=file_format,
            metadata=self._metadata(rank_hint, is_on_cpu),
            names=list(self.names.codes),
            threads=list(self.threads),
            collectives=list(self.collectives),
            quality=(*self.profile.quality, *marks.quality, *self._lacks(is_on_cpu)),
            dropped=dict(+self.dropped),  # without those of which there were none
            runs_beside_host=is_on_cpu,
        )
        columns = concatenated(pieces)
        if "sequence" in columns:
            number_repetitions(columns["sequence"], columns["start_ns"])
        return assemble(columns, source)

    def _device_lines(self) -> list[XlaLine]:
        """Return the lines of the devices, or of the one device that the table is for."""
        lines = [line for line in self.profile.lines if device_number(line.plane) is not None]
        if self.part is None or self.part.device is None:
            return lines
        return [line for line in lines if device_number(line.plane) == self.part.device]

    def _metadata(self, rank_hint: int | None, is_on_cpu: bool) -> FileMetadata:
        rank = rank_hint
        if self.part is not None:
            rank = self.part.rank
        elif is_on_cpu and rank is None:
            rank = next((cpu_rank(number, 1) for number in cpu_devices(self.profile)), None)
        device_names = {
            number: text
            for plane, text in self.profile.device_names.items()
            if (number := device_number(plane)) is not None
        }
        return FileMetadata(rank=rank, hostname=self.profile.hostname, device_names={} if is_on_cpu else device_names)

    def _lacks(self, is_on_cpu: bool) -> list[Quality]:
        notes = []
        if self.part is not None and self.part.left_out is not None:
            notes.append(Quality(problem=self.part.left_out, effect="their copies are not shown"))
        if self.collectives:
            notes.append(
                Quality(
                    problem="profiles of XLA have neither the sizes of collectives nor the groups that take part",
                    effect="their bandwidth is unknown",
                )
            )
        if self.profile.start_ns is None:
            notes.append(
                Quality(
                    problem="the file does not say when its times begin",
                    effect="the clocks of several ranks can only be aligned where they share collectives",
                    max_confidence="medium" if is_on_cpu else None,
                )
            )
        return notes

    def _device_rows(self, line: XlaLine) -> Rows | None:
        """Return the kernels and copies of a stream of a GPU, or the operators of a TPU; None of any other line."""
        is_stream = line.name.startswith("Stream #")
        is_tpu = is_of_tpu(line) and line.name in (_OPERATORS, _ASYNCHRONOUS)
        if not (is_stream or is_tpu):
            self.dropped[f"events of the line {line.name!r}"] += len(line.start_ns)
            return None
        operator = self._operator(line, is_tpu)
        is_kept = np.ones(len(line.start_ns), np.bool_)
        if is_tpu:  # the kernels of a GPU's stream never contain each other
            is_kept = self._is_work_of_tpu(line, operator)
        kind = np.full(len(line.start_ns), Kind.KERNEL, np.uint8)
        kind[self._is_copy(line, "Memcpy", "memcpy_details")] = Kind.MEMCPY
        if is_tpu:
            kind[self.is_device_copy[operator]] = Kind.MEMCPY
        kind[self._is_copy(line, "Memset", "memset_details")] = Kind.MEMSET
        number = device_number(line.plane)
        stream = zlib.crc32(line.name.encode()) if not is_stream else _number_in(line.name)
        rows: Rows = {
            "kind": kind,
            "name": self._tpu_names(operator) if is_tpu else self._device_names(line),
            "device": np.full(len(kind), NULL if number is None else number, np.int32),
            "stream": np.full(len(kind), stream, np.int64),
            "thread": np.full(len(kind), self.threads[self.pid, f"{line.plane} {line.name}"], np.int32),
            "correlation": line.number("correlation_id"),
            "num_bytes": self._tpu_bytes(operator) if is_tpu else self._num_bytes(line),
            "collective": self._collective_codes(operator),
            **times_of(line),
        }
        return kept(rows, is_kept)

    def _is_work_of_tpu(self, line: XlaLine, operator: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Return the operators of a TPU that do work: no containers, and each collective once.

        A collective that another operator starts is on the line of asynchronous ones, from its start to its end; where
        a device has no such line, the operator that waits for its end is all that is known. Operators without a
        duration start something, or their end was lost.
        """
        is_work = ~self.is_container[operator]
        if line.name == _ASYNCHRONOUS:
            return np.asarray(is_work & self.is_collective[operator])
        has_duration = line.duration_ns > 0
        self.dropped["operators of a TPU without a duration"] += int((~has_duration).sum())
        is_counted_there = self.is_end[operator] & (line.plane in self.asynchronous_planes)
        return np.asarray(is_work & has_duration & ~is_counted_there)

    def _tpu_names(self, operator: NDArray[np.int32]) -> NDArray[np.int32]:
        codes: NDArray[np.int32] = self.names.table_codes(_tpu_name)[operator]
        return codes

    def _tpu_bytes(self, operator: NDArray[np.int32]) -> NDArray[np.int64]:
        sizes = [
            size if xla_names.is_device_copy(name) and (size := xla_names.device_copy_bytes(name)) is not None else NULL
            for name in self.profile.names
        ]
        return np.array([*sizes, NULL], np.int64)[operator]

    def _operator(self, line: XlaLine, is_tpu: bool) -> NDArray[np.int32]:
        operator = line.text("hlo_op")
        return np.where(operator == NULL, line.event_name, operator).astype(np.int32) if is_tpu else operator

    def _is_copy(self, line: XlaLine, prefix: str, details: str) -> NDArray[np.bool_]:
        named: NDArray[np.bool_] = self.names.matching(lambda each: each.startswith(prefix))[line.event_name]
        return np.asarray(named | (line.text(details) != NULL))

    def _device_names(self, line: XlaLine) -> NDArray[np.int32]:
        codes: NDArray[np.int32] = self.names.table_codes(_copy_name)[line.event_name]
        return codes

    def _num_bytes(self, line: XlaLine) -> NDArray[np.int64]:
        num_bytes = line.number("num_bytes").copy()
        for details in ("memcpy_details", "memset_details"):
            sizes = np.array([*(_size_in(each) for each in self.profile.names), NULL], np.int64)
            text = line.text(details)
            num_bytes = np.where(num_bytes == NULL, sizes[text], num_bytes)
        return num_bytes

    def _collective_codes(self, operator: NDArray[np.int32]) -> NDArray[np.int32]:
        codes = np.full(len(operator), NULL, np.int32)
        for name in np.unique(operator[self.is_collective[operator]]).tolist():
            operation = self.operation[name]
            assert operation is not None
            codes[operator == name] = self.collectives[CollectiveArgs(operation=operation)]
        return codes

    def _host_rows(self, line: XlaLine, launched: NDArray[np.int64], marks: Marks, is_on_cpu: bool) -> Rows | None:
        """Return the host events that an analysis needs, of one thread."""
        kind = np.full(len(line.start_ns), 255, np.uint8)
        name = self.plain_code[line.event_name].copy()
        thread = np.full(len(kind), self.threads[self.pid, line.name], np.int32)
        collective = np.full(len(kind), NULL, np.int32)
        is_main = line.name == marks.thread
        self._classify_host(line, kind, name, is_main)
        if is_on_cpu:
            kind[kind == Kind.RUNTIME] = Kind.PYTHON  # the device that it waits for is the CPU itself
        correlation = line.number("correlation_id")
        calls = self.names.matching(xla_names.is_runtime_call)[line.event_name] | (correlation != NULL)
        is_launch = np.isin(correlation, launched)
        is_call = calls & (is_launch | (self.part is None) | (correlation == NULL))
        kind[is_call] = Kind.RUNTIME
        name[is_call] = self.names.table_codes(xla_names.call_name)[line.event_name[is_call]]
        thread[is_launch] = self.main
        if is_on_cpu:
            self._add_operators(line, kind, name, thread, collective)
        if is_main:
            thread[:] = self.main
        self._count_dropped(line, kind == 255)
        rows: Rows = {
            "kind": kind,
            "name": name,
            "thread": thread,
            "correlation": correlation,
            "collective": collective,
            "sequence": self._sequence(line, collective),
            **times_of(line),
        }
        return kept(rows, kind != 255)

    def _classify_host(self, line: XlaLine, kind: NDArray[np.uint8], name: NDArray[np.int32], is_main: bool) -> None:
        """Set kind and name of annotations, and of calls in Python that wait for something."""
        meaning = self.meaning_code[line.event_name]
        waits = self._means(xla_names.SYNCHRONIZE)[line.event_name]
        has_meaning = (meaning != NULL) & ~self._is_entering(line)
        for each in (xla_names.DATA_LOADING, xla_names.CHECKPOINT):
            has_meaning &= ~is_within_another(line, has_meaning & self._means(each)[line.event_name])
        kind[has_meaning] = Kind.USER_ANNOTATION
        kind[has_meaning & waits] = Kind.RUNTIME
        name[has_meaning] = meaning[has_meaning]
        if not is_main:
            return
        is_step = line.number("step_num") != NULL
        is_annotation = ~(
            self.names.matching(xla_names.is_python)[line.event_name]
            | self.names.matching(xla_names.is_internal)[line.event_name]
            | self.names.matching(xla_names.is_runtime_call)[line.event_name]
        )
        kind[is_annotation & ~has_meaning & ~is_step & (line.text("hlo_op") == NULL)] = Kind.USER_ANNOTATION

    def _means(self, meaning: str) -> NDArray[np.bool_]:
        return np.array([*(each == meaning for each in self.meanings), False], np.bool_)

    def _is_entering(self, line: XlaLine) -> NDArray[np.bool_]:
        """Return which calls for a next value come from entering a context manager: they load no data."""
        result = np.zeros(len(line.start_ns), np.bool_)
        is_next = self.names.matching(xla_names.is_next)[line.event_name]
        is_context = self.names.matching(xla_names.is_of_context_manager)[line.event_name]
        if not is_next.any() or not is_context.any():
            return result
        order = np.lexsort((-line.duration_ns, line.start_ns))
        end_ns = line.start_ns + line.duration_ns
        for place in np.flatnonzero(is_next[order]).tolist():
            row = order[place]
            before = order[max(0, place - _MAX_PARENTS) : place][::-1]
            around = before[end_ns[before] >= end_ns[row]]
            result[row] = bool(len(around)) and bool(is_context[around[0]])
        return result

    def _add_operators(
        self,
        line: XlaLine,
        kind: NDArray[np.uint8],
        name: NDArray[np.int32],
        thread: NDArray[np.int32],
        collective: NDArray[np.int32],
    ) -> None:
        """Set the operators of a CPU, which XLA runs on its own threads for the main one."""
        operator = line.text("hlo_op")
        is_operator = (operator != NULL) & ~self.is_container[operator]
        if self.part is not None:
            is_operator &= line.number("device_ordinal") == self.part.device
        is_collective = is_operator & self.is_collective[operator]
        kind[is_operator] = Kind.CPU_OP
        kind[is_collective] = Kind.USER_ANNOTATION
        thread[is_operator] = self.main
        renamed = self.names.table_codes(_operator_name)
        name[is_operator] = renamed[operator[is_operator]]
        collective[is_collective] = self._collective_codes(operator)[is_collective]

    def _sequence(self, line: XlaLine, collective: NDArray[np.int32]) -> NDArray[np.int64]:
        """Return a number for each collective that is equal on all ranks: of its run of a program and its operator."""
        sequence = np.full(len(collective), NULL, np.int64)
        run, operator = line.number("run_id"), line.text("hlo_op")
        rows = np.flatnonzero((collective != NULL) & (run != NULL))
        operators, places = distinct(operator[rows].astype(np.int64))
        of_operator = [zlib.crc32(self.profile.names[code].encode()) for code in operators.tolist()]
        sequence[rows] = (run[rows] & 0x7FFFFFFF) << 32 | np.array(of_operator, np.int64)[places]
        return sequence

    def _count_dropped(self, line: XlaLine, is_dropped: NDArray[np.bool_]) -> None:
        is_python = self.names.matching(xla_names.is_python)[line.event_name]
        self.dropped["Python calls"] += int((is_dropped & is_python).sum())
        self.dropped["events of XLA's own threads"] += int((is_dropped & ~is_python).sum())

    def _mark_rows(self, marks: Marks) -> Rows:
        names = [self.names.codes[f"ProfilerStep#{number}"] for number in marks.number.tolist()]
        return {
            "kind": np.full(len(names), Kind.USER_ANNOTATION, np.uint8),
            "name": np.array(names, np.int32),
            "thread": np.full(len(names), self.main, np.int32),
            "start_ns": marks.start_ns,
            "duration_ns": marks.end_ns - marks.start_ns,
        }


def _number_in(text: str) -> int:
    match = re.search(r"\d{1,9}", text)
    return int(match[0]) if match is not None else 0


def _tpu_name(name: str) -> str:
    """Return the name of a TPU's operator without its instruction, or that of a copy."""
    return xla_names.device_copy_name(name) if xla_names.is_device_copy(name) else xla_names.instruction_name(name)


def _copy_name(name: str) -> str:
    """Return the name of a copy with its direction as Kineto writes it: `Memcpy HtoD` for `MemcpyH2D`."""
    match = _DIRECTION.match(name)
    return f"Memcpy {match[2]}to{match[3]}" if match is not None else name


def _operator_name(name: str) -> str:
    operation = xla_names.collective(name)
    return name if operation is None else xla_names.COLLECTIVE + operation


def _size_in(text: str) -> int:
    match = _SIZE.search(text)
    return int(match[1]) if match is not None else NULL
