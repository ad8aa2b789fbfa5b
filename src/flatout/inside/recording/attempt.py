"""Which attempt of the job this process belongs to, where something other than torchrun has started the ranks again.

In: the ranks that have been recorded already. Out: the settings with the number of the attempt, or None where this
process is not to be recorded, which the log then tells. Ranks of one attempt agree without a word to each other: those
that were started before any of them was recorded belong together. After an attempt that failed, the same script is a
new one; whatever follows one that ended by itself (an evaluation, a second training) is not the job that is recorded.
"""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from flatout.inside.log import LOG
from flatout.inside.protocol import EXIT, File, StepFileEvent
from flatout.inside.settings import RecorderSettings

_MAX_ATTEMPTS = 1000
_TAIL_BYTES = 1 << 16
_LAST_LINES = tuple(f'{{"event":"{event}"'.encode() for event in (StepFileEvent.END, StepFileEvent.STOP))
_IMPORTED_NS = time.time_ns()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Peer:
    since_ns: int  # when its first step was recorded
    script: str
    is_over: bool  # known to have ended; another host's may have been killed without a word
    has_failed: bool


def find_attempt(settings: RecorderSettings) -> RecorderSettings | None:
    # A shell that becomes its last command began before; a forked child has its parent's modules.
    began_ns = max(started_unix_ns(os.getpid()) or 0, _IMPORTED_NS)
    for _ in range(_MAX_ATTEMPTS):
        peers = [peer for file in settings.folder.glob(File.STEPS.glob) if (peer := _read(file)) is not None]
        if not any(peer.is_over for peer in peers) or any(began_ns < peer.since_ns for peer in peers):
            return settings
        script = script_name()
        if not any(peer.has_failed for peer in peers):
            LOG.write(f"`{script}` was started after the recorded ranks had ended: this process is not recorded")
            return None
        if any(peer.script != script for peer in peers):
            LOG.write(f"`{script}` is not the script whose ranks are recorded: this process is not recorded")
            return None
        settings = replace(settings, attempt=settings.attempt + 1)
    return None


def script_name() -> str:
    return os.path.basename(sys.argv[0]) if sys.argv else ""


def started_unix_ns(pid: int) -> int | None:
    """When a process of this host was started, to a hundredth of a second; None where there is none (any more)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        if fields[0] in "ZX":
            return None
        age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None
    return time.time_ns() - int(age_s * 1e9)


def _read(file: Path) -> _Peer | None:
    try:
        with file.open("rb") as lines:
            header = json.loads(lines.readline())
            size = lines.seek(0, os.SEEK_END)
            lines.seek(max(size - _TAIL_BYTES, 0))
            tail = lines.read().splitlines()
        pid, since_ns = int(header["pid"]), int(header["recorded_since_unix_ns"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError):  # made a moment ago
        return _Peer(since_ns=time.time_ns(), script="", is_over=False, has_failed=False)
    end = None
    for line in tail:
        if line.startswith(_LAST_LINES):
            with suppress(ValueError):
                end = json.loads(line)
    started_ns = started_unix_ns(pid) if header.get("hostname") == os.uname().nodename else 0
    is_gone = started_ns is None or started_ns > since_ns  # another process has its number now
    return _Peer(
        since_ns=since_ns,
        script=str(header.get("script", "")),
        is_over=end is not None or is_gone,
        has_failed=is_gone if end is None else end["event"] == StepFileEvent.END and end.get("reason") != EXIT,
    )
