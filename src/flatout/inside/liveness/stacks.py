"""Write the Python stacks of all threads on a signal, even if the process is stuck in a call, and when it crashes.

In: SIGRTMIN + 8. Out: the stacks, appended to `stacks-<host>-<pid>` in the folder of FLATOUT_HEARTBEAT. The handler is
`faulthandler`'s, written in C: it does not need the GIL and runs even if the main thread is in a call that does not
return. If a script sets another handler for this signal, ours is removed; `is_ours` detects this.
"""

from __future__ import annotations

import faulthandler
import os
import signal
from pathlib import Path

from flatout.inside.protocol import STACKS_SIGNAL_OFFSET, File, process_name

NUMBER = signal.SIGRTMIN + STACKS_SIGNAL_OFFSET

_FILES: list[object] = []  # kept open because faulthandler keeps only the file descriptor
_CRASH_FILES: list[object] = []


def give_stacks(folder: Path) -> bool:
    """Install the handler; return False if the signal already has a handler."""
    if signal.getsignal(NUMBER) is not signal.SIG_DFL:
        return False
    file = (folder / File.STACKS.of(process_name(os.uname().nodename, os.getpid()))).open("ab", buffering=0)
    _FILES[:] = [file]
    faulthandler.register(NUMBER, file=file, all_threads=True, chain=False)
    return True


def write_crashes(folder: Path) -> None:
    """Let faulthandler write the stacks to a file if a signal such as SIGSEGV or SIGABRT ends this process.

    If a script has enabled faulthandler itself, its own output stays; if it does so later, it replaces ours.
    """
    if faulthandler.is_enabled() and not _CRASH_FILES:
        return
    file = (folder / File.CRASH.of(process_name(os.uname().nodename, os.getpid()))).open("ab", buffering=0)
    _CRASH_FILES[:] = [file]  # a forked child leaves its parent's
    faulthandler.enable(file=file, all_threads=True)


def is_ours() -> bool:
    """Whether the handler is still ours; `signal` does not know about handlers set by faulthandler."""
    return signal.getsignal(NUMBER) is signal.SIG_DFL
