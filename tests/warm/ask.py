"""The asking side of warm starts: a stand-in for `_posixsubprocess.fork_exec`, which `subprocess` starts programs with.

A command that is a script, a module or a piece of code for this very Python is not executed but forked from a server
(see `serve.py`) that has imported torch already, which takes seconds. What is forked is a child of the process that
asked, with its own number, parent, session, group, files, environment, folder, limits and signals as `exec` would have
left them. A trial's command that Flatout starts in an overlay of folders is forked, too, and enters the overlay first.
Every other command, and one with options or variables that only a fresh Python obeys, is executed as ever.
"""

from __future__ import annotations

import _posixsubprocess
import array
import ctypes
import json
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.warm.node import InNamespaces, OnNode, described

_PR_SET_CHILD_SUBREAPER = 36
_MAX_FILES = 200
_OVERLAY = ("flatout", "inside", "overlay", "enter.py")
_NUM_WORDS_BEFORE_OVERLAY = 3  # Python and its options -I and -S
_OPTIONS_OF_A_WARM_START = {"-B", "-P", "-u"}  # `become` does what they ask for
# Read by Python, by the C library or by torch's libraries while they start, so a process that has started is too late.
_AT_START = re.compile(
    r"PYTHON(?!PATH$|UNBUFFERED$|DONTWRITEBYTECODE$|WARNINGS$)|LD_|MALLOC_|GLIBC_|KMP_|GOMP_"
    r"|(OMP|MKL)_(?!NUM_THREADS$)|PYTORCH_|TORCH_LOGS|TORCHDYNAMO_|TORCHINDUCTOR_"
)
_LIMITS = [number for name, number in vars(resource).items() if name.startswith("RLIMIT_")]

_fork_exec = _posixsubprocess.fork_exec
_prctl = ctypes.CDLL(None, use_errno=True).prctl


class Server:
    """The connection to a server that is a child of this process."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._session = os.getsid(0)
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        self._lock = threading.Lock()
        self._pid = os.getpid()

    def start(self, command: dict[str, Any], files: dict[int, int], *, is_mask_of_birth: bool) -> int | None:
        """The number of the new child, or None where it has to be started otherwise."""
        if os.getpid() != self._pid or os.getsid(0) != self._session:
            return None
        mask = self._mask if is_mask_of_birth else signal.pthread_sigmask(signal.SIG_BLOCK, ())
        asked = {
            **command,
            "parent": os.getpid(),
            "group": os.getpgid(0),
            "files": list(files),
            "mask": [int(number) for number in mask],
            "ignored": [int(number) for number in signal.valid_signals() if _is_ignored(number)],
            "affinity": list(os.sched_getaffinity(0)),
            "limits": [[number, *resource.getrlimit(number)] for number in _LIMITS],
        }
        data = json.dumps(asked).encode("utf-8", "surrogateescape")
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files.values()))]
        with self._lock:
            _prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # the child's first parent is gone when the server answers
            try:
                self._connection.sendmsg([len(data).to_bytes(4, "big")], rights if files else [])
                self._connection.sendall(data)
                answer = self._connection.recv(4, socket.MSG_WAITALL)
            finally:
                _prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        return int.from_bytes(answer, "big") or None


class WarmStarts:
    """Puts itself in the place of `fork_exec`."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def put_in(self) -> None:
        subprocess._fork_exec = _posixsubprocess.fork_exec = self  # type: ignore[attr-defined]

    def take_out(self) -> None:
        subprocess._fork_exec = _posixsubprocess.fork_exec = _fork_exec  # type: ignore[attr-defined]

    def start_beside(
        self, neighbour: int, words: list[str], *, folder: str, variables: dict[str, str], files: dict[int, int]
    ) -> int:
        """Start a command for this Python in the namespaces of another process, in a session of its own."""
        command = {
            "words": words,
            "folder": folder,
            "variables": variables,
            "session": True,
            "process_group": -1,
            "node": described(InNamespaces(neighbour)) if os.geteuid() == 0 else None,  # others cannot make any
            "overlay": [],
            "umask": _umask(),
        }
        pid = self._server.start(command, files, is_mask_of_birth=True)
        if pid is None:
            raise RuntimeError("the server of warm starts can be asked by the process alone that started it")
        return pid

    def __call__(self, *given: Any) -> int:
        asked = _asked(*given)
        pid = None
        if asked is not None:
            command, files, is_mask_of_birth = asked
            pid = self._server.start(command, files, is_mask_of_birth=is_mask_of_birth)
        return _fork_exec(*given) if pid is None else pid


