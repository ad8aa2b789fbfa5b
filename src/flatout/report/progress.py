"""Show a line on standard error for work that takes longer than two seconds, on a terminal only.

`ProgressLine` counts parts and estimates the remaining time; `WaitingLine` is for work without parts to count, and
`StatusLine` for work that says itself how far it is.
"""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType
from typing import Self

from flatout.report.streams import draw_line

QUIET_S = 2.0


class ProgressLine:
    """`with ProgressLine("reading traces") as progress: progress.show(3, 8)`."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._began_s = time.monotonic()
        self._is_shown = False

    def __enter__(self) -> Self:
        return self

    def show(self, done: int, total: int) -> None:
        """Show that `done` parts of `total` are done; nothing in the first two seconds. 0: the work begins now."""
        if not done:
            self._began_s = time.monotonic()
            return
        elapsed_s = time.monotonic() - self._began_s
        if sys.stderr.isatty() and elapsed_s >= QUIET_S:
            left_s = elapsed_s / done * (total - done)
            self._write(f"{self._label}: {done:,} of {total:,}, about {left_s:.0f} s left ")

    def _write(self, text: str) -> None:
        draw_line(text)
        self._is_shown = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_shown:
            draw_line("")


class WaitingLine(ProgressLine):
    """`with WaitingLine("capturing 9 hosts"):` shows that label after two seconds, and nothing else."""

    def __enter__(self) -> Self:
        self._timer = threading.Timer(QUIET_S, self._show_label)
        self._timer.daemon = True
        self._timer.start()
        return self

    def _show_label(self) -> None:
        if sys.stderr.isatty():
            self._write(f"{self._label} ... ")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        self._timer.join()
        super().__exit__(kind, error, trace)


class StatusLine(ProgressLine):
    """`with StatusLine() as line: line.say("waiting for step 120")`: shows the last text, but none for two seconds."""

    def __init__(self) -> None:
        super().__init__("")

    def say(self, text: str) -> None:
        if sys.stderr.isatty() and time.monotonic() - self._began_s >= QUIET_S:
            self._write(f"{text} ")
