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


@pytest.mark.parametrize(
    ("program", "is_computing", "is_moving"),
    [(SPIN, True, False), (WRITE, False, True), (CHILD, True, False), (REST, False, False)],
)
def test_computing_and_writing_are_seen_and_rest_is_rest(program: str, is_computing: bool, is_moving: bool) -> None:
    process = subprocess.Popen([sys.executable, "-c", program], start_new_session=True)
    try:
        time.sleep(1)  # it starts
        before, began = work_of(process.pid), time.monotonic()
        time.sleep(1.5)
        after = work_of(process.pid)
        cores = after.busy_cores(before, time.monotonic() - began)
        assert (cores > 0.05) is (is_computing or (is_moving and cores > 0.05))
        assert (after.moved_since(before) > 65536) is is_moving
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_a_process_that_is_gone_has_done_nothing() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert work_of(process.pid).cpu_s == 0.0
