"""Identify processes over time: a PID can be used again, and means another process in each PID namespace."""

from __future__ import annotations

import os
from contextlib import suppress
from functools import cache
from pathlib import Path

import msgspec


class ProcessIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """A process of this machine, for as long as the machine runs."""

    pid: int
    ticks: int  # its start time in the kernel's ticks; 0: unknown
    pid_namespace: str

    @property
    def may_be_alive(self) -> bool:
        """Whether the process may be alive: in another namespace, such as another container's, it cannot be seen."""
        return self.pid_namespace != own_namespace() or is_alive(self.pid, self.ticks)


def own_identity() -> ProcessIdentity:
    pid = os.getpid()
    return ProcessIdentity(pid=pid, ticks=start_ticks(pid), pid_namespace=own_namespace())


@cache
def own_namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def start_ticks(pid: int) -> int:
    """Return the start time of a process in the kernel's ticks; with the PID, it identifies the process uniquely."""
    try:
        return int(_fields(pid)[19])
    except (OSError, ValueError, IndexError):
        return 0


def state_of(pid: int) -> str:
    """Return the state of a process as the kernel writes it, such as R, S or T; empty if there is none."""
    try:
        return _fields(pid)[0]
    except (OSError, IndexError):
        return ""


def is_alive(pid: int, ticks: int) -> bool:
    try:
        fields = _fields(pid)
    except (OSError, ValueError):
        return False
    return fields[0] not in "ZX" and (not ticks or int(fields[19]) == ticks)


def resident_bytes(pid: int) -> int | None:
    """Return the host memory that a process has; None if it has ended."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")


def core_wait_s(pid: int) -> float | None:
    """Return how long the threads of a process were ready to run but waited for a core; None if unknown."""
    waited_ns = 0
    try:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with suppress(FileNotFoundError, ProcessLookupError):  # it has ended
                waited_ns += int((thread / "schedstat").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return waited_ns / 1e9


def _fields(pid: int) -> list[str]:
    """Return the fields of `/proc/PID/stat` after the name of the program, which can contain anything."""
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
