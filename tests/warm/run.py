"""Runs one command warm where no test can ask for it, as in a batch job: `python run.py PYTHON -m flatout run ...`.

A server of its own imports torch once, and the command and whatever it starts are forked from it. Signals that a
scheduler sends are passed on, and the command's end is this process's.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT)


def main(words: list[str]) -> int:
    sys.path[:] = [
        str(Path(__file__).parents[2]),
        *(entry for entry in sys.path if entry != str(Path(__file__).parent)),
    ]
    from tests.warm.fixture import warm_starts

    warm_starts().put_in()
    command = subprocess.Popen(words)
    for number in _FORWARDED:
        signal.signal(number, lambda received, _frame: command.send_signal(received))
    return command.wait()


if __name__ == "__main__":
    code = main(sys.argv[1:])
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)
