"""`python -m flatout.launch.guard MARK`: ends what a job left, if the Flatout that started it was killed.

A process that gets SIGKILL ends nothing that it started: its job would run on, beside the trials of the tuning that is
resumed. So this one waits until its standard input ends, which it does when its parent ends, however that happens, and
ends all processes that bear the mark: a variable of their environment, which all descendants of the job have, whatever
session they are in. Of an ordinary end there are none.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import psutil

from flatout.inside.protocol import Variable

_GRACE_S = 10.0  # between being asked to end and being made to
_POLL_S = 0.1


@contextmanager
def guarded(mark: str) -> Iterator[None]:
    """While this lasts, processes with the variable FLATOUT_TUNING=`mark` do not outlive this one."""
    process = subprocess.Popen(
        [sys.executable, "-m", "flatout.launch.guard", mark],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # what ends our group is not meant for it
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
    """Ask all processes with such an environment to end, and make them after `grace_s`; how many there were."""
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
    """Processes of this user with such an environment, but for this one."""
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):  # of another user, or ended by now
            is_ours = process.pid != os.getpid() and is_meant(process.environ())
            if is_ours and process.status() != psutil.STATUS_ZOMBIE:
                yield process


def main() -> int:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.buffer.read()
    end_marked(lambda environment: environment.get(Variable.TUNING) == sys.argv[1])
    return 0


if __name__ == "__main__":
    sys.exit(main())
