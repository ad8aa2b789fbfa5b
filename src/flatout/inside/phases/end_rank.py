"""End a rank at a step boundary, before its script ends, together with all other ranks and with exit code 0."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from contextlib import suppress
from multiprocessing import active_children
from multiprocessing import util as multiprocessing_util
from pathlib import Path
from typing import Any

from flatout.inside.exit_handlers import EXIT_HANDLERS
from flatout.inside.identity import Identity
from flatout.inside.recording.process_info import is_gpu_done

_GPU_TIMEOUT_S = 60.0
_PEERS_TIMEOUT_S, _RANK_0_LINGERS_S = 20.0, 0.3


def end_now(state: Path, identity: Identity) -> None:
    """End this rank with code 0 once all ranks are here, so that no rank waits for one that has left. Never returns.

    Exit handlers that the script registered do not run.
    """
    deadline = time.monotonic() + _GPU_TIMEOUT_S
    while not is_gpu_done() and time.monotonic() < deadline:
        pass
    EXIT_HANDLERS.run_all()
    with suppress(Exception):
        _meet(state, identity)
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    with suppress(Exception):
        _end_children()
    os._exit(0)


def _meet(state: Path, identity: Identity) -> None:
    if identity.world_size == 1:
        return
    (state / f"stopped-{identity.rank}").touch()
    deadline = time.monotonic() + _PEERS_TIMEOUT_S
    while len(list(state.glob("stopped-*"))) < identity.world_size and time.monotonic() < deadline:
        time.sleep(0.01)
    if identity.rank == 0:  # the other ranks may still communicate through rank 0
        time.sleep(_RANK_0_LINGERS_S)


def _end_children() -> None:
    """Kill the loader workers, without the error that torch's own handler raises for killed workers."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    children = active_children()
    for child in children:
        child.kill()
    for child in children:
        child.join(1.0)
    finalize: Any = vars(multiprocessing_util)["_run_finalizers"]
    finalize(0)  # release semaphores, which Python would otherwise report as leaked
