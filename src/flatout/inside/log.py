"""Log errors of `inside/`, secrets masked, to `inside-<host>.log` in the recording; they are never shown or raised.

`guarded` wraps the functions that torch calls. After `MAX_ERRORS` errors a process gives up: `is_silenced` becomes
true, and each guarded function returns None at once.
"""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import ParamSpec, TypeVar

from flatout.inside.protocol import File

MAX_ERRORS = 3

_P = ParamSpec("_P")
_R = TypeVar("_R")


class Log:
    """The log of this process; errors are counted even if they cannot be written."""

    def __init__(self) -> None:
        self.folder: Path | None = None
        self.num_errors = 0
        self.is_silenced = False
        self.on_silence: Callable[[], None] | None = None

    def write(self, text: str) -> None:
        """Append a line with the time and the process; do nothing if the log cannot be written."""
        if self.folder is None:
            return
        from flatout.secrets import masked_text, open_private  # after an error only: the job starts without it

        line = f"{time.strftime('%Y-%m-%dT%H:%M:%S')} pid {os.getpid()}: {masked_text(text).rstrip()}\n"
        try:
            with open_private(self.folder / File.LOG.of(os.uname().nodename), "a", encoding="utf-8") as file:
                file.write(line)
        except OSError:
            pass

    def error(self, where: str) -> None:
        """Log the exception that is being handled."""
        self.num_errors += 1
        self.write(f"error in {where}\n{traceback.format_exc()}")
        if self.num_errors >= MAX_ERRORS and not self.is_silenced:
            self.is_silenced = True
            self.write("too many errors: nothing more is recorded in this process")
            if self.on_silence is not None:
                self.on_silence()


LOG = Log()


def guarded(function: Callable[_P, _R]) -> Callable[_P, _R | None]:
    """Wrap `function` so that its errors are logged and it then returns None. KeyboardInterrupt and SystemExit pass."""

    @wraps(function)
    def safe(*args: _P.args, **kwargs: _P.kwargs) -> _R | None:
        if LOG.is_silenced:
            return None
        try:
            return function(*args, **kwargs)
        except Exception:  # noqa: BLE001 - an error of ours is never the job's
            LOG.error(function.__qualname__)
            return None

    return safe
