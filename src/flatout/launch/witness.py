"""Distinguish a signal to this process alone from a signal to its process group.

Both look the same to the receiver. So a second process in the group only waits for signals: a signal that it received
as well was also received by the job, and must not be sent to the job again. It keeps none of our streams open, and ends
when this process does.
"""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Sequence
from types import TracebackType

from flatout.launch.next_signal import next_signal

_TIMEOUT_S = 0.1


class GroupSignalProbe:
    """The second process that waits for signals. Use it in a `with` block, with `signals` blocked."""

    def __init__(self, signals: Sequence[signal.Signals]) -> None:
        self._signals = set(signals)
        self._pipe = -1
        self._pid = 0

    def __enter__(self) -> GroupSignalProbe:
        self._pipe, writer = os.pipe()
        parent = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                _watch(self._signals, writer, parent)
            finally:
                os._exit(0)
        os.close(writer)
        return self

    def has_seen(self, number: int) -> bool:
        """Whether the second process has received this signal too, since the last call."""
        while select.select([self._pipe], [], [], _TIMEOUT_S)[0]:
            seen = os.read(self._pipe, 1)
            if not seen:
                return False
            if seen[0] == number:
                return True
        return False

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        os.close(self._pipe)


def _watch(signals: set[signal.Signals], writer: int, parent: int) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(null, stream)
    os.dup2(writer, 3)
    os.closerange(4, os.sysconf("SC_OPEN_MAX"))
    while os.getppid() == parent:
        received = next_signal(signals, 1.0)
        if received is not None:
            os.write(3, bytes([received.si_signo]))
