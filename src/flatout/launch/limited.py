"""Run a command detached from this terminal, with its output in a file and a time limit; leave no process behind.

In: the command, its environment, a file for its output, a limit. Out: `ExitStatus`. The command leads a separate
session, so that Ctrl-C reaches only Flatout, which then ends the command. Launchers may start their ranks in further
sessions, so all descendants of the command are tracked, and ended with it.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from flatout.launch.local import ExitStatus, cannot_start
from flatout.secrets import open_private

_GRACE_S = 10.0  # between SIGTERM and SIGKILL
_POLL_S = 0.1
_LOOK_S = 1.0  # between searches for new descendants; each takes a millisecond or more


def run_limited(
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    output: Path,
    limit_s: float,
    stdin: int = subprocess.DEVNULL,
    folder: Path | None = None,
) -> ExitStatus:
    """Run `command` until it ends, or end it after `limit_s` seconds. Raise InputError if it cannot be started.

    `stdin` is the descriptor that it reads from, and `folder` its working folder, by default ours.
    """
    start_unix_s = time.time()
    deadline = time.monotonic() + limit_s
    with open_private(output, "wb") as file:
        try:
            process = subprocess.Popen(
                command,
                env=environment,
                cwd=folder,
                stdin=stdin,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise cannot_start(command, error) from error
    tree = ProcessTree(process.pid)
    is_timed_out = False
    try:
        while process.poll() is None:
            tree.look()
            if time.monotonic() >= deadline:
                is_timed_out = True
                break
            with suppress(subprocess.TimeoutExpired):
                process.wait(_POLL_S)
    finally:
        tree.end()
        process.wait()
    code = process.returncode
    return ExitStatus(
        code=code if code >= 0 else None,
        signal=-code if code < 0 else None,
        start_unix_s=start_unix_s,
        end_unix_s=time.time(),
        is_timed_out=is_timed_out,
    )


class ProcessTree:
    """A process and all its descendants, including those whose parent has already ended."""

    def __init__(self, pid: int) -> None:
        self._pid = pid  # the leader of a session
        self._members: dict[int, psutil.Process] = {}
        self._next_look = 0.0
        with suppress(psutil.Error):
            self._members[pid] = psutil.Process(pid)

    def look(self, *, is_forced: bool = False) -> None:
        now = time.monotonic()
        if now < self._next_look and not is_forced:
            return
        self._next_look = now + _LOOK_S
        for member in list(self._members.values()):
            with suppress(psutil.Error):
                for child in member.children(recursive=True):
                    self._members.setdefault(child.pid, child)

    def end(self) -> None:
        """Terminate the first process, which ends its own ranks best; then the others. Then kill those that remain."""
        asked: set[int] = set()
        deadline = time.monotonic() + _GRACE_S
        while (left := self._left()) and time.monotonic() < deadline:
            first_is_left = left[0].pid == self._pid
            for member in left[:1] if first_is_left else left:
                if member.pid not in asked:
                    asked.add(member.pid)
                    with suppress(psutil.Error):
                        member.terminate()
            time.sleep(_POLL_S)
        for member in left:
            with suppress(psutil.Error):
                member.kill()

    def _left(self) -> list[psutil.Process]:
        """Return the living processes, the first one first, including those started just before it ended."""
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                if os.getsid(process.pid) == self._pid:
                    self._members.setdefault(process.pid, process)
        self.look(is_forced=True)
        return [member for member in self._members.values() if _lives(member)]


def _lives(process: psutil.Process) -> bool:
    """Whether a process is alive. Its PID may have been reused by another process."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False
