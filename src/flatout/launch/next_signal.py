"""Wait for a blocked signal, for a limited time, also where this process is stopped and continued meanwhile.

In: the signals, which are blocked. Out: the signal that arrived. `signal.sigtimedwait` of CPython (3.11 to 3.14) cannot
be used for this: if the process was stopped (Ctrl-Z, a scheduler's suspension, a frozen container) for longer than the
limit, it returns memory that was never written as if it were a signal.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
from collections.abc import Iterable

_SET_BYTES = 128  # of the C library's `sigset_t`
_CLOSE_ON_EXEC = os.O_CLOEXEC  # SFD_CLOEXEC has the same value


def next_signal(awaited: Iterable[int], limit_s: float) -> signal.struct_siginfo | None:
    """Return the next of the awaited signals; None if none arrives within `limit_s`."""
    numbers = set(awaited)
    try:
        descriptor = _signal_descriptor(numbers)
    except OSError:  # no descriptor is free, or a sandbox forbids the call
        received = signal.sigtimedwait(numbers, limit_s)
        return received if received is not None and received.si_signo in numbers else None
    try:
        select.select([descriptor], [], [], limit_s)
    finally:
        os.close(descriptor)
    return signal.sigtimedwait(numbers, 0)  # which does not wait, so that nothing can interrupt it


def _signal_descriptor(numbers: Iterable[int]) -> int:
    """Return a file descriptor that is readable while one of the signals is pending."""
    library = ctypes.CDLL(None, use_errno=True)
    signals = ctypes.create_string_buffer(_SET_BYTES)
    library.sigemptyset(signals)
    for number in numbers:
        library.sigaddset(signals, int(number))
    descriptor = int(library.signalfd(-1, signals, _CLOSE_ON_EXEC))
    if descriptor < 0:
        problem = ctypes.get_errno()
        raise OSError(problem, os.strerror(problem))
    return descriptor
