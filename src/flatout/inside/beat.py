"""A rank's heartbeat: a small memory-mapped file that tells another process how far this one is.

In: what the hooks report. Out: `beat-<host>-<pid>` in the folder of FLATOUT_HEARTBEAT: a line of JSON that names its
numbers, then the numbers, each of 8 bytes. It is read without asking this process, so also while it is stuck. All
times are nanoseconds of CLOCK_MONOTONIC, which all processes of a host share. Phases are those of the thread that
trains; `compute` is what is in no other.
"""

from __future__ import annotations

import json
import mmap
import os
import threading
import time
from pathlib import Path
from typing import Any

SCHEMA, VERSION = "flatout/beat", 1
HEADER_BYTES, SIZE = 4096, 4096 + 8 * 512
PHASES = ("compute", "data", "checkpoint", "evaluation")
COMPUTE, DATA, CHECKPOINT, EVALUATION = range(len(PHASES))
NUM_GROUPS = 16
NUM_BUCKETS = 64  # of step times: bucket b counts those from 2**(b-1) to 2**b ns

_NAMES = (
    ("change", 1),  # odd while a step's end is being written
    ("rank", 1),  # -1: not known to be a rank
    ("world_size", 1),
    ("num_events", 1),  # of any kind: it grows while the job gets on
    ("num_steps", 1),
    ("base_step", 1),  # steps that the optimizer had made before this process; -1: unknown
    ("has_loaded", 1),  # torch.load before the first step
    ("phase", 1),
    ("phase_since", 1),
    ("first_step_end", 1),
    ("last_step_end", 1),
    ("num_checkpoints", 1),
    ("checkpoint_step", 1),  # num_steps when the last one was complete; -1: none
    ("main_thread", 1),
    ("gives_stacks", 1),  # the signal is still ours
    ("has_ended", 1),  # by itself
    ("has_gpu", 1),
    ("gpu", 2),  # the two halves of its UUID; 0: unknown
    ("exchange", 4),  # see `exchanged`; all 0: none is known
    ("spent", len(PHASES)),  # ns in each phase, but for the phase that runs
    ("spent_at_first", len(PHASES)),  # the same at the end of the first step
    ("spent_at_last", len(PHASES)),  # and of the last
    ("longest", len(PHASES)),  # ns; of compute, the longest step
    ("num_groups", 1),
    ("sequence", NUM_GROUPS),  # collectives begun in each process group, as torch counts them
    ("buckets", NUM_BUCKETS),
)
SLOTS: dict[str, int] = {}
_next = 0
for _name, _count in _NAMES:
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
_BUCKETS, _N = SLOTS["buckets"], len(PHASES)
_EXCHANGE = SLOTS["exchange"]

_now = time.monotonic_ns


class Beat:
    """`slots` are the numbers; the methods are called on the thread that trains."""

    def __init__(self, folder: Path) -> None:
        self.pid = os.getpid()
        self.name = f"{os.uname().nodename}-{self.pid}"
        self._path = folder / f"beat-{self.name}"
        self._group_names: list[str] = []
        self._evaluation_mark = 0
        partial = folder / f".beat-{self.name}.part"
        with partial.open("w+b") as file:
            file.truncate(SIZE)
            self._map = mmap.mmap(file.fileno(), SIZE)
        self._bytes = memoryview(self._map)
        self.slots: Any = self._bytes[HEADER_BYTES:].cast("q")
        for name in ("rank", "base_step", "checkpoint_step"):
            self.slots[SLOTS[name]] = -1
        self.slots[_SINCE] = _now()
        self.slots[SLOTS["main_thread"]] = threading.main_thread().ident or 0
        self._write_header()
        partial.replace(self._path)  # seen whole, or not at all

    def _write_header(self) -> None:
        head = {
            "schema": SCHEMA,
            "version": VERSION,
            "pid": self.pid,
            "ticks": _start_ticks(),
            "pid_namespace": _pid_namespace(),
            "hostname": os.uname().nodename,
            "began_ns": int(self.slots[_SINCE]),
            "names": _NAMES,
            "phases": PHASES,
            "groups": self._group_names,
        }
        text = json.dumps(head, separators=(",", ":")).encode() + b"\n"
        if len(text) <= HEADER_BYTES:
            self._bytes[: len(text)] = text

    def is_rank(self, rank: int, world_size: int) -> None:
        self.slots[_WORLD] = world_size
        self.slots[_RANK] = rank

    def happened(self) -> None:
        self.slots[_EVENTS] += 1

    def enter(self, phase: int) -> int:
        """The phase before, to give to `leave`."""
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
        """A model was put into evaluation mode, or back into training."""
        phase = self.slots[_PHASE]
        if is_evaluating and phase == COMPUTE:
            self._evaluation_mark = self.slots[_SPENT + EVALUATION]
            self.enter(EVALUATION)
        elif not is_evaluating and phase == EVALUATION:
            self.leave(COMPUTE)

    def stepped(self) -> int:
        """An optimizer step has ended; the time."""
        slots, now = self.slots, _now()
        slots[_CHANGE] += 1
        slots[_SPENT + slots[_PHASE]] += now - slots[_SINCE]
        slots[_SINCE] = now
        if slots[_PHASE] == EVALUATION:  # no evaluation: a part of the model is kept in that mode while it is trained
            slots[_SPENT + COMPUTE] += slots[_SPENT + EVALUATION] - self._evaluation_mark
            slots[_SPENT + EVALUATION] = self._evaluation_mark
            slots[_PHASE] = COMPUTE
        number = slots[_STEPS] + 1
        if number == 1:
            slots[_FIRST_END] = now
            slots[_AT_FIRST : _AT_FIRST + _N] = slots[_SPENT : _SPENT + _N]
        else:
            took = now - slots[_LAST_END]
            slots[_BUCKETS + min(took.bit_length(), NUM_BUCKETS - 1)] += 1
            if took > slots[_LONGEST]:
                slots[_LONGEST] = took
        slots[_LAST_END] = now
        slots[_AT_LAST : _AT_LAST + _N] = slots[_SPENT : _SPENT + _N]
        slots[_STEPS] = number
        slots[_EVENTS] += 1
        slots[_CHANGE] += 1
        return now

    def is_on(self, uuid: bytes) -> None:
        """The GPU with this `uuid`, of 16 bytes."""
        for place in range(2):
            half = int.from_bytes(uuid[8 * place : 8 * place + 8], "big", signed=True)
            self.slots[SLOTS["gpu"] + place] = half

    def exchanged(self, iteration: int, exposed_ns: int, *, per_step: int, num_ranks: int) -> None:
        """How long an exchange of gradients among `num_ranks` lasted after the backward pass; a step has `per_step`."""
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
        """Collectives begun in each process group."""
        for group, number in sequences.items():
            if group not in self._group_names:
                if len(self._group_names) >= NUM_GROUPS:
                    continue
                self._group_names.append(group[:60])
                self._write_header()
            self.slots[SLOTS["sequence"] + self._group_names.index(group[:60])] = number
        self.slots[SLOTS["num_groups"]] = len(self._group_names)


def _pid_namespace() -> str:
    """In another one, as a container's, this process has another number."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _start_ticks() -> int:
    """When this process was started, in the kernel's ticks: with its number, it names the process for good."""
    try:
        return int(Path("/proc/self/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return 0
