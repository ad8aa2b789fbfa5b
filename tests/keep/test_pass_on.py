"""SIGUSR1 and SIGUSR2 to `flatout run` reach the processes of the job that handle them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from flatout.inside.protocol import Variable
from flatout.keep.pass_on import PassOn, handles
from flatout.launch import run_local

HANDLES = """
import signal, sys
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(7))
print("up", flush=True)
signal.pause()
"""
LAUNCHER = """
import subprocess, sys
rank = subprocess.Popen([sys.executable, "-c", sys.argv[1]], start_new_session=True)
print(rank.wait(), flush=True)
sys.exit(0)
"""


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", HANDLES],
        env={**os.environ, Variable.HEARTBEAT: str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None and process.stdout.readline() == "up\n"
    yield process
    process.kill()
    process.communicate()


@pytest.mark.parametrize("group_has_it", [False, True])
def test_a_process_in_another_session_that_handles_the_signal_gets_it(
    rank: subprocess.Popen[str], tmp_path: Path, group_has_it: bool
) -> None:
    assert handles(rank.pid, signal.SIGUSR1) and not handles(rank.pid, signal.SIGUSR2)
    pass_on = PassOn(tmp_path)
    assert not pass_on.was_recent()
    assert not pass_on(signal.SIGUSR2, group_has_it=False), "nobody handles it"
    assert pass_on(signal.SIGUSR1, group_has_it=group_has_it)
    assert rank.wait(10) == 7 and pass_on.was_recent()


def test_processes_of_other_jobs_get_nothing(rank: subprocess.Popen[str], tmp_path: Path) -> None:
    assert not PassOn(tmp_path / "other")(signal.SIGUSR1, group_has_it=False)
    assert rank.poll() is None


def test_a_process_that_is_gone_handles_nothing() -> None:
    assert not handles(2**22 + 5, signal.SIGUSR1)


def test_the_rank_gets_the_signal_and_its_launcher_lives(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The launcher has no handler: the signal would end it, and leave the rank behind."""
    pass_on = PassOn(tmp_path)
    began = time.monotonic()
    is_sent = False

    def watch(pid: int) -> None:
        nonlocal is_sent
        if not is_sent and "up" in capfd.readouterr().out:
            is_sent = True
            signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)  # another thread would not wait for it
        if time.monotonic() - began > 30:
            os.kill(pid, signal.SIGKILL)

    ended = run_local(
        [sys.executable, "-c", LAUNCHER, HANDLES],
        {**os.environ, Variable.HEARTBEAT: str(tmp_path)},
        watch=watch,
        pass_on={signal.SIGUSR1: pass_on},
    )
    assert (ended.code, ended.signal) == (0, None)
    assert "7" in capfd.readouterr().out
