"""Determine how each rank of an attempt ended, and which rank left first.

In: the heartbeats, the time at which each process was first seen to have ended, the launcher's report about its ranks,
and data that a rank left behind (the stacks of a crash, the end of its standard error). Out: `RankExit`s, for ranks
that ended silently; ranks that reported an error have a `Failure` instead.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from flatout.input_files import decode_json, open_file, read_bytes, read_text
from flatout.inside.protocol import STDERR_BYTES, STDERR_COUNT_BYTES, File
from flatout.keep.heartbeats import HeartbeatSample
from flatout.keep.stacks import Stack, parse
from flatout.secrets import masked_text

_TAKES_DOWN = signal.SIGTERM  # launchers send it to the remaining ranks
_CRASHES = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)
_SAME_TIME_S = 0.5  # a death is noticed up to one polling interval later, or more on a busy host
_LAST_LINES = 20
_MAX_CHARACTERS = 300  # of a line
_FILE_TAIL_BYTES = 65536


class Death(NamedTuple):
    """The end of a rank's process, as observed from outside."""

    at: float  # when it was first seen to have ended, in seconds of any one clock
    signal: int | None  # 0: no signal; None: unknown, because its parent had already reaped it
    code: int | None = None
    alive_at: float | None = None  # when it was last seen alive, by the same clock


class _Child(msgspec.Struct, frozen=True, kw_only=True):
    pid: int
    code: int  # negative: a signal


class _Children(msgspec.Struct, frozen=True, kw_only=True):
    hostname: str
    children: tuple[_Child, ...]
    is_whole: bool = False  # whether it has all ranks of the launcher that failed


