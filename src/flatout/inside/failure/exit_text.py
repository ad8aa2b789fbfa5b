"""Catch the text of `sys.exit("no data")` or `raise SystemExit("no data")`, for which the exit code is just 1.

In: what is written to `sys.stderr`, which is passed on unchanged. Out: `text`. No Python hook sees this exception. If
nothing catches it, the interpreter writes the text and then a newline to `sys.stderr`. The interpreter is the only
writer there without a Python frame below it (`handle_system_exit` in CPython's pythonrun.c); only
`atexit.register(print, text, file=sys.stderr)` looks the same. `text` stays None if the script has replaced
`sys.stderr` or its `write`. This module must be as light as `pre_torch_hooks`, which loads it before the script.
"""

from __future__ import annotations

import sys
from _thread import get_ident

TYPE_CHECKING = False  # see `pre_torch_hooks`
if TYPE_CHECKING:
    from typing import Any


class ExitText:
    """Catches the exit text: call `watch` at the start of the process; `text` is the text that it ended with."""

    def __init__(self) -> None:
        self.text: str | None = None
        self._last: str | None = None  # the text at the start of the line, if nothing else was written to the line
        self._is_at_line_start = True
        self.tail: Any = None  # a StderrTail, which gets all that is written

    def watch(self) -> None:
        """Watch what this thread writes to `sys.stderr`."""
        stream: Any = sys.stderr
        if stream is None:  # Python was started without stderr
            return
        own, thread = stream.write, get_ident()

        def write(text: str, /, *, frame: Any = sys._getframe, ident: Any = get_ident) -> Any:
            try:
                frame(1)
            except ValueError:  # no Python frame is below
                if ident() == thread:
                    self._look(text)
            if self.tail is not None:
                self._keep(text)
            return own(text)

        stream.write = write

    def _keep(self, text: str) -> None:
        try:
            self.tail.add(text)
        except Exception:  # noqa: BLE001 - never the job's problem
            self.tail = None

    def _look(self, text: str) -> None:
        """Recognize the exit text; the interpreter writes other lines, e.g. syntax warnings, in more pieces."""
        if self.text is not None:
            return
        if text == "\n" and self._last:
            self.text = self._last
            return
        self._last = text if self._is_at_line_start else None
        self._is_at_line_start = text.endswith("\n")


EXIT_TEXT = ExitText()
