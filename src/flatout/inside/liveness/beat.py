"""A rank's heartbeat: a small memory-mapped file that shows the progress of this process to other processes.

In: what the hooks report. Out: `beat-<host>-<pid>` in the folder of FLATOUT_HEARTBEAT: a line of JSON that names the
fields, then the fields, each of 8 bytes. Reading the file needs no answer from this process, so it works while the
process is stuck. All times are in nanoseconds of CLOCK_MONOTONIC, which all processes of a host share. Phases refer to
the training thread; `compute` is everything outside the other phases.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import threading
import time
from pathlib import Path
from typing import Any

from flatout.inside.protocol import (
    HEARTBEAT_BUCKETS,
    HEARTBEAT_FIELDS,
    HEARTBEAT_FINE_BUCKETS,
    HEARTBEAT_FINE_FACTOR,
    HEARTBEAT_FINE_FIRST_NS,
    HEARTBEAT_HEADER_BYTES,
    HEARTBEAT_MOST_GROUPS,
    HEARTBEAT_PHASES,
    HEARTBEAT_RECENT,
    File,
    partial_name,
    process_name,
)

SCHEMA, VERSION = "flatout/beat", 1
SIZE = HEARTBEAT_HEADER_BYTES + 8 * 1024
COMPUTE, DATA, CHECKPOINT, EVALUATION = range(len(HEARTBEAT_PHASES))

SLOTS: dict[str, int] = {}
_next = 0
for _name, _count in HEARTBEAT_FIELDS:
    SLOTS[_name] = _next
    _next += _count

_RANK, _WORLD, _EVENTS, _STEPS = (SLOTS[name] for name in ("rank", "world_size", "num_events", "num_steps"))
_CHANGE, _BASE, _LOADED, _PHASE, _SINCE = (
    SLOTS[name] for name in ("change", "base_step", "has_loaded", "phase", "phase_since")
)
_FIRST_END, _LAST_END = SLOTS["first_step_end"], SLOTS["last_step_end"]
_SPENT, _AT_FIRST, _AT_LAST, _LONGEST = (
    SLOTS[name] for name in ("spent", "spent_at_first", "spent_at_last", "longest")
)
_BUCKETS, _N = SLOTS["buckets"], len(HEARTBEAT_PHASES)
_EXCHANGE = SLOTS["exchange"]
_FINE, _RECENT, _RECENT_DATA, _RECENT_AWAY = (
    SLOTS[name] for name in ("fine_buckets", "recent", "recent_data", "recent_away")
)
_LOADER = SLOTS["loader"]
_LOADED_BATCHES, _LOADED_VALUES = SLOTS["loaded"], SLOTS["loaded_values"]
_FINE_SCALE = 1 / math.log(HEARTBEAT_FINE_FACTOR)

_now = time.monotonic_ns


class Beat:
    """The heartbeat file; `slots` are its numbers. The methods are called on the thread that trains."""

    def __init__(self, folder: Path) -> None:
        self.pid = os.getpid()
        self.name = process_name(os.uname().nodename, self.pid)
        self._path = folder / File.HEARTBEAT.of(self.name)
        self._group_names: list[str] = []
        self._evaluation_mark = 0
        partial = folder / partial_name(self._path.name)
        with partial.open("w+b") as file:
            file.truncate(SIZE)
            self._map = mmap.mmap(file.fileno(), SIZE)
        self._bytes = memoryview(self._map)
        self.slots: Any = self._bytes[HEARTBEAT_HEADER_BYTES:].cast("q")
        for name in ("rank", "base_step", "checkpoint_step"):
            self.slots[SLOTS[name]] = -1
        self.slots[_SINCE] = _now()
        self.slots[SLOTS["main_thread"]] = threading.main_thread().ident or 0
        self._write_header()
        partial.replace(self._path)  # others see the complete file or none

    def _write_header(self) -> None:
        head = {
            "schema": SCHEMA,
            "version": VERSION,
            "pid": self.pid,
            "ticks": _start_ticks(),
            "pid_namespace": _pid_namespace(),
            "hostname": os.uname().nodename,
            "began_ns": int(self.slots[_SINCE]),
            "names": HEARTBEAT_FIELDS,
            "phases": HEARTBEAT_PHASES,
            "groups": self._group_names,
        }
        text = json.dumps(head, separators=(",", ":")).encode() + b"\n"
        if len(text) <= HEARTBEAT_HEADER_BYTES:
            self._bytes[: len(text)] = text

    def is_rank(self, rank: int, world_size: int) -> None:
        self.slots[_WORLD] = world_size
        self.slots[_RANK] = rank

    def happened(self) -> None:
        self.slots[_EVENTS] += 1

    def enter(self, phase: int) -> int:
        """Enter a phase; return the previous phase, to pass to `leave`."""
        slots, now = self.slots, _now()
        before = slots[_PHASE]
        slots[_SPENT + before] += now - slots[_SINCE]
        slots[_SINCE] = now
        slots[_PHASE] = phase
        slots[_EVENTS] += 1
        return int(before)

    def leave(self, before: int) -> None:
        slots, now = self.slots, _now()
        phase = slots[_PHASE]
        spent = now - slots[_SINCE]
        slots[_SPENT + phase] += spent
        if spent > slots[_LONGEST + phase]:
            slots[_LONGEST + phase] = spent
        slots[_SINCE] = now
        slots[_PHASE] = before
        slots[_EVENTS] += 1

    def evaluates(self, is_evaluating: bool) -> None:
        """Note that a model was put into evaluation mode, or back into training mode."""
        phase = self.slots[_PHASE]
        if is_evaluating and phase == COMPUTE:
            self._evaluation_mark = self.slots[_SPENT + EVALUATION]
            self.enter(EVALUATION)
        elif not is_evaluating and phase == EVALUATION:
            self.leave(COMPUTE)

    def stepped(self) -> int:
        """Note the end of an optimizer step, and return the time."""
        slots, now = self.slots, _now()
        slots[_CHANGE] += 1
        slots[_SPENT + slots[_PHASE]] += now - slots[_SINCE]
        slots[_SINCE] = now
        if slots[_PHASE] == EVALUATION:  # not an evaluation: a part of the model stays in evaluation mode in training
            slots[_SPENT + COMPUTE] += slots[_SPENT + EVALUATION] - self._evaluation_mark
            slots[_SPENT + EVALUATION] = self._evaluation_mark
            slots[_PHASE] = COMPUTE
        number = slots[_STEPS] + 1
        if number == 1:
            slots[_FIRST_END] = now
            slots[_AT_FIRST : _AT_FIRST + _N] = slots[_SPENT : _SPENT + _N]
        else:
            took = now - slots[_LAST_END]
            slots[_BUCKETS + min(took.bit_length(), HEARTBEAT_BUCKETS - 1)] += 1
            slots[_FINE + fine_bucket(took)] += 1
            if took > slots[_LONGEST]:
                slots[_LONGEST] = took
            self._note_recent(number, took)
        slots[_LAST_END] = now
        slots[_AT_LAST : _AT_LAST + _N] = slots[_SPENT : _SPENT + _N]
        slots[_STEPS] = number
        slots[_EVENTS] += 1
        slots[_CHANGE] += 1
        return now

    def _note_recent(self, number: int, took: int) -> None:
        """Note the times of step `number`; `spent_at_last` is still that of the previous step."""
        slots = self.slots
        place = (number - 1) % HEARTBEAT_RECENT
        slots[_RECENT + place] = took
        slots[_RECENT_DATA + place] = slots[_SPENT + DATA] - slots[_AT_LAST + DATA]
        slots[_RECENT_AWAY + place] = (
            slots[_SPENT + CHECKPOINT]
            - slots[_AT_LAST + CHECKPOINT]
            + slots[_SPENT + EVALUATION]
            - slots[_AT_LAST + EVALUATION]
        )

    def is_on(self, uuid: bytes) -> None:
        """Note that this process uses the GPU with this `uuid`, of 16 bytes."""
        for place in range(2):
            half = int.from_bytes(uuid[8 * place : 8 * place + 8], "big", signed=True)
            self.slots[SLOTS["gpu"] + place] = half

    @property
    def loader_request(self) -> int:
        """Return the number of the last request for other loader settings that was followed; 0: none."""
        return int(self.slots[_LOADER + 2])

    @loader_request.setter
    def loader_request(self, number: int) -> None:
        self.slots[_LOADER + 2] = number

    def loads_with(self, num_workers: int, prefetch_factor: int) -> None:
        """Note the settings of the loader whose epoch begins."""
        self.slots[_LOADER] = num_workers
        self.slots[_LOADER + 1] = prefetch_factor

    def loaded(self, num_samples: int | None, num_tokens: int | None, num_values: int) -> None:
        """Note what a training batch holds; None: unknown."""
        self.slots[_LOADED_BATCHES] += num_samples or 0
        self.slots[_LOADED_BATCHES + 1] += num_tokens or 0
        self.slots[_LOADED_VALUES] += num_values

    def exchanged(self, iteration: int, exposed_ns: int, *, per_step: int, num_ranks: int) -> None:
        """Note how long a gradient exchange of `num_ranks` ranks continued after backward; a step has `per_step`."""
        slots = self.slots
        slots[_CHANGE] += 1
        for place, value in enumerate((iteration, exposed_ns, per_step, num_ranks)):
            slots[_EXCHANGE + place] = value
        slots[_CHANGE] += 1

    def set(self, name: str, value: int) -> None:
        self.slots[SLOTS[name]] = value

    def get(self, name: str) -> int:
        return int(self.slots[SLOTS[name]])

    def counts(self, sequences: dict[str, int]) -> None:
        """Note the number of collectives begun in each process group."""
        for group, number in sequences.items():
            if group not in self._group_names:
                if len(self._group_names) >= HEARTBEAT_MOST_GROUPS:
                    continue
                self._group_names.append(group[:60])
                self._write_header()
            self.slots[SLOTS["sequence"] + self._group_names.index(group[:60])] = number
        self.slots[SLOTS["num_groups"]] = len(self._group_names)


def fine_bucket(took_ns: int) -> int:
    """Return the number of the fine bucket that counts this step time."""
    if took_ns <= HEARTBEAT_FINE_FIRST_NS:
        return 0
    number = math.ceil(math.log(took_ns / HEARTBEAT_FINE_FIRST_NS) * _FINE_SCALE)
    return min(number, HEARTBEAT_FINE_BUCKETS - 1)


def _pid_namespace() -> str:
    """Return the PID namespace; a process has a different PID in each namespace, such as a container's."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _start_ticks() -> int:
    """Return when this process was started, in kernel ticks; together with the PID, this is a unique name."""
    try:
        return int(Path("/proc/self/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return 0
