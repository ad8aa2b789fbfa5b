"""Makes of a process that begins one of a machine of its own: with its host name and its file of all hosts' names."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
from dataclasses import dataclass

_CLONE_NEWNS, _CLONE_NEWUTS = 0x00020000, 0x04000000
_MS_BIND, _MS_PRIVATE, _MS_REC = 0x1000, 1 << 18, 0x4000
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class OnNode:
    """To be called in a new process, before its program, as root. It ends with the process that started it."""

    name: str
    hosts: str

    def __call__(self) -> None:
        _call(_libc.prctl, _PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
        _call(_libc.unshare, _CLONE_NEWNS | _CLONE_NEWUTS)
        socket.sethostname(self.name)
        _call(_libc.mount, b"none", b"/", None, _MS_REC | _MS_PRIVATE, None)  # else all others see the next one
        _call(_libc.mount, os.fsencode(self.hosts), b"/etc/hosts", None, _MS_BIND, None)


def _call(function: ctypes._NamedFuncPointer, *arguments: object) -> None:
    if function(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
