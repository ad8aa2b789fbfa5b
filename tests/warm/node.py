"""Makes of a process that begins one of another machine, in namespaces of their own or in those of another process."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
from dataclasses import astuple, dataclass

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


@dataclass(frozen=True)
class InNamespaces:
    """To be called in a new process, before its program: joins the namespaces of the process `holder`, as `nsenter`.

    Without root it joins the holder's user namespace, too, and is root there.
    """

    holder: int

    def __call__(self) -> None:
        folder = os.getcwd()
        kinds = ["net", "uts", "mnt"] if os.geteuid() == 0 else ["user", "net", "uts", "mnt"]
        for kind in kinds:
            file = os.open(f"/proc/{self.holder}/ns/{kind}", os.O_RDONLY)
            _call(_libc.setns, file, 0)
            os.close(file)
        os.chdir(folder)  # it is the root of the file system now


Place = OnNode | InNamespaces


def described(place: Place) -> list[str | int]:
    """Return what `place_of` makes the place from, in another process."""
    return [type(place).__name__, *astuple(place)]


def place_of(description: list[str | int]) -> Place:
    name, *values = description
    kind: type[Place] = OnNode if name == OnNode.__name__ else InNamespaces
    return kind(*values)  # type: ignore[arg-type]


def _call(function: ctypes._NamedFuncPointer, *arguments: object) -> None:
    if function(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
