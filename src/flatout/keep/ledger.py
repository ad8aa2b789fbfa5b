"""The goodput ledger: JSON lines, each appended by one write; and its totals.

A `seconds` line has the devices' time since the previous one, in nanoseconds by class. `steps_ns` is the time of steps,
and `known_ns` is the part of it in which each class of `within` was measured. Runs of one job, on any node, have the
same `job_key`. The file stays valid if the writer is killed at any time: a truncated line is skipped, and the next
writer begins a new line.

    {"schema": "flatout/ledger", "version": 1, "event": "run", "unix_s": .., "command": "..", "num_devices": 2 | null,
     "gpu": ".." | null, "node": "n1", "process": [7, 812], "job": "slurm-7" | null, "start": 1 | null,
     "job_key": "..", "away_s": 30.5 | null}
    {"event": "attempt", "unix_s": .., "attempt": 0}
    {"event": "seconds", "unix_s": .., "attempt": 0, "num_devices": 2, "ns": {"productive": .., ..}, "steps": 120,
     "reached": 340, "saved": 300 | null, "steps_ns": .., "known_ns": {"late_rank_wait": {"ddp": ..}, ..},
     "not_known": {"throttled": "why"}}
    {"event": "hang" | "failure" | "saving" | "end", ..}
"""

from __future__ import annotations

import atexit
import fcntl
import json
import os
import stat
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from flatout.checkpoint.lock import Lock
from flatout.checkpoint.problems import LockedError
from flatout.errors import InputError, OutputError
from flatout.input_files import BadLine, read_lines
from flatout.keep.account import CLASSES
from flatout.keep.ledger_lines import (
    AttemptLine,
    EndLine,
    FailureLine,
    HangLine,
    LedgerLine,
    RunLine,
    SavingLine,
    SecondsLine,
    decode_line,
)
from flatout.keep.step_breakdown import PARTED

SCHEMA, VERSION = "flatout/ledger", 1
_BEGINS = b'{"schema":"flatout/ledger",'
_HEAD_BYTES = 4096
_HINT = "pass a ledger that `flatout run --ledger FILE` wrote"
_NO_STEPS = "No step was seen in which it could be measured"
_NOT_YET = "Unknown before DDP's first timed exchange"  # the reason for lines that do not state a reason


class HeldError(OutputError):
    """Raised if another `flatout run` is writing to this ledger."""


class LedgerFile:
    """Adds lines to a ledger. `clean` is applied to each text in them, to mask secrets.

    The lines of two simultaneous runs could not be told apart, so the file is locked until this process ends, for
    whatever reason. On a file system without locks, a lock file next to it names the run that writes to it.
    """

    def __init__(self, path: Path, *, clean: Callable[[str], str] = lambda text: text) -> None:
        self._clean = clean
        self.path = path
        self.problem: str | None = None  # why the ledger cannot be written; this must not end the job
        self._lock: Lock | None = None
        try:
            self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            if not stat.S_ISREG(os.fstat(self._file).st_mode):  # a pipe or a device cannot be read back
                return
            try:
                self._lock = _locked(path, self._file)
            except (BlockingIOError, LockedError) as error:
                raise _held(path, self._file) from error
            size = os.lseek(self._file, 0, os.SEEK_END)
            is_other = _is_other(os.pread(self._file, _HEAD_BYTES, 0))
            if size and not is_other and os.pread(self._file, 1, size - 1) != b"\n":
                os.write(self._file, b"\n")
        except OSError as error:
            raise OutputError(
                f"{path}: the ledger cannot be written: {(error.strerror or str(error)).lower()}"
            ) from error
        if is_other:
            os.close(self._file)
            raise OutputError(f"{path} exists and is not a ledger: nothing is added to it", hint="name another file")

    def write(self, event: str, **values: Any) -> None:
        line = {"event": event, "unix_s": round(time.time(), 3), **values}
        if event == "run":
            line = {"schema": SCHEMA, "version": VERSION, **line}
        text = json.dumps(self._cleaned(line), separators=(",", ":")) + "\n"
        try:
            os.write(self._file, text.encode())
        except OSError as error:
            self.problem = f"{self.path}: {(error.strerror or str(error)).lower()}"

    def _cleaned(self, value: Any) -> Any:
        match value:
            case str():
                return self._clean(value)
            case dict():
                return {name: self._cleaned(item) for name, item in value.items()}
            case list() | tuple():
                return [self._cleaned(item) for item in value]
        return value

    def close(self) -> None:
        os.close(self._file)
        if self._lock is not None:
            self._lock.release()


