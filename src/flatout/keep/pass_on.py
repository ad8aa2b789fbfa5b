"""Pass SIGUSR1 and SIGUSR2 on to the processes of a job that handle them, as Slurm intends.

Slurm's `--signal` sends an advance-warning signal to each task of a job. If `flatout run` is the task, it gets the
signal instead of the ranks: its child is then a launcher, which a signal without a handler would end, and ranks that
the launcher started in other sessions do not get signals of the group. So the processes of the job that have a handler
get the signal; only if there are none, the first process gets it, as without Flatout.
"""

from __future__ import annotations

import os
import re
import signal
import time
from contextlib import suppress
from pathlib import Path

import psutil

from flatout.inside.protocol import Variable
from flatout.launch import with_environment

WARNINGS = (signal.SIGUSR1, signal.SIGUSR2)
_SOON_S = 600.0  # an end within this time after a warning is attributed to it


class PassOn:
    """Passes signals on to the processes of one attempt, whose folder is in their environment."""

    def __init__(self, folder: Path) -> None:
        self._folder = str(folder)
        self._at_s: float | None = None

    def __call__(self, number: int, *, group_has_it: bool) -> bool:
        """Send the signal to the processes that handle it.

        Return False if no process handles it, so that it is not sent. `group_has_it`: our process group got the signal,
        and its processes must not get it again.
        """
        self._at_s = time.monotonic()
        own_group = os.getpgrp()
        has_handler = False
        for process in with_environment(lambda environment: environment.get(Variable.HEARTBEAT) == self._folder):
            if not handles(process.pid, number):
                continue
            has_handler = True
            with suppress(psutil.Error, OSError):
                if not group_has_it or os.getpgid(process.pid) != own_group:
                    process.send_signal(number)
        return has_handler

    def was_recent(self) -> bool:
        """Whether a warning came a short time ago."""
        return self._at_s is not None and time.monotonic() - self._at_s < _SOON_S


def handles(pid: int, number: int) -> bool:
    """Whether the process has a handler for the signal."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    caught = re.search(r"^SigCgt:\s*([0-9a-f]+)$", status, re.MULTILINE)
    return caught is not None and bool(int(caught[1], 16) >> (number - 1) & 1)
