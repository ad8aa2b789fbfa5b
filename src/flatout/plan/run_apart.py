"""Run the user's code in a separate process, which can end in any way.

In: a function that runs the code and returns a workload. Out: that workload, or an InputError of one line that names
the file: for an exception, `sys.exit`, `os._exit` or a signal. What the code prints goes to standard error, because
standard output holds the plan. This is not a sandbox: the code runs as the user, with everything that the user may do.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import NoReturn

import msgspec

from flatout.errors import FlatoutError, InputError
from flatout.records.plan import Workload

_HINT = "it must build the module without data, files or arguments, and return it"


class _Answer(msgspec.Struct):
    workload: Workload | None = None
    error: str = ""
    hint: str = ""


def run_apart(what: str, build: Callable[[], Workload]) -> Workload:
    """Return the workload that `build` returns. `what` names the code in errors, as `FILE.py:NAME`."""
    reading, writing = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if not child:
        os.close(reading)
        _answer(what, build, writing)
    os.close(writing)
    with os.fdopen(reading, "rb") as file:
        data = file.read()
    _, status = os.waitpid(child, 0)
    if not data:
        raise InputError(f"`{what}` ends the process: {_ending(status)}", hint=_HINT)
    answer = msgspec.msgpack.decode(data, type=_Answer)
    if answer.workload is None:
        raise InputError(answer.error, hint=answer.hint)
    return answer.workload


def _answer(what: str, build: Callable[[], Workload], writing: int) -> NoReturn:
    """Run the code in the child process, write the answer, and end without the handlers that the code registered."""
    os.dup2(2, 1)
    sys.stdout = sys.stderr
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
        os._exit(0)


def _said(message: object) -> str:
    """Return a message on one line."""
    if message is None:
        return "code 0"
    if isinstance(message, int):
        return f"code {message}"
    return " ".join(str(message).encode("utf-8", "backslashreplace").decode().split())


def _ending(status: int) -> str:
    if os.WIFSIGNALED(status):
        return signal.Signals(os.WTERMSIG(status)).name
    return f"code {os.WEXITSTATUS(status)}"