def _locked(path: Path, file: int) -> Lock | None:
    """Lock the open file, for this process but not its children; return the lock file on a file system without locks.

    Raises BlockingIOError or LockedError if another run has the ledger.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:
        lock = Lock(path.parent, name=f".{path.name}.lock")
        atexit.register(lock.release)
        return lock
    return None


def _held(path: Path, file: int) -> HeldError:
    holder = "another `flatout run`"
    for raw in reversed(os.pread(file, os.fstat(file).st_size, 0).splitlines()):
        with suppress(msgspec.DecodeError, LookupError, TypeError):
            line = decode_line(raw)
            if isinstance(line, RunLine):
                holder += f" (process {line.process[0]} on {line.node})"
                break
    os.close(file)
    return HeldError(
        f"{holder} is writing to the ledger {path}, and only one run can write to it at a time",
        hint="pass --ledger ANOTHER_FILE, or an existing folder, in which each run has its own ledger",
    )


def _is_other(head: bytes) -> bool:
    """Whether the file is not a ledger. A damaged ledger still counts as one, because it must not prevent a restart."""
    line = head.lstrip(b"\0\n").partition(b"\n")[0]
    return bool(line) and not _BEGINS.startswith(line) and not (line.startswith(b"{") and b'"event"' in line)


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """The totals of all runs in a ledger, or of the runs that a filter selects."""

    num_runs: int
    num_attempts: int
    num_hangs: int
    num_failures: int
    num_not_the_jobs: int  # failures and hangs whose cause may be outside the job
    num_unfinished: int  # runs without an end line: still running, or their writer was killed
    num_bad_lines: int
    first_bad_line: str | None = None  # its file, number and field
    num_devices: int | None
    gpu: str | None  # GPU name of the last run
    num_steps: int
    ns: Mapping[str, int]  # by class
    failures: tuple[str, ...]
    # time in steps after the first step of each attempt, without data loading, checkpoints and evaluations
    steps_ns: int = 0
    # the part of `steps_ns` in which a class was measured, by class and by source
    known_ns: Mapping[str, Mapping[str, int]] = {}
    not_known: Mapping[str, str] = {}  # by class, why it was measured in only a part of `steps_ns` or not at all
    away_s: float = 0.0  # time between two starts of the job by its scheduler, without devices: in no class
    num_nodes: int = 1  # nodes, each with its own `flatout run` and ledger
    saving: Mapping[str, Any] | None = None  # the last choice of an interval, as a `saving` line

    @property
    def allocated_ns(self) -> int:
        return sum(self.ns.values())

    @property
    def goodput(self) -> float | None:
        """Return the share of the allocated time that made new steps; None if no time could be classified."""
        is_known = self.allocated_ns > self.ns.get("unknown", 0)
        return self.ns.get("productive", 0) / self.allocated_ns if is_known else None

    def known_share(self, name: str) -> float | None:
        """Return the share of the steps' time in which a class inside the steps was measured; None without steps."""
        known_ns = sum(self.known_ns.get(name, {}).values())
        return min(known_ns / self.steps_ns, 1.0) if self.steps_ns else None


