"""The end of the process: what is still to be written then, whichever way the process ends.

Callbacks run at exit (of the main process, and of children of `multiprocessing`, which end without `atexit`), or when
`end_now` ends the process at a step boundary. Each runs once, the newest first; its errors are logged.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable
from multiprocessing import parent_process
from multiprocessing import util as multiprocessing_util

from flatout.inside.log import LOG


class ExitHandlers:
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
            multiprocessing_util.register_after_fork(self, ExitHandlers._in_child)
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


EXIT_HANDLERS = ExitHandlers()
