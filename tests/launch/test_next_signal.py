"""Waiting for a signal for a limited time, also in a process that is stopped meanwhile."""

from __future__ import annotations

import errno
import os
import signal
import time

import pytest

from flatout.launch import next_signal as next_signal_module
from flatout.launch.next_signal import next_signal

AWAITED = {signal.SIGTERM, signal.SIGUSR1}
LIMIT_S = 0.1


def stopped_while_it_waits(*sent: signal.Signals) -> list[int]:
    """Stop a process that waits for longer than its limit, and return the signals that it got, 0 for none."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            signal.pthread_sigmask(signal.SIG_BLOCK, AWAITED)
            os.write(writer, b"w")
            received = [next_signal(AWAITED, LIMIT_S) for _ in range(2)]
            os.write(writer, bytes(each.si_signo if each is not None else 0 for each in received))
        finally:
            os._exit(0)
    os.close(writer)
    assert os.read(reader, 1) == b"w"
    time.sleep(LIMIT_S / 4)
    os.kill(pid, signal.SIGSTOP)
    time.sleep(3 * LIMIT_S)
    for number in (*sent, signal.SIGCONT):
        os.kill(pid, number)
    os.waitpid(pid, 0)
    got = os.read(reader, 8)
    os.close(reader)
    return list(got)


def test_a_stop_is_no_signal() -> None:
    assert stopped_while_it_waits() == [0, 0]


@pytest.mark.parametrize("number", sorted(AWAITED))
def test_a_signal_that_comes_during_the_stop_is_received_once(number: signal.Signals) -> None:
    assert stopped_while_it_waits(number) == [number, 0]


def test_without_a_descriptor_a_stop_is_no_signal_either(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(numbers: object) -> int:
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(next_signal_module, "_signal_descriptor", refuse)
    assert stopped_while_it_waits() == [0, 0]
    assert stopped_while_it_waits(signal.SIGTERM) == [0, signal.SIGTERM]