class LedgerAccumulator:
    """Adds up the lines of a ledger as they are read."""

    def __init__(self) -> None:
        self._ns = Counter(dict.fromkeys(CLASSES, 0))
        self._num_runs = self._num_attempts = self._num_ends = 0
        self._num_hangs = self._num_failures = 0
        self._bad: list[BadLine] = []
        self._num_devices: int | None = None
        self._gpu: str | None = None
        self._num_steps = 0
        self._failures: list[str] = []
        self._num_not_the_jobs = 0
        self._saving: dict[str, Any] | None = None
        self._steps_ns = 0
        self._known_ns: dict[str, Counter[str]] = {}
        self._not_known: dict[str, str] = {}
        self._away_s = 0.0

    def add(self, raw: bytes, *, where: str = "", number: int = 0) -> LedgerLine | None:
        """Add a line, the `number`-th of the file `where`, and return its record; None if it is not valid."""
        try:
            line = decode_line(raw)
        except msgspec.DecodeError as error:
            self._bad.append(BadLine(file=where, number=number, problem=str(error)))
            return None
        match line:
            case SecondsLine():
                self._add_seconds(line)
            case SavingLine():
                self._saving = line.values
            case RunLine():
                self._num_runs += 1
                self._gpu = line.gpu
                self._away_s += max(line.away_s or 0.0, 0.0)
            case AttemptLine():
                self._num_attempts += 1
            case EndLine():
                self._num_ends += 1
            case HangLine():
                self._num_hangs += 1
                self._add_failure(line.says, is_the_jobs=False)
            case FailureLine():
                self._num_failures += 1
                self._add_failure(line.says, is_the_jobs=line.fault == "user")
        return line

    def _add_seconds(self, line: SecondsLine) -> None:
        self._num_steps += line.steps
        self._num_devices = line.num_devices or self._num_devices
        self._steps_ns += line.steps_ns
        self._ns.update(line.ns)
        for name, by_basis in line.known_ns.items():
            self._known_ns.setdefault(name, Counter()).update(by_basis)
        self._not_known |= line.not_known

    def _add_failure(self, says: str | None, *, is_the_jobs: bool) -> None:
        if not is_the_jobs:
            self._num_not_the_jobs += 1
        if says:
            self._failures.append(says)

    def totals(self) -> Totals:
        return Totals(
            num_runs=self._num_runs,
            num_attempts=self._num_attempts,
            num_hangs=self._num_hangs,
            num_failures=self._num_failures,
            num_not_the_jobs=self._num_not_the_jobs,
            num_unfinished=max(self._num_runs - self._num_ends, 0),
            num_bad_lines=len(self._bad),
            first_bad_line=str(self._bad[0]) if self._bad else None,
            num_devices=self._num_devices,
            gpu=self._gpu,
            num_steps=self._num_steps,
            ns=dict(self._ns),
            failures=tuple(self._failures),
            steps_ns=self._steps_ns,
            known_ns={name: dict(by_basis) for name, by_basis in self._known_ns.items() if by_basis},
            not_known=dict.fromkeys(PARTED, _NOT_YET if self._steps_ns else _NO_STEPS) | self._not_known,
            away_s=self._away_s,
            saving=self._saving,
        )


class LedgerOwner(msgspec.Struct, frozen=True, kw_only=True):
    """The job and the node that a run belongs to."""

    job: str
    node: str


NumberedLine = tuple[int, bytes]  # its number in the file, from 1


def read(path: Path) -> Totals:
    """Return the totals of all runs in a ledger."""
    return _totals_of(path, _lines_of(path))


def read_by_owner(path: Path) -> dict[LedgerOwner, Totals]:
    """Return the totals of a ledger's runs by job and node: jobs that follow each other in a folder share a ledger."""
    lines_by_owner: dict[LedgerOwner, list[NumberedLine]] = {}
    before_first: list[NumberedLine] = []
    lines = before_first
    for number, raw in _lines_of(path):
        owner = _owner_of_run(raw)
        if owner is not None:
            lines = lines_by_owner.setdefault(owner, [])
        lines.append((number, raw))
    if not lines_by_owner:
        return {LedgerOwner(job="", node=""): _totals_of(path, before_first)}
    first_owner = next(iter(lines_by_owner))
    lines_by_owner[first_owner] += before_first  # damaged lines, which are counted
    return {owner: _totals_of(path, lines) for owner, lines in lines_by_owner.items()}


def _lines_of(path: Path) -> list[NumberedLine]:
    try:
        return list(enumerate(read_lines(path), 1))
    except OSError as error:
        raise InputError(f"{path} cannot be read: {(error.strerror or str(error)).lower()}", hint=_HINT) from error


def _owner_of_run(raw: bytes) -> LedgerOwner | None:
    """Return the owner of the run that begins with this line; None if no run begins with it."""
    if SCHEMA.encode() not in raw:
        return None
    try:
        line = decode_line(raw)
    except msgspec.DecodeError:
        return None
    if not isinstance(line, RunLine):
        return None
    return LedgerOwner(job=str(line.job_key or line.job or line.command), node=str(line.node))


def _totals_of(path: Path, lines: Sequence[NumberedLine]) -> Totals:
    totalling = LedgerAccumulator()
    decoded = [totalling.add(raw, where=path.name, number=number) for number, raw in lines]
    first = next((line for line in decoded if line is not None), None)
    if not isinstance(first, RunLine) or first.schema != SCHEMA:
        raise InputError(f"{path} is not a ledger", hint=_HINT)
    if first.version != VERSION:
        raise InputError(f"{path} has version {first.version} of the ledger; this Flatout reads {VERSION}")
    return totalling.totals()
