"""Jobs do not outlive a Flatout that was killed, whatever session their processes are in."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import psutil

import flatout
from flatout.inside.protocol import Variable
from flatout.launch.guard import end_marked, guarded

SLEEP = "import time; time.sleep(600)"
# A job with a process in a session of its own, started by a Flatout that waits for it.
PARENT = f"""
import os, subprocess, sys
from flatout.inside.protocol import Variable
from flatout.launch.guard import guarded
with guarded(sys.argv[1]):
    child = "import subprocess, sys; subprocess.run([sys.executable, '-c', '{SLEEP}'], start_new_session=True)"
    environment = os.environ | {{Variable.TUNING: sys.argv[1]}}
    job = subprocess.Popen([sys.executable, "-c", child], env=environment, start_new_session=True)
    print("started", flush=True)
    job.wait()
"""


def marked(mark: str) -> list[int]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(Variable.TUNING) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except (psutil.Error, OSError):
            continue
    return found


def wait_for(mark: str, number: int) -> None:
    deadline = time.monotonic() + 40
    while len(marked(mark)) != number:
        assert time.monotonic() < deadline, (marked(mark), number)
        time.sleep(0.1)


def parent(mark: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", PARENT, mark],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(flatout.__file__).parents[1])},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n"
    return process


def test_the_job_of_a_killed_process_is_ended_to_its_last_descendant() -> None:
    mark = uuid.uuid4().hex
    process = parent(mark)
    wait_for(mark, 2)
    process.send_signal(signal.SIGKILL)
    process.wait()
    wait_for(mark, 0)
    assert process.stdout is not None
    process.stdout.close()


def test_processes_of_another_mark_are_left_alone() -> None:
    mine, other = uuid.uuid4().hex, uuid.uuid4().hex
    processes = [
        subprocess.Popen([sys.executable, "-c", SLEEP], env={**os.environ, Variable.TUNING: m}) for m in (mine, other)
    ]
    try:
        wait_for(mine, 1)
        wait_for(other, 1)
        assert end_marked(lambda environment: environment.get(Variable.TUNING) == mine) == 1
        assert processes[0].wait(20) == -signal.SIGTERM
        assert processes[1].poll() is None
    finally:
        for process in processes:
            process.kill()
            process.wait()


def test_of_an_ordinary_end_there_is_nothing_to_end_and_nothing_to_wait_for() -> None:
    began = time.monotonic()
    with guarded(uuid.uuid4().hex):
        pass
    assert time.monotonic() - began < 8
