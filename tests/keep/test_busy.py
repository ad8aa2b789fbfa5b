"""What a process does is seen from outside, its children's work included."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from flatout.keep.busy import work_of

SPIN = "while True: pass"
WRITE = "import time\nf = open('/dev/null', 'wb', buffering=0)\nwhile True: f.write(b'x' * 65536); time.sleep(0.01)"
CHILD = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {SPIN!r}])"
REST = "import time; time.sleep(60)"


@pytest.fixture(scope="module")
def work() -> dict[str, tuple[float, float]]:
    """What each program does when it has started: busy cores, and bytes moved. They run side by side."""
    programs = (SPIN, WRITE, CHILD, REST)
    processes = [subprocess.Popen([sys.executable, "-c", program], start_new_session=True) for program in programs]
    try:
        time.sleep(1)  # they start
        before, began = [work_of(process.pid) for process in processes], time.monotonic()
        time.sleep(1.5)
        after, elapsed_s = [work_of(process.pid) for process in processes], time.monotonic() - began
    finally:
        for process in processes:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return {
        program: (now.busy_cores(then, elapsed_s), now.moved_since(then))
        for program, then, now in zip(programs, before, after, strict=True)
    }


@pytest.mark.parametrize(
    ("program", "is_computing", "is_moving"),
    [(SPIN, True, False), (WRITE, False, True), (CHILD, True, False), (REST, False, False)],
)
def test_computing_and_writing_are_seen_and_rest_is_rest(
    work: dict[str, tuple[float, float]], program: str, is_computing: bool, is_moving: bool
) -> None:
    cores, moved_bytes = work[program]
    assert (cores > 0.05) is (is_computing or (is_moving and cores > 0.05))
    assert (moved_bytes > 65536) is is_moving


def test_a_process_that_is_gone_has_done_nothing() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert work_of(process.pid).cpu_s == 0.0
