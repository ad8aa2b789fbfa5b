"""Warm starts of what no test starts itself: the tasks of Slurm's steps, and what salloc and batch scripts run.

`WarmTasks` listens in the process of the tests; a `python` that it writes is used in place of the real one. That
program (`stand_in.py`) is the task that Slurm knows; what runs is forked by the server of this process's warm starts,
in the stand-in's namespaces, folder and environment, and with its streams. Signals that reach the stand-in reach all
processes below the fork, as Slurm sends them to all of a step; where it is killed, so are they. It cannot be stopped
and continued.
"""

from __future__ import annotations

import array
import atexit
import json
import os
import select
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from contextlib import suppress
from functools import cache
from pathlib import Path

import psutil
from tests.warm.fixture import warm_starts

_STAND_IN = Path(__file__).with_name("stand_in.py")
_NUM_STREAMS = 3


class WarmTasks:
    """One for all modules of this process."""

    def __init__(self) -> None:
        self._starts = warm_starts()
        folder = Path(tempfile.mkdtemp(prefix="warm-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        self._socket = folder / "socket"
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self._socket))
        self._listener.listen(64)
        threading.Thread(target=self._accept, daemon=True).start()

    def write_python(self, folder: Path) -> Path:
        """Write a `python` whose programs are forked."""
        folder.mkdir(parents=True, exist_ok=True)
        program = folder / "python"
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -IS {_STAND_IN} {self._socket} "$@"\n')
        program.chmod(0o755)
        return program

    def _accept(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            threading.Thread(target=self._serve, args=[connection], daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(ConnectionError):
            pid = self._start(connection)
            _forward(connection, pid)
            _, status = os.waitpid(pid, 0)
            connection.sendall(os.waitstatus_to_exitcode(status).to_bytes(4, "big", signed=True))

    def _start(self, connection: socket.socket) -> int:
        streams = array.array("i")
        room = socket.CMSG_SPACE(_NUM_STREAMS * streams.itemsize)
        head, ancillary, _, _ = connection.recvmsg(4, room, socket.MSG_WAITALL | socket.MSG_CMSG_CLOEXEC)
        for _, _, data in ancillary:
            streams.frombytes(data)
        asked = json.loads(connection.recv(int.from_bytes(head, "big"), socket.MSG_WAITALL))
        try:
            return self._starts.start_beside(
                asked["pid"],
                [sys.executable, *asked["words"]],
                folder=asked["folder"],
                variables=asked["variables"],
                files=dict(enumerate(streams)),
            )
        finally:
            for stream in streams:
                os.close(stream)


def _forward(connection: socket.socket, pid: int) -> None:
    """Pass signals on until the process has ended."""
    ended = os.pidfd_open(pid)
    try:
        while True:
            ready, _, _ = select.select([connection, ended], [], [])
            if ended in ready:
                return
            received = connection.recv(1)
            if not received:
                _kill(pid)
                return
            for process in _tree(pid):
                with suppress(psutil.Error):
                    process.send_signal(received[0])
    finally:
        os.close(ended)


def _tree(pid: int) -> list[psutil.Process]:
    """The process and those below it, but for the servers of warm starts."""
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        return [each for each in (process, *process.children(recursive=True)) if not _is_server(each)]
    return []


def _is_server(process: psutil.Process) -> bool:
    try:
        return process.cmdline()[:1] == ["warm-server"]
    except psutil.Error:
        return True


def _kill(pid: int) -> None:
    """From below, so that none is left without a parent; servers end with those that they serve."""
    with suppress(psutil.Error):
        while len(tree := [each for each in _tree(pid) if each.status() != psutil.STATUS_ZOMBIE]) > 1:
            for process in tree[1:]:
                process.send_signal(signal.SIGSTOP)
            for process in tree[1:]:
                process.kill()
            time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)


@cache
def warm_tasks() -> WarmTasks:
    return WarmTasks()
