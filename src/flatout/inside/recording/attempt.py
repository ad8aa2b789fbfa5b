"""Find which attempt of the job this process belongs to, if something other than torchrun has restarted the ranks.

In: the step files of the ranks recorded so far. Out: the settings with the number of the attempt, or None if this
process is not recorded, with the reason in the log. Ranks of one attempt agree without communicating: all ranks that
started before the first of them was recorded belong together. After a failed attempt, a process of the same script
begins a new attempt. A process after an attempt that ended normally (an evaluation, a second training) is not recorded.
"""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flatout.inside.log import LOG
from flatout.inside.protocol import EXIT, NOT_RECORDED, File, StepFileEvent
from flatout.inside.settings import RecorderSettings

_MAX_ATTEMPTS = 1000
_TAIL_BYTES = 1 << 16
_LAST_LINES = tuple(f'{{"event":"{event}"'.encode() for event in (StepFileEvent.END, StepFileEvent.STOP))
_IMPORTED_NS = time.time_ns()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Peer:
    """A rank that has been recorded, as its step file describes it."""

    since_ns: int  # when its first step was recorded
    script: str
    is_over: bool  # the process has ended; always False for a killed process on another host, whose end is not visible
    has_failed: bool


def find_attempt(settings: RecorderSettings) -> RecorderSettings | None:
    """Return the settings for the attempt of this process; None if the process is not recorded."""
    # The later of two times: a shell that execs its last command started earlier than this program, and a forked child
    # has the import time of its parent.
    began_ns = max(started_unix_ns(os.getpid()) or 0, _IMPORTED_NS)
    script = script_name()
    for _ in range(_MAX_ATTEMPTS):
        peers = _read_peers(settings.folder)
        has_ended = any(peer.is_over for peer in peers)
        belongs_to_it = any(began_ns < peer.since_ns for peer in peers)
        if not has_ended or belongs_to_it:
            return settings
        if not any(peer.has_failed for peer in peers):
            LOG.write(f"`{script}` was started after the recorded ranks had ended: {NOT_RECORDED}")
            return None
        if any(peer.script != script for peer in peers):
            LOG.write(f"`{script}` is not the script whose ranks are recorded: {NOT_RECORDED}")
            return None
        settings = replace(settings, attempt=settings.attempt + 1)
    return None


def imported_unix_ns() -> int:
    """Return when this module was imported: at once after torch."""
    return _IMPORTED_NS


def script_name() -> str:
    return os.path.basename(sys.argv[0]) if sys.argv else ""


def started_unix_ns(pid: int) -> int | None:
    """Return when a process of this host was started, to a hundredth of a second; None if it is not running."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        if fields[0] in "ZX":
            return None
        age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None
    return time.time_ns() - int(age_s * 1e9)


def _read_peers(folder: Path) -> list[_Peer]:
    peers = (_read_peer(file) for file in folder.glob(File.STEPS.glob))
    return [peer for peer in peers if peer is not None]


def _read_peer(file: Path) -> _Peer | None:
    try:
        with file.open("rb") as lines:
            header = json.loads(lines.readline())
            size = lines.seek(0, os.SEEK_END)
            lines.seek(max(size - _TAIL_BYTES, 0))
            tail = lines.read().splitlines()
        pid, since_ns = int(header["pid"]), int(header["recorded_since_unix_ns"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError):  # the file was created a moment ago and has no header yet
        return _Peer(since_ns=time.time_ns(), script="", is_over=False, has_failed=False)
    end = _last_event(tail)
    is_here = header.get("hostname") == os.uname().nodename
    is_gone = is_here and _is_gone(pid, since_ns)
    if end is None:
        has_failed = is_gone
    else:
        has_failed = end["event"] == StepFileEvent.END and end.get("reason") != EXIT
    return _Peer(
        since_ns=since_ns,
        script=str(header.get("script", "")),
        is_over=end is not None or is_gone,
        has_failed=has_failed,
    )


def _last_event(tail: list[bytes]) -> dict[str, Any] | None:
    """Return the last event among these lines that marks the end of the process."""
    end = None
    for line in tail:
        if line.startswith(_LAST_LINES):
            with suppress(ValueError):
                end = json.loads(line)
    return end


def _is_gone(pid: int, since_ns: int) -> bool:
    """Whether the process recorded since `since_ns` has ended; its PID may have been reused."""
    started_ns = started_unix_ns(pid)
    return started_ns is None or started_ns > since_ns