class RankExit(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a rank that reported no error."""

    rank: int
    hostname: str
    at_s: float  # of CLOCK_MONOTONIC: when it was first seen to have ended, unless it noted its end itself
    alive_s: float | None = None  # when it was certainly still running; None: unknown
    code: int | None = None
    signal: int | None = None  # that ended it; None: none, or unknown if the code is unknown too
    is_orderly: bool = False  # its exit handlers ran: not `os._exit`, nor a signal
    step: int | None = None  # steps made by its process
    stack: Stack | None = None  # where a crash was
    last_lines: tuple[str, ...] = ()  # of its standard error

    @property
    def is_crash(self) -> bool:
        return self.signal in _CRASHES

    @property
    def is_regular(self) -> bool:
        """Whether it ended with exit code 0; by `os._exit(0)` if it was not orderly."""
        return self.signal is None and not self.code and (self.is_orderly or self.code == 0)

    @property
    def is_by_launcher(self) -> bool:
        """Whether the launcher may have ended the rank because another rank had failed."""
        return self.signal == _TAKES_DOWN


def rank_exits(
    folder: Path,
    pulses: Sequence[HeartbeatSample],
    deaths: Mapping[str, Death],
    noted: set[tuple[str, int]],
) -> tuple[RankExit, ...]:
    """Return the ends of the ranks that reported no error, the first one first. `noted`: processes that did."""
    reports = _reports(folder)
    exits = [
        _exit(folder, pulse, deaths.get(pulse.name), _reported_code(reports, pulse))
        for pulse in pulses
        if pulse.rank is not None and (pulse.hostname, pulse.pid) not in noted
    ]
    return tuple(sorted((one for one in exits if one is not None), key=lambda one: one.at_s))


def left_first(exits: Sequence[RankExit], first_complaint_s: float | None) -> RankExit | None:
    """Return the rank that left first, if it ended itself or crashed; None if none did.

    `first_complaint_s`: when a rank first reported that a peer is gone. A rank that leaves later may only be a
    consequence; a rank that ends earlier with code 0 can be the reason for the report. A rank whose end was seen late,
    because this host was busy, may have left before the report if it was not seen alive after it.
    """
    for one in exits:
        if one.is_by_launcher or (one.signal is None and one.code is None and not one.is_orderly):
            continue
        is_before = first_complaint_s is None or _may_have_left_by(first_complaint_s, one)
        if one.is_regular and first_complaint_s is None:
            continue
        if is_before or one.is_crash:
            return one
    return None


def _may_have_left_by(complaint_s: float, rank_exit: RankExit) -> bool:
    if rank_exit.at_s <= complaint_s + _SAME_TIME_S:
        return True
    return rank_exit.alive_s is not None and rank_exit.alive_s <= complaint_s


def killed_ranks(
    pulses: Sequence[HeartbeatSample], noted: set[tuple[str, int]], deaths: Mapping[str, Death]
) -> tuple[int, ...]:
    """Return the first ranks that ended without an error message; the launcher then kills the others.

    If anything but the launcher's own signal ended a rank, ranks that the launcher may have ended are skipped.
    `deaths` is by process name.
    """
    silent = [
        (deaths[pulse.name], pulse.rank)
        for pulse in pulses
        if pulse.name in deaths
        and pulse.rank is not None
        and not pulse.has_ended
        and (pulse.hostname, pulse.pid) not in noted
    ]
    sure = [one for one in silent if one[0].signal not in (None, _TAKES_DOWN)]
    unknown = [one for one in silent if one[0].signal is None]
    causes = sure or unknown or silent
    first = min((death.at for death, _ in causes), default=0.0)
    return tuple(sorted(rank for death, rank in causes if death.at <= first))


class StderrFile:
    """Flatout's standard error, if it is a file: lines added by an attempt can be read back, even from native code."""

    def __init__(self, descriptor: int = 2) -> None:
        self._path = Path(f"/proc/self/fd/{descriptor}")
        self._begin = self._size()

    @property
    def is_file(self) -> bool:
        return self._begin is not None

    def lines(self) -> list[str]:
        """Return the last lines that were added; empty if standard error is not a file."""
        end = self._size()
        if self._begin is None or end is None:
            return []
        try:
            with open_file(self._path) as file:
                file.seek(max(self._begin, end - _FILE_TAIL_BYTES))
                return file.read(_FILE_TAIL_BYTES).decode(errors="replace").splitlines()
        except OSError:
            return []

    def _size(self) -> int | None:
        try:
            return self._path.stat().st_size if self._path.is_file() else None
        except OSError:
            return None


def as_monotonic_s(unix_s: float) -> float:
    """Convert a time of the wall clock to CLOCK_MONOTONIC."""
    return unix_s - (time.time() - time.monotonic())


def _reported_code(reports: Sequence[_Children], pulse: HeartbeatSample) -> int | None:
    """Return the code that a launcher on this host reports: 0 for a rank that is not among all those that failed."""
    of_host = [report for report in reports if report.hostname == pulse.hostname]
    codes = {child.pid: child.code for report in of_host for child in report.children}
    ended_well = 0 if any(report.is_whole for report in of_host) else None
    return codes.get(pulse.pid, ended_well)


def _exit(folder: Path, pulse: HeartbeatSample, death: Death | None, reported_code: int | None) -> RankExit | None:
    if death is None and not pulse.has_ended:
        return None
    code, number = _status(death, reported_code)
    at_s = pulse.ended_s if pulse.ended_s is not None else death.at if death is not None else 0.0
    alive_s = None
    if death is not None and pulse.ended_s is None:
        alive_s = max(pulse.phase_since_s, death.alive_at or 0.0)
    return RankExit(
        rank=pulse.rank or 0,
        hostname=pulse.hostname,
        at_s=at_s,
        alive_s=alive_s,
        code=code,
        signal=number,
        is_orderly=pulse.has_ended,
        step=pulse.num_steps,
        stack=_crash(folder, pulse) if number in _CRASHES else None,
        last_lines=_last_lines(folder, pulse),
    )


def _status(death: Death | None, reported_code: int | None) -> tuple[int | None, int | None]:
    """Return exit code and signal, from the kernel or else from the launcher."""
    if death is not None and death.signal is not None:
        return (None, death.signal) if death.signal else (death.code, None)
    if reported_code is None:
        return None, None
    return (reported_code, None) if reported_code >= 0 else (None, -reported_code)


def _reports(folder: Path) -> list[_Children]:
    reports = []
    for path in folder.glob(File.CHILDREN.glob):
        try:
            reports.append(decode_json(read_bytes(path), type=_Children))
        except (OSError, msgspec.DecodeError):
            continue
    return reports


def _crash(folder: Path, pulse: HeartbeatSample) -> Stack | None:
    try:
        text = read_text(folder / File.CRASH.of(pulse.name), errors="replace")
    except OSError:
        return None
    return parse(pulse.pid, text, main_thread=pulse.main_thread) if text else None


def stderr_tail(data: bytes) -> str:
    """Return the text in a file that `inside/failure/stderr_tail.py` writes, without an incomplete first line."""
    num_written = int.from_bytes(data[:STDERR_COUNT_BYTES], "little")
    ring = data[STDERR_COUNT_BYTES:STDERR_BYTES]
    if num_written <= len(ring) or not ring:  # without a ring, the file was cut
        return ring[:num_written].decode(errors="replace")
    begin = num_written % len(ring)
    whole = (ring[begin:] + ring[:begin]).decode(errors="replace")
    return whole.partition("\n")[2]


def _last_lines(folder: Path, pulse: HeartbeatSample) -> tuple[str, ...]:
    try:
        text = stderr_tail(read_bytes(folder / File.STDERR.of(pulse.name)))
    except OSError:
        return ()
    lines = [line.strip() for line in masked_text(text).splitlines() if line.strip()]
    return tuple(line[:_MAX_CHARACTERS] for line in lines[-_LAST_LINES:])
