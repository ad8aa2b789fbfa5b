"""`python -m flatout.launch.guard MARK [COMMAND...]`: end a job's processes if the Flatout that started it is killed.

A process that gets SIGKILL cannot end the processes that it started: its job would continue to run, alongside the
trials of the resumed tuning. So this process waits until its standard input closes, which happens when its parent ends
for any reason. Then it ends all processes with the mark in their environment, a variable that all descendants of the
job inherit, whatever their session. After a normal end there are none.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

import psutil

from flatout.inside.protocol import Variable

_GRACE_S = 10.0  # between SIGTERM and SIGKILL
_POLL_S = 0.1


@contextmanager
def guarded(mark: str, afterwards: Sequence[str] = ()) -> Iterator[None]:
    """Ensure that processes with the variable FLATOUT_TUNING=`mark` do not outlive this one.

    `afterwards` is a command that is run after they have ended.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "flatout.launch.guard", mark, *afterwards],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # it must survive signals to our group
    )
    assert process.stdin is not None
    try:
        yield
    finally:
        with suppress(OSError):
            process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            process.wait(2 * _GRACE_S)


def end_marked(is_meant: Callable[[dict[str, str]], bool], *, grace_s: float = _GRACE_S) -> int:
    """Terminate all processes with such an environment, and kill them after `grace_s`; return their number."""
    asked: set[int] = set()
    deadline = time.monotonic() + grace_s
    while (left := list(with_environment(is_meant))) and time.monotonic() < deadline:
        for process in left:
            if process.pid not in asked:
                asked.add(process.pid)
                with suppress(psutil.Error):
                    process.terminate()
        time.sleep(_POLL_S)
    for process in left:
        with suppress(psutil.Error):
            process.kill()
    return len(asked)


def with_environment(is_meant: Callable[[dict[str, str]], bool]) -> Iterator[psutil.Process]:
    """Yield the processes of this user with such an environment, except this one; it must have a variable of Flatout's.

    Root can read the environments of all users, but their processes are not its own.
    """
    user = os.getuid()
    for pid in psutil.pids():
        if pid == os.getpid() or not _has_our_variables(pid):
            continue
        with suppress(psutil.Error, OSError):  # it belongs to another user, or has ended
            process = psutil.Process(pid)
            is_own = process.uids().real == user
            if is_own and is_meant(process.environ()) and process.status() != psutil.STATUS_ZOMBIE:
                yield process


def _has_our_variables(pid: int) -> bool:
    """Whether a process has any of Flatout's variables, which few of a node's processes have."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return b"FLATOUT_" in file.read()
    except OSError:  # as above
        return False


def main() -> int:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.buffer.read()
    end_marked(lambda environment: environment.get(Variable.TUNING) == sys.argv[1])
    if afterwards := sys.argv[2:]:
        subprocess.run(afterwards, check=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
