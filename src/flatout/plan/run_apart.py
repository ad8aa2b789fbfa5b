"""Run the user's model file in a fresh Python process, which can end in any way.

In: the file and the name in it. Out: the workload that the process reads from the module, or an InputError of one line
that names the file: for an exception, `sys.exit`, `os._exit` or a signal. What the code prints goes to standard error,
because standard output holds the plan. A fresh process is started, not a fork: the caller may have threads whose locks
and memory a fork would copy in the middle of their work. This is not a sandbox: the code runs as the user, with
everything that the user may do.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import msgspec

from flatout.errors import FlatoutError, InputError
from flatout.records.plan import Workload

_HINT = "it must build the module without data, files or arguments, and return it"
_READER = "flatout.plan.read_module"
_STANDARD_ERROR = 2


class _Answer(msgspec.Struct):
    workload: Workload | None = None
    error: str = ""
    hint: str = ""


def run_apart(path: Path, name: str) -> Workload:
    """Return the workload of the module that `name` in the file is or returns."""
    reading, writing = os.pipe()
    sys.stderr.flush()
    # -P: no module in the current folder stands in for one that Flatout or torch imports.
    command = [sys.executable, "-P", "-m", _READER, str(path), name, str(writing)]
    with os.fdopen(reading, "rb") as answers:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=_STANDARD_ERROR, pass_fds=[writing])
        os.close(writing)
        with process:
            data = answers.read()
    if not data:
        raise InputError(f"`{path}:{name}` ends the process: {_ending(process.returncode)}", hint=_HINT)
    answer = msgspec.msgpack.decode(data, type=_Answer)
    if answer.workload is None:
        raise InputError(answer.error, hint=answer.hint)
    return answer.workload


def answer_and_exit(what: str, build: Callable[[], Workload], writing: int) -> NoReturn:
    """Call `build`, write what it returns or raises to a file descriptor, and end the process without exit handlers.

    `what` names the code in errors, as `FILE.py:NAME`.
    """
    try:
        answer = _Answer(workload=build())
    except FlatoutError as error:
        answer = _Answer(error=str(error), hint=error.hint)
    except SystemExit as stop:
        answer = _Answer(error=f"`{what}` exits, with {_said(stop.code)}", hint=_HINT)
    except KeyboardInterrupt:
        os._exit(128 + signal.SIGINT)
    except BaseException as error:  # noqa: BLE001 - the code may raise anything
        kind = type(error).__name__
        answer = _Answer(error=f"`{what}` fails on the meta device: {kind}: {_said(error)}", hint=_HINT)
    try:
        with os.fdopen(writing, "wb") as file:
            file.write(msgspec.msgpack.encode(answer))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def _said(message: object) -> str:
    """Return a message on one line."""
    if message is None:
        return "code 0"
    if isinstance(message, int):
        return f"code {message}"
    return " ".join(str(message).encode("utf-8", "backslashreplace").decode().split())


def _ending(returncode: int) -> str:
    if returncode < 0:
        return signal.Signals(-returncode).name
    return f"code {returncode}"
