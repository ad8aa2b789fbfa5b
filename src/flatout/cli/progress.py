"""A line of progress on standard error for what takes longer than two seconds, on a terminal only."""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType
from typing import Self

QUIET_S = 2.0


class Progress:
    """`with Progress("reading traces") as progress: progress.show(3, 8)`."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._began = time.monotonic()
        self._shown = False

    def __enter__(self) -> Self:
        return self

    def show(self, done: int, total: int) -> None:
        elapsed = time.monotonic() - self._began
        if sys.stderr.isatty() and elapsed >= QUIET_S:
            left = elapsed / done * (total - done)
            sys.stderr.write(f"\r{self._what}: {done:,} of {total:,}, about {left:.0f} s left ")
            sys.stderr.flush()
            self._shown = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._shown:
            sys.stderr.write("\r\033[K")


class Waiting(Progress):
    """`with Waiting("capturing"):` where no parts can be counted: that, and nothing else, after two seconds."""

    def __enter__(self) -> Self:
        self._timer = threading.Timer(QUIET_S, self._say)
        self._timer.daemon = True
        self._timer.start()
        return self

    def _say(self) -> None:
        if sys.stderr.isatty():
            self._shown = True
            sys.stderr.write(f"\r{self._what} ... ")
            sys.stderr.flush()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        self._timer.join()
        super().__exit__(kind, error, trace)
