"""The text that a script ends with, by `sys.exit("no data")` or `raise SystemExit("no data")`: code 1 tells none of it.

No hook of Python's sees that exception: where nothing catches it, the interpreter writes the text to `sys.stderr` and a
new line after it, and is the only one to write there with no Python frame below (`handle_system_exit` in CPython's
pythonrun.c); `atexit.register(print, text, file=sys.stderr)` is all that looks the same. So in: what is written to
`sys.stderr`, which is passed on as it is. Out: `text`. It stays None where the script has put something else in the
place of `sys.stderr` or of its `write`. As light as `pre_torch_hooks`, which loads it before the script.
"""

from __future__ import annotations

import sys
from _thread import get_ident

TYPE_CHECKING = False  # see `pre_torch_hooks`
if TYPE_CHECKING:
    from typing import Any


class ExitText:
    def __init__(self) -> None:
        self.text: str | None = None
        self._last: str | None = None  # what stands at the beginning of a line, and may be all that is on it
        self._is_at_line_start = True

    def watch(self) -> None:
        """From now on, in this thread."""
        stream: Any = sys.stderr
        if stream is None:  # Python was started without one
            return
        own, thread = stream.write, get_ident()

        def write(text: str, /, *, frame: Any = sys._getframe, ident: Any = get_ident) -> Any:
            try:
                frame(1)
            except ValueError:  # nothing of Python calls
                if ident() == thread:
                    self._look(text)
            return own(text)

        stream.write = write

    def _look(self, text: str) -> None:
        """What else the interpreter itself writes, warnings of the script's syntax say, comes in more pieces a line."""
        if self.text is not None:
            return
        if text == "\n" and self._last:
            self.text = self._last
            return
        self._last = text if self._is_at_line_start else None
        self._is_at_line_start = text.endswith("\n")


EXIT_TEXT = ExitText()
