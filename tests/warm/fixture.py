"""The fixture `warm`: what the tests of a module start with this Python is forked, not executed (see `ask`)."""

from __future__ import annotations

import atexit
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from tests.warm.ask import Server, WarmStarts

_SERVER = Path(__file__).with_name("serve.py")


@cache
def warm_starts() -> WarmStarts:
    """One for all modules of this process; its server ends with this process."""
    ours, its = socket.socketpair()
    left_out = ("FLATOUT_", "PYTHON", "OMP_", "COV_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
    environment["OPENBLAS_NUM_THREADS"] = "1"  # so that it starts no thread, which no fork would have
    server = subprocess.Popen(
        [sys.executable, str(_SERVER), str(its.fileno())],
        env=environment,
        pass_fds=[its.fileno()],
        stdin=subprocess.DEVNULL,
    )
    its.close()
    starts = WarmStarts(Server(ours))
    atexit.register(_end, server, ours)
    return starts


def _end(server: subprocess.Popen[bytes], connection: socket.socket) -> None:
    connection.close()
    server.wait()


@pytest.fixture(scope="module")
def warm() -> Iterator[None]:
    """Not for tests of how a process starts, of what it imports, or of what ends with all of its memory."""
    starts = warm_starts()
    starts.put_in()
    yield
    starts.take_out()


@pytest.fixture
def cold(warm: None) -> Iterator[None]:
    """In a module of warm starts, a test whose processes are started as users start them."""
    starts = warm_starts()
    starts.take_out()
    yield
    starts.put_in()
