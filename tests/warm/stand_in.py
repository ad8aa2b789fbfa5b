"""Stands in for Python where no test can ask for a warm start, as in a Slurm step: `python -IS stand_in.py SOCKET ...`.

The rest of the line, the environment, the folder and the standard streams go to `tasks.py`, which listens at
SOCKET. What it forks is no child of this process, so signals are passed on, and its end is this one's.
"""

from __future__ import annotations

import array
import json
import os
import signal
import socket
import sys

_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


def main(path: str, words: list[str]) -> int:
    signal.pthread_sigmask(signal.SIG_BLOCK, _FORWARDED)  # none comes before there is somebody to tell
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    for number in _FORWARDED:
        signal.signal(number, lambda received, _frame: connection.sendall(bytes([received])))
    asked = {"words": words, "folder": os.getcwd(), "variables": dict(os.environ), "pid": os.getpid()}
    data = json.dumps(asked).encode("utf-8", "surrogateescape")
    streams = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0, 1, 2]))]
    connection.sendmsg([len(data).to_bytes(4, "big")], streams)
    connection.sendall(data)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED)
    answer = connection.recv(4, socket.MSG_WAITALL)
    return int.from_bytes(answer, "big", signed=True) if len(answer) == 4 else 1


if __name__ == "__main__":
    code = main(sys.argv[1], sys.argv[2:])
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)
