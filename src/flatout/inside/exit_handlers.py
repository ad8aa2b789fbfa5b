"""Callbacks that write buffered data when the process ends, whichever way it ends.

They run at exit, both in the main process and in children of `multiprocessing`, which end without `atexit`, or when
`phases.end_rank` ends the process at a step boundary. Each callback runs once, the newest first; its errors are logged.
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
        """Call `callback` when the process ends, on its own or at a stop."""
        self._at_exit.append(callback)
        if not self._pid:
            self._pid = os.getpid()
            atexit.register(self._exits)
            multiprocessing_util.register_after_fork(self, ExitHandlers._in_child)
            if parent_process() is not None:
                self._in_child()

    def at_stop(self, callback: Callable[[], None]) -> None:
        """Call `callback` when Flatout stops the process; its owner has also registered it at exit."""
        self._at_stop.append(callback)

    def forget_stop(self) -> None:
        """Forget the callbacks for a stop, in a forked child, because they belong to the parent."""
        self._at_stop.clear()

    def run_all(self) -> None:
        """Run all callbacks, when the process is about to be stopped."""
        callbacks = [*self._at_exit, *self._at_stop]
        self._at_exit, self._at_stop = [], []
        _run(callbacks)

    def _in_child(self) -> None:
        """Register again, because a child of `multiprocessing` runs finalizers but has just dropped its parent's."""
        self._pid = os.getpid()
        multiprocessing_util.Finalize(None, self._exits, exitpriority=-1)

    def _exits(self) -> None:
        if self._pid != os.getpid():  # this is a child of a plain os.fork
            return
        callbacks, self._at_exit = self._at_exit, []
        _run(callbacks)


def _run(callbacks: list[Callable[[], None]]) -> None:
    for callback in reversed(callbacks):
        try:
            callback()
        except Exception:  # noqa: BLE001 - the others are still to be run
            LOG.error("the end of the process")


EXIT_HANDLERS = ExitHandlers()