def _asked(
    args: list[Any],
    executables: list[bytes],
    close_fds: bool,
    kept: tuple[int, ...],
    cwd: Any,
    env: list[bytes] | None,
    stdin: int,
    _stdin_write: int,
    _stdout_read: int,
    stdout: int,
    _stderr_read: int,
    stderr: int,
    _error_read: int,
    error_write: int,
    _restore_signals: bool,
    start_new_session: bool,
    process_group: int,
    gid: int | None,
    gids: Any,
    uid: int | None,
    umask: int,
    preexec: Callable[[], object] | None,
    _allow_vfork: bool,
) -> tuple[dict[str, Any], dict[int, int], bool] | None:
    """What to ask the server for: the command, the files, and whether signals are blocked as they were at our birth.

    None where the command is to be executed.
    """
    words = [os.fsdecode(word) for word in args]
    variables = dict(os.environ) if env is None else dict(os.fsdecode(each).split("=", 1) for each in env)
    folder = os.path.join(os.getcwd(), os.fsdecode(cwd)) if cwd is not None else os.getcwd()
    is_mask_of_birth = preexec is not None and _only_restores_signals(preexec)
    node = described(preexec) if isinstance(preexec, (OnNode, InNamespaces)) else None
    is_understood = preexec is None or is_mask_of_birth or node is not None
    if (gid, gids, uid) != (None, None, None) or not is_understood:
        return None
    overlay = _overlay_words(words)
    if overlay:
        words = words[len(overlay) + _NUM_WORDS_BEFORE_OVERLAY :]
        executables = [os.fsencode(shutil.which(words[0], path=variables.get("PATH")) or "")]
    words = _python_words(words, executables, folder)
    if not words or _needs_fresh_python(variables):
        return None
    files = {0: stdin, 1: stdout, 2: stderr}
    files = {number: number if file == -1 else file for number, file in files.items()}
    others = kept if close_fds else _inheritable()
    files |= {number: number for number in others if number != error_write and number > 2}
    files = {number: file for number, file in files.items() if _is_open(file)}
    if len(files) > _MAX_FILES:
        return None
    command = {
        "words": words,
        "folder": folder,
        "variables": variables,
        "session": bool(start_new_session),
        "process_group": process_group,
        "node": node,
        "overlay": overlay,
        "umask": umask if umask >= 0 else _umask(),
    }
    return command, files, is_mask_of_birth


def _overlay_words(words: list[str]) -> list[str]:
    """Return the program that overlays folders for a command, with its arguments; empty where no command follows it."""
    begin, program = words[1:_NUM_WORDS_BEFORE_OVERLAY], words[_NUM_WORDS_BEFORE_OVERLAY:]
    if begin != ["-I", "-S"] or len(program) < 4 or program[2] != "--":
        return []
    return program[:3] if Path(program[0]).parts[-4:] == _OVERLAY else []


def _needs_fresh_python(variables: dict[str, str]) -> bool:
    if variables.get("PYTHONWARNINGS"):
        return True
    return any(_AT_START.match(name) and os.environ.get(name) != value for name, value in variables.items())


def _python_words(words: list[str], executables: list[bytes], folder: str) -> list[str]:
    """The command as words for a Python, which begins with its options; empty where it is not for this Python."""
    program = next((path for path in map(os.fsdecode, executables) if os.path.exists(os.path.join(folder, path))), "")
    is_python = os.path.basename(program).startswith("python")
    if is_python and not _is_this_pythons(program):
        return []
    if not is_python:
        begin = _what_it_starts(os.path.join(folder, program)) if program else []
        if not begin:
            return []
        words = [*begin, *words[1:]]
    rest = words[1:]
    while rest and rest[0] in _OPTIONS_OF_A_WARM_START:
        rest = rest[1:]
    if not rest:
        return []
    first = rest[0]
    if first == "-c":
        is_worth_it = len(rest) > 1 and re.search("torch|flatout|subprocess|multiprocessing.spawn", rest[1])
    elif first == "-m":
        is_worth_it = len(rest) > 1
    else:
        is_worth_it = not first.startswith("-") and os.path.isfile(os.path.join(folder, first))
    return words if is_worth_it else []


def _what_it_starts(program: str) -> list[str]:
    """The words of a program that is a script of this Python, or one of `sh` that calls a module of this Python."""
    if not os.path.isfile(program) or not os.access(program, os.R_OK | os.X_OK):
        return []
    with open(program, "rb") as file:
        start = file.read(500)
    interpreter = os.fsdecode(start.partition(b"\n")[0].strip()).removeprefix("#!")
    if os.path.basename(interpreter) == os.path.basename(sys.executable) and _is_this_pythons(interpreter):
        return [sys.executable, program]
    called = re.fullmatch(rb'#!/bin/sh\nexec (\S+) -m ([\w.]+) "\$@"\n', start)
    if called is not None and os.fsdecode(called[1]) == sys.executable:
        return [sys.executable, "-m", os.fsdecode(called[2])]
    return []


def _is_this_pythons(python: str) -> bool:
    """Whether it is in the same environment, which may be known by a link."""
    folder, ours = os.path.dirname(python), os.path.dirname(sys.executable)
    return folder == ours or os.path.realpath(folder) == os.path.realpath(ours)


def _only_restores_signals(preexec: Callable[[], object]) -> bool:
    """Whether it is the one of `flatout run`, which gives the job the mask and handlers that Flatout was born with."""
    code = getattr(preexec, "__code__", None)
    return code is not None and Path(code.co_filename).parts[-3:] == ("flatout", "launch", "local.py")


def _is_ignored(number: int) -> bool:
    if number in (signal.SIGPIPE, signal.SIGXFSZ):  # by every Python
        return False
    return signal.getsignal(number) is signal.SIG_IGN


def _inheritable() -> list[int]:
    numbers = []
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.get_inheritable(int(name)):
                numbers.append(int(name))
        except OSError:  # the listing's own
            continue
    return numbers


def _is_open(file: int) -> bool:
    try:
        os.fstat(file)
    except OSError:
        return False
    return True


def _umask() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.partition("Umask:")[2].split()[0], 8)
