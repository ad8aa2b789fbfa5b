"""The command runs as it would under the shell: code, signals, process group, open files."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import flatout

PARENT = """
import os, signal, sys
from flatout.launch import run_local, end_like
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # also where the tests were started by nohup
ended = run_local(sys.argv[1:], os.environ)
sys.exit(end_like(ended))
"""
# Counts the signals that it gets, and says so when it has been quiet for a while.
COUNTER = """
import signal, sys, time
seen = []
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, lambda number, _: seen.append(signal.Signals(number).name))
print("ready", flush=True)
while not seen:
    time.sleep(0.05)
time.sleep(0.5)
print(*seen, flush=True)
sys.exit(7)
"""


def start(*command: str, setup: str = "") -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", f"{setup}\n{PARENT}", *command],
        env={**os.environ, "PYTHONPATH": str(Path(flatout.__file__).parents[1])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def start_counter(setup: str = "") -> subprocess.Popen[str]:
    process = start(sys.executable, "-c", COUNTER, setup=setup)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_to_us_alone_is_handed_on_once(number: signal.Signals) -> None:
    process = start_counter()
    process.send_signal(number)
    assert process.communicate(timeout=20)[0] == f"{number.name}\n"
    assert process.returncode == 7


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_whole_group_is_not_given_twice(number: signal.Signals) -> None:
    process = start_counter()
    os.killpg(process.pid, number)
    assert process.communicate(timeout=20)[0] == f"{number.name}\n"
    assert process.returncode == 7


def test_a_signal_that_another_thread_could_receive_reaches_the_job() -> None:
    """A thread that is older than the job does not block what the job's parent waits for."""
    process = start_counter(
        "import threading, time; threading.Thread(target=time.sleep, args=(9,), daemon=True).start()"
    )
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=20)[0] == "SIGTERM\n"
    assert process.returncode == 7


BEFORE_THE_JOB = """
from flatout.launch.witness import GroupSignalProbe
enter = GroupSignalProbe.__enter__
def entered(self):
    witness = enter(self)
    os.killpg(0, signal.SIGINT)
    return witness
GroupSignalProbe.__enter__ = entered
"""
WHILE_IT_STARTS = """
os.register_at_fork(after_in_child=lambda: os.kill(os.getpid(), signal.SIGINT))
"""


@pytest.mark.parametrize("when", [BEFORE_THE_JOB, WHILE_IT_STARTS], ids=["before", "between fork and exec"])
def test_an_interrupt_while_the_job_is_started_ends_it(when: str) -> None:
    """Ctrl-C goes to the group of which the job is about to become a member; it must not run on."""
    script = PARENT.replace("ended =", when + "ended =")
    process = subprocess.Popen(
        [sys.executable, "-c", script, "sleep", "30"],
        env={**os.environ, "PYTHONPATH": str(Path(flatout.__file__).parents[1])},
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.communicate(timeout=20)[1] == b""
    assert process.returncode == -signal.SIGINT


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_job_that_dies_of_a_signal_ends_us_by_it(number: signal.Signals) -> None:
    process = start("sh", "-c", "echo ready; exec sleep 30")
    assert process.stdout is not None
    process.stdout.readline()
    time.sleep(0.1)
    process.send_signal(number)
    process.communicate(timeout=20)
    assert process.returncode == -number


def test_a_job_that_kills_itself_ends_us_the_same_way() -> None:
    process = start("sh", "-c", "kill -9 $$")
    process.communicate(timeout=20)
    assert process.returncode == -signal.SIGKILL


@pytest.mark.parametrize("code", [0, 3, 255])
def test_the_code_is_the_jobs(code: int) -> None:
    process = start("sh", "-c", f"exit {code}")
    process.communicate(timeout=20)
    assert process.returncode == code


def test_signals_are_not_blocked_or_ignored_in_the_job() -> None:
    script = "print([l for l in open('/proc/self/status') if l.startswith(('SigBlk', 'SigIgn'))])"
    plain = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # as PARENT
    )
    process = start(sys.executable, "-c", script)
    assert process.communicate(timeout=20)[0] == plain.stdout


def test_the_job_is_in_our_process_group_and_has_our_open_files(tmp_path: Path) -> None:
    script = "import os; print(os.getpgid(0), os.read(int(os.environ['EXTRA']), 3))"
    file = os.open(tmp_path / "extra", os.O_RDWR | os.O_CREAT)
    os.write(file, b"abc")
    os.lseek(file, 0, os.SEEK_SET)
    process = subprocess.Popen(
        [sys.executable, "-c", PARENT, sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": str(Path(flatout.__file__).parents[1]), "EXTRA": str(file)},
        stdout=subprocess.PIPE,
        text=True,
        pass_fds=[file],
        start_new_session=True,
    )
    os.close(file)
    assert process.communicate(timeout=20)[0] == f"{process.pid} b'abc'\n"


def test_nothing_of_ours_holds_the_output_open() -> None:
    """A reader sees the end as soon as the job and we are gone; and no process stays behind."""
    process = start("sh", "-c", "echo done")
    assert process.communicate(timeout=20)[0] == "done\n"
    time.sleep(0.1)
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)
