"""Collect the evidence about an ended attempt from the launcher, the ranks' notes and heartbeats, and the kernel.

In: how the first process ended, the folder of the attempt's heartbeats, and the host's counters before and after. Out:
`Evidence`, which `rules` then judges. Nothing is guessed: unknown values are None or empty.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from flatout.input_files import decode_json, read_bytes, read_text
from flatout.inside.protocol import REFUSED, FailureKind, File
from flatout.keep.classify import Classification, classify
from flatout.keep.error_text import RaisedError
from flatout.keep.exits import Death, RankExit, as_monotonic_s, killed_ranks, left_first, rank_exits
from flatout.keep.hang import Hang
from flatout.keep.heartbeats import HeartbeatSample
from flatout.launch import ExitStatus

_CGROUP = Path("/sys/fs/cgroup")
_VMSTAT = Path("/proc/vmstat")
_CODE_2 = (REFUSED, "FileNotFoundError")  # Python exits with code 2 for these; the second: the script does not exist


class FreeSpace(msgspec.Struct, frozen=True, kw_only=True):
    """The free space when a write failed."""

    folder: str
    free_bytes: int | None
    shm_free_bytes: int | None


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """An uncaught exception, as noted by the rank itself (`inside/failure/failure_notes.py`)."""

    rank: int
    hostname: str
    pid: int
    unix_s: float
    kind: str
    where: str | None  # the memory that was exhausted
    exception: str
    message: str
    line: str | None = None
    has_torch: bool = True  # the process had imported torch; otherwise its steps cannot be seen
    age_s: float | None = None  # age of its process
    chain: tuple[RaisedError, ...] = ()  # the exceptions that led to this one, the original one first
    space: FreeSpace | None = None

    @property
    def errors(self) -> tuple[RaisedError, ...]:
        """Return the whole chain, this exception last."""
        return (*self.chain, RaisedError(exception=self.exception, message=self.message))

    @property
    def words(self) -> Classification | None:
        """Return the classification by its text; the phase in which it was raised does not affect who is blamed."""
        return classify(self.errors, None)

    @property
    def is_refusal(self) -> bool:
        return self.exception == REFUSED and self.kind != FailureKind.EXIT

    @property
    def is_of_peers(self) -> bool:
        """Whether the failure only reports that a peer is gone; it is never the cause if there is another error."""
        words = self.words
        return words is not None and words.known.of_peers


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    code: int | None
    signal: int | None
    was_asked_to_end: bool = False  # by a signal from the user or the scheduler
    cause: str | None = None  # as reported by a scheduler: `ExitStatus.cause`
    reason: str = ""
    hang: Hang | None = None
    failures: tuple[Failure, ...] = ()  # in order of time, but those caused by lost peers come last
    killed: tuple[int, ...] = ()  # ranks that ended without an error message
    num_oom_kills: int | None = None  # by the kernel while the job ran, in this cgroup or on this host
    xids: tuple[int, ...] = ()
    num_ranks: int = 0
    num_steps: int = 0  # in this attempt
    step: int | None = None  # step of the whole training; None: unknown
    host: str | None = None  # on which the failure happened
    flight_records: tuple[str, ...] = ()  # files that NCCL's watchdog wrote
    left: RankExit | None = None  # the rank that left first without an error
    last_lines: tuple[str, ...] = ()  # of standard error of the whole command, if it is a file
    has_native_lines: bool = True  # False: standard error is not a file, so what native code wrote there is unknown
    was_warned: bool = False  # by a SIGUSR1 or SIGUSR2, shortly before it ended

    @property
    def root(self) -> Failure | None:
        return self.failures[0] if self.failures else None


def read_failures(folder: Path) -> tuple[Failure, ...]:
    found = []
    for path in folder.glob(File.FAILURE.glob):
        try:
            found.append(decode_json(read_bytes(path), type=Failure))
        except (OSError, msgspec.DecodeError):
            continue  # truncated by the end of its process
    return tuple(sorted(found, key=lambda failure: (failure.is_of_peers, failure.unix_s)))


def failures_of(folder: Path, pulses: Sequence[HeartbeatSample]) -> tuple[Failure, ...]:
    """Return the failures of the job's ranks, not those of processes that ran alongside or before them.

    If the launcher itself restarted ranks, only the failures of their last start count. A process without torch
    that has the rank number of a rank already seen is another program.
    """
    processes = {(pulse.hostname, pulse.pid) for pulse in pulses}
    seen = {pulse.rank for pulse in pulses}
    failures = read_failures(folder)
    of_ranks = tuple(one for one in failures if (one.hostname, one.pid) in processes)
    return of_ranks or tuple(one for one in failures if one.has_torch or one.rank not in seen)


def _ended_it(failure: Failure, ended: ExitStatus) -> bool:
    """Whether this failure ended the job; a process that never imported torch might not be a rank."""
    codes = (1, 2) if failure.exception in _CODE_2 else (1,)  # Python's code, and a launcher's code for any failed rank
    return failure.has_torch or ended.code in codes


def count_oom_kills() -> int | None:
    """Return the number of OOM kills so far: in this process's cgroup if it has a counter, otherwise on the host."""
    for path in (_cgroup_folder() / "memory.events", _VMSTAT):
        try:
            text = read_text(path, encoding="ascii")
        except (OSError, ValueError):
            continue
        found = re.search(r"^oom_kill (\d+)$", text, re.M)
        if found:
            return int(found[1])
    return None


