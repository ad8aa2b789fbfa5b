"""The end of the process: what is still to be written then, whichever way the process ends.

Callbacks run at exit (of the main process, and of children of `multiprocessing`, which end without `atexit`), or when
`end_now` ends the process at a step boundary. Each runs once, the newest first; its errors are logged.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import active_children, parent_process
from multiprocessing import util as multiprocessing_util
from pathlib import Path
from typing import Any

from flatout.inside.about import is_gpu_done
from flatout.inside.identity import Identity
from flatout.inside.log import LOG

_GPU_PATIENCE_S = 60.0
_PEERS_PATIENCE_S, _FIRST_LEAVES_LAST_S = 20.0, 0.3


class Ending:
    def __init__(self) -> None:
        self._at_exit: list[Callable[[], None]] = []
        self._at_stop: list[Callable[[], None]] = []
        self._pid = 0

    def at_exit(self, callback: Callable[[], None]) -> None:
        """`callback` at the end, whether the script ends or we end it."""
        self._at_exit.append(callback)
        if not self._pid:
            self._pid = os.getpid()
            atexit.register(self._exits)
            multiprocessing_util.register_after_fork(self, Ending._in_child)
            if parent_process() is not None:
                self._in_child()

    def at_stop(self, callback: Callable[[], None]) -> None:
        """`callback` where we end the process; it is registered at exit by itself."""
        self._at_stop.append(callback)

    def forget_stop(self) -> None:
        """In a forked child: what its parent has begun is the parent's."""
        self._at_stop.clear()

    def run_all(self) -> None:
        callbacks = [*self._at_exit, *self._at_stop]
        self._at_exit, self._at_stop = [], []
        for callback in reversed(callbacks):
            try:
                callback()
            except Exception:  # noqa: BLE001 - the others are still to be run
                LOG.error("the end of the process")

    def _in_child(self) -> None:
        """A child of `multiprocessing` runs finalizers, and those of its parent were just forgotten."""
        self._pid = os.getpid()
        multiprocessing_util.Finalize(None, self._exits, exitpriority=-1)

    def _exits(self) -> None:
        if self._pid != os.getpid():  # of a plain os.fork
            return
        callbacks, self._at_exit = self._at_exit, []
        for callback in reversed(callbacks):
            try:
                callback()
            except Exception:  # noqa: BLE001
                LOG.error("the end of the process")


ENDING = Ending()


def end_now(state: Path, identity: Identity) -> None:
    """End this rank at once with code 0, when all ranks are here: none waits for one that has left. Never returns.

    What the script registered to run at its exit does not run.
    """
    deadline = time.monotonic() + _GPU_PATIENCE_S
    while not is_gpu_done() and time.monotonic() < deadline:
        pass
    ENDING.run_all()
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
    deadline = time.monotonic() + _PEERS_PATIENCE_S
    while len(list(state.glob("stopped-*"))) < identity.world_size and time.monotonic() < deadline:
        time.sleep(0.01)
    if identity.rank == 0:  # it may be the one through which the others talk
        time.sleep(_FIRST_LEAVES_LAST_S)


def _end_children() -> None:
    """Loader workers; torch's own handler would raise an error that they were killed."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    children = active_children()
    for child in children:
        child.kill()
    for child in children:
        child.join(1.0)
    finalize: Any = vars(multiprocessing_util)["_run_finalizers"]
    finalize(0)  # semaphores, of which Python would say that they were forgotten
