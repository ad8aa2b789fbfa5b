"""Save a last checkpoint when the job is asked to end: a scheduler's preemption sends SIGTERM to all ranks.

In: the signal. Out: the step after which all ranks save and then end by that signal. There is none if not all ranks
were asked (a launcher ends the ranks that remain after one has failed), or if the step is not reached in time.
Background writes that have already begun are finished in either case.

The signal's default action would end the process in the middle of a write. Python's handlers run on the main thread,
which may be stuck in a collective, so a separate thread handles the signal. It writes the last step that this rank has
ended to the store with which torch set up the job. The last step of the training is the one after the highest of these:
no rank has ended it yet, and every rank can reach it, because none waits for another before it.

The signal can also reach a DataLoader's workers. If they ended, torch would raise an error in the middle of a step, so
they stay alive.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import socket
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch.distributed
import torch.utils.data

NUMBER = signal.SIGTERM
_ALL_ASKED_S = 2.0  # if some rank has not been asked by then, it never will be
_GRACE_S = 20.0  # for the rest of two steps and the checkpoint; launchers and schedulers leave 30 s
_FLUSH_S = 5.0  # for writes that have already begun
_ONE_BY_ONE_S = 0.3  # limit on the delay between the processes of a job when a signal is sent to all of them
_POLL_S = 0.02


class PreemptionHandler:
    """Decides which step is the last after a SIGTERM. A handler that the script has set for the signal is kept.

    `flush(limit_s)` waits for writes that have already begun. Create the object on the main thread, after
    torch.distributed has been set up.
    """

    def __init__(self, rank: int, world_size: int, flush: Callable[[float], object]) -> None:
        self._rank, self._world_size, self._flush = rank, world_size, flush
        self._asked, self._settled = threading.Event(), threading.Event()
        self._ended_step: int | None = None  # the last step that this rank has ended; None: it has not ended any
        self._last: int | None = None  # the step at which to save and end; None: there is none
        self._store = _store() if world_size > 1 else None
        self._is_asked = mmap.mmap(-1, 1)  # `_asked` as a byte that forked children see
        self._undo: Callable[[], None] = lambda: None
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()
        self._ends: tuple[socket.socket, socket.socket] | None = None
        is_main = threading.current_thread() is threading.main_thread()
        if not is_main or signal.getsignal(NUMBER) is not signal.SIG_DFL:
            return
        self._ends = socket.socketpair()
        self._ends[1].setblocking(False)
        before = signal.set_wakeup_fd(self._ends[1].fileno(), warn_on_full_buffer=False)
        if before != -1:  # it belongs to an event loop
            signal.set_wakeup_fd(before)
            self._close_ends()
            return
        signal.signal(NUMBER, self._hear)
        self._undo = _keep_workers(self._is_asked)
        forget = weakref.WeakMethod(self._forget)  # a registered function is never released, but this object must be
        os.register_at_fork(after_in_child=lambda: _call(forget()))  # a signal to a child is not meant for this process
        self._thread = threading.Thread(
            target=self._listen, args=(self._ends[0],), name="flatout-farewell", daemon=True
        )
        self._thread.start()

    def is_last(self, step: int) -> bool:
        """Whether all ranks save after this step and then end. Call it after each step.

        Once the job was asked to end, this waits until the ranks have agreed.
        """
        self._ended_step = step  # set before the check, because the thread does these in the opposite order
        if not self._asked.is_set():
            return False
        self._settled.wait()
        return self._last is not None and step >= self._last

    def close(self) -> None:
        """Restore the signal's default action; the training is over."""
        if not self._asked.is_set() and threading.current_thread() is threading.main_thread():
            self._undo()
            self._forget()

    def _hear(self, number: int, _: object) -> None:
        """Handle the signal on the main thread, possibly late.

        If an event loop takes the descriptor, the thread misses it.
        """
        ends = self._ends
        if ends is not None:
            with suppress(OSError):
                ends[1].send(bytes([number]))

    def _forget(self) -> None:
        if self._ends is not None:
            with suppress(ValueError, OSError):  # the interpreter is shutting down
                signal.set_wakeup_fd(-1)
                signal.signal(NUMBER, signal.SIG_DFL)
            self._close_ends()

    def _close_ends(self) -> None:
        assert self._ends is not None
        reader, writer = self._ends
        self._ends = None
        writer.close()
        if self._thread is not None and self._pid == os.getpid():
            self._thread.join(1.0)  # the thread ends when it has read everything
        reader.close()

    def _listen(self, reader: socket.socket) -> None:
        while numbers := reader.recv(64):  # the numbers of all signals that have a Python handler
            if NUMBER in numbers:
                break
        else:  # the socket was closed
            return
        late = threading.Timer(_GRACE_S + _FLUSH_S, die)  # ends the process even if a store or a disk hangs
        late.daemon = True
        late.start()
        deadline = time.monotonic() + _GRACE_S
        self._asked.set()
        self._is_asked[0] = 1
        with suppress(Exception):  # if the store is gone, the other ranks are too
            self._last = self._agreed()
        self._settled.set()
        if self._last is not None:
            time.sleep(max(deadline - time.monotonic(), 0.0))  # the main thread ends the process during this time
        with suppress(Exception):
            self._flush(_FLUSH_S)
        die()

    def _agreed(self) -> int | None:
        if self._ended_step is None:
            return None
        if self._world_size == 1:
            return self._ended_step + 1
        if self._store is None:
            return None
        names = [f"{rank}" for rank in range(self._world_size)]
        self._store.set(names[self._rank], str(self._ended_step))
        deadline = time.monotonic() + _ALL_ASKED_S
        while not self._store.check(names):
            if time.monotonic() > deadline:
                return None
            time.sleep(_POLL_S)
        return max(int(self._store.get(name)) for name in names) + 1


def _keep_workers(is_asked: mmap.mmap) -> Callable[[], None]:
    """Let loader workers forked from now survive the signal if their rank got it too; return the undo function."""
    module: Any = torch.utils.data._utils.signal_handling
    set_handlers = module._set_worker_signal_handlers

    def end_or_stay(*_: object) -> None:
        deadline = time.monotonic() + _ONE_BY_ONE_S
        while not is_asked[0]:
            if time.monotonic() > deadline:
                os._exit(0)  # as torch's own handler does if the rank ends its workers
            time.sleep(_POLL_S)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, _GRACE_S + _FLUSH_S)

    def set_handlers_and_ours() -> None:
        set_handlers()
        signal.signal(NUMBER, end_or_stay)

    module._set_worker_signal_handlers = set_handlers_and_ours
    return lambda: setattr(module, "_set_worker_signal_handlers", set_handlers)


def _call(function: Callable[[], None] | None) -> None:
    if function is not None:
        function()


def die() -> None:
    """End this process by the signal's default action. Python's `signal` works only on the main thread, C's on any."""
    ctypes.CDLL(None).signal(int(NUMBER), None)
    os.kill(os.getpid(), NUMBER)
    time.sleep(1.0)
    os._exit(128 + NUMBER)


def _store() -> Any:
    """Return a separate connection to the job's store if an agent hosts it and it outlives the ranks; else None."""
    with suppress(Exception):
        store = torch.distributed.distributed_c10d._get_default_store()
        store = store.clone() if hasattr(store, "clone") else store
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        return torch.distributed.PrefixStore(f"flatout-farewell-{attempt}", store)
    return None