def _cgroup_folder() -> Path:
    try:
        text = Path("/proc/self/cgroup").read_text(encoding="ascii")
    except (OSError, ValueError):
        return _CGROUP
    found = re.search(r"^0::/(.*)$", text, re.M)
    return _CGROUP / found[1] if found else _CGROUP


def evidence_of(
    ended: ExitStatus,
    pulses: Sequence[HeartbeatSample],
    folder: Path,
    *,
    deaths: Mapping[str, Death],
    hang: Hang | None = None,
    was_asked_to_end: bool = False,
    oom_kills: tuple[int | None, int | None] = (None, None),
    xids: tuple[int, ...] = (),
    step_of: Callable[[HeartbeatSample], int | None] = lambda pulse: None,
    flight_records: tuple[str, ...] = (),
    last_lines: tuple[str, ...] = (),
    has_native_lines: bool = True,
    was_warned: bool = False,
) -> Evidence:
    """Combine what is known about an attempt that has ended. `deaths` is by process name."""
    failures = tuple(failure for failure in failures_of(folder, pulses) if _ended_it(failure, ended))
    noted = {(failure.hostname, failure.pid) for failure in failures}
    killed: tuple[int, ...] = ()
    exits: tuple[RankExit, ...] = ()
    if ended.code != 0 and hang is None:
        killed = killed_ranks(pulses, noted, deaths)
        exits = rank_exits(folder, pulses, deaths, noted)
    left = left_first(exits, _first_complaint_s(failures))
    blamed = _blamed_ranks(failures, hang, killed, left)
    # Use the failing rank's own step: the other ranks may or may not be one step ahead.
    steps = [step_of(pulse) for pulse in pulses if not blamed or pulse.rank in blamed]
    return Evidence(
        code=ended.code,
        signal=ended.signal,
        was_asked_to_end=was_asked_to_end,
        cause=ended.cause,
        reason=ended.reason,
        hang=hang,
        failures=failures,
        killed=killed,
        num_oom_kills=_num_oom_kills(*oom_kills),
        xids=xids,
        num_ranks=len([pulse for pulse in pulses if pulse.rank is not None]),
        num_steps=max((pulse.num_steps for pulse in pulses), default=0),
        step=max((step for step in steps if step is not None), default=None),
        host=_host(blamed, failures, pulses, xids),
        flight_records=flight_records,
        left=left,
        last_lines=last_lines,
        has_native_lines=has_native_lines,
        was_warned=was_warned,
    )


def _num_oom_kills(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None else max(after - before, 0)


def _first_complaint_s(failures: Sequence[Failure]) -> float | None:
    """Return when a rank first reported that a peer is gone, in seconds of CLOCK_MONOTONIC."""
    return min((as_monotonic_s(failure.unix_s) for failure in failures if failure.is_of_peers), default=None)


def _blamed_ranks(
    failures: Sequence[Failure], hang: Hang | None, killed: Sequence[int], left: RankExit | None
) -> set[int]:
    """Return the ranks that caused the end of the attempt; empty if unknown."""
    has_own_error = bool(failures) and not failures[0].is_of_peers
    if left is not None and not has_own_error:
        return {left.rank}
    if failures:
        return {failures[0].rank}
    return set(hang.late if hang is not None else killed)


def _host(
    blamed: set[int], failures: Sequence[Failure], pulses: Sequence[HeartbeatSample], xids: Sequence[int]
) -> str | None:
    if xids:  # they belong to this host
        return os.uname().nodename
    if failures and failures[0].rank in blamed:
        return failures[0].hostname
    return next((pulse.hostname for pulse in pulses if pulse.rank in blamed), None)
