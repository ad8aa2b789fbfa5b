"""A last checkpoint when the job is asked to end: SIGTERM on all ranks, as a scheduler's preemption sends it.

In: the signal. Out: the step after which all ranks save and then end by that signal, or none: where not all ranks were
asked, as when a launcher takes down those that a failed rank has left, or where that step does not come in time. What
was already being written in the background is brought to its end in either case.

The signal's own action would end the process in the middle of a write, and Python's handlers run on the main thread,
which may be inside a collective for ever: so a thread handles it. It notifies the others, in the store through which
torch set up the job, the last step that this one had ended. The last of all is the step after the highest of these: no
rank has ended it, and each can come to it, as none waits for another before it.

The signal may reach a DataLoader's workers too, of whose end torch makes an error in the middle of a step: they stay.
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
_ALL_ASKED_S = 2.0  # by then all ranks were asked, or some never will be
_GRACE_S = 20.0  # for the rest of two steps and the checkpoint; launchers and schedulers leave 30 s
_FLUSH_S = 5.0  # for what is being written already
_ONE_BY_ONE_S = 0.3  # between the processes of a job that are all sent a signal
_POLL_S = 0.02


class PreemptionHandler:
    """`flush(limit_s)` waits for what is being written. Where the script has a handler for the signal, that one stays.

    Make it on the main thread, when torch.distributed is set up.
    """

    def __init__(self, rank: int, world_size: int, flush: Callable[[float], object]) -> None:
        self._rank, self._world_size, self._flush = rank, world_size, flush
        self._asked, self._settled = threading.Event(), threading.Event()
        self._ended_step: int | None = None  # the last one that this rank has ended; None: it reports none
        self._last: int | None = None  # the one to save; None: there is none
        self._store = _store() if world_size > 1 else None
        self._is_asked = mmap.mmap(-1, 1)  # the same for forked children: `_asked` as a byte
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
        if before != -1:  # an event loop's
            signal.set_wakeup_fd(before)
            self._close_ends()
            return
        signal.signal(NUMBER, self._hear)
        self._undo = _keep_workers(self._is_asked)
        forget = weakref.WeakMethod(self._forget)  # what is registered stays for good, and this must not
        os.register_at_fork(after_in_child=lambda: _call(forget()))  # a child's signal is not this process's
        self._thread = threading.Thread(
            target=self._listen, args=(self._ends[0],), name="flatout-farewell", daemon=True
        )
        self._thread.start()

    def is_last(self, step: int) -> bool:
        """After each step: whether all ranks are to save it, and then to end. Once asked, waits until that is known."""
        self._ended_step = step  # before the question: the thread sets the one and reads the other
        if not self._asked.is_set():
            return False
        self._settled.wait()
        return self._last is not None and step >= self._last

    def close(self) -> None:
        """The training is over: the signal has its default action again."""
        if not self._asked.is_set() and threading.current_thread() is threading.main_thread():
            self._undo()
            self._forget()

    def _hear(self, number: int, _: object) -> None:
        """On the main thread, when it comes to it: if an event loop has the descriptor, only this notices it."""
        ends = self._ends
        if ends is not None:
            with suppress(OSError):
                ends[1].send(bytes([number]))

    def _forget(self) -> None:
        if self._ends is not None:
            with suppress(ValueError, OSError):  # an interpreter that ends
                signal.set_wakeup_fd(-1)
                signal.signal(NUMBER, signal.SIG_DFL)
            self._close_ends()

    def _close_ends(self) -> None:
        assert self._ends is not None
        reader, writer = self._ends
        self._ends = None
        writer.close()
        if self._thread is not None and self._pid == os.getpid():
            self._thread.join(1.0)  # it reads to the end
        reader.close()

    def _listen(self, reader: socket.socket) -> None:
        while numbers := reader.recv(64):  # all signals that Python has handlers for
            if NUMBER in numbers:
                break
        else:  # closed
            return
        late = threading.Timer(_GRACE_S + _FLUSH_S, die)  # whatever a store or a disk does
        late.daemon = True
        late.start()
        deadline = time.monotonic() + _GRACE_S
        self._asked.set()
        self._is_asked[0] = 1
        with suppress(Exception):  # a store that is gone: so are its ranks
            self._last = self._agreed()
        self._settled.set()
        if self._last is not None:
            time.sleep(max(deadline - time.monotonic(), 0.0))  # in which the main thread ends the process
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
    """Forked workers of loaders that begin from now on outlive the signal where their rank was asked as well."""
    module: Any = torch.utils.data._utils.signal_handling
    set_handlers = module._set_worker_signal_handlers

    def end_or_stay(*_: object) -> None:
        deadline = time.monotonic() + _ONE_BY_ONE_S
        while not is_asked[0]:
            if time.monotonic() > deadline:
                os._exit(0)  # as torch's own handler does where the rank ends its workers
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
    """As the signal would have ended this process, on any thread: Python's `signal` works on the main one only."""
    ctypes.CDLL(None).signal(int(NUMBER), None)
    os.kill(os.getpid(), NUMBER)
    time.sleep(1.0)
    os._exit(128 + NUMBER)


def _store() -> Any:
    """Return a separate connection to the job's store, which outlives its ranks where an agent has it; else None."""
    with suppress(Exception):
        store = torch.distributed.distributed_c10d._get_default_store()
        store = store.clone() if hasattr(store, "clone") else store
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        return torch.distributed.PrefixStore(f"flatout-farewell-{attempt}", store)
    return None
