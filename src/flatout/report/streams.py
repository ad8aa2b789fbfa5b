r"""The one place where text leaves to a terminal: control and bidirectional characters never pass it.

In: whatever Flatout prints on standard output and standard error: reports, errors, hints, notes, help. Out: the same,
in which a character that could move the cursor, change a setting or reorder the line stands as its escape (`\x1b`,
`\u202e`). Only the bold and dim text of Flatout's own reports is let through, the line of `ProgressLine`, and the bar
of `flatout bench`. The output of the user's job never comes here: the job writes to the terminal itself, untouched.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from flatout.errors import UNSAFE, escaped

_PLAIN = re.compile(f"(?P<unsafe>[{UNSAFE}])")
_STYLED = re.compile(f"\x1b\\[[012]m|(?P<unsafe>[{UNSAFE}])")  # the sequences of `TextStyle`
MAX_LINE_CHARACTERS = 2000
_END_CHARACTERS = 400
_LINE = re.compile(f"(?P<unsafe>[\n\t{UNSAFE}])")
_JSON = re.compile(f"[{UNSAFE}]")


class CleanStream:
    """A stream that escapes what a terminal would act on, and passes everything else on."""

    def __init__(self, stream: TextIO, *, is_styled: bool = False) -> None:
        self._stream = stream
        self._pattern = _STYLED if is_styled else _PLAIN

    def write(self, text: str) -> int:
        clean = self._pattern.sub(_escaped, text)
        try:
            self._stream.write(clean)
        except UnicodeEncodeError:  # the terminal's encoding has no such character
            encoding = self._stream.encoding or "ascii"
            self._stream.write(clean.encode(encoding, "backslashreplace").decode(encoding))
        return len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def draw(self, text: str) -> None:
        """Replace the current line of the terminal with `text`; remove it if that is empty."""
        self._stream.write("\r\033[K" + self._pattern.sub(_escaped, text))
        self._stream.flush()

    def draw_screen(self, lines: list[str]) -> None:
        """Replace the whole screen with `lines`, without flicker: each line is overwritten, and the rest is cleared."""
        drawn = "".join(self._pattern.sub(_escaped, line) + "\033[K\r\n" for line in lines)
        self._stream.write("\033[H" + drawn.removesuffix("\r\n") + "\033[J")
        self._stream.flush()

    def switch_screen(self, *, is_alternate: bool) -> None:
        """Switch to the terminal's second screen without a cursor, or back to the first with one."""
        self._stream.write("\033[?1049h\033[?25l" if is_alternate else "\033[?25h\033[?1049l")
        self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def clean_streams() -> Iterator[None]:
    """Let all that is printed within the block pass through `CleanStream`."""
    before = sys.stdout, sys.stderr
    is_terminal = sys.stdout.isatty()
    sys.stdout = CleanStream(sys.stdout, is_styled=is_terminal)
    sys.stderr = CleanStream(sys.stderr)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def draw_line(text: str) -> None:
    """Replace the current line of standard error with `text`, for a line of progress that is drawn again and again."""
    stream = sys.stderr if isinstance(sys.stderr, CleanStream) else CleanStream(sys.stderr)
    stream.draw(text)


def bar_stream() -> TextIO:
    """Return standard error itself, for a progress bar that moves the cursor; what it writes must be Flatout's own."""
    return sys.stderr._stream if isinstance(sys.stderr, CleanStream) else sys.stderr


def standard_output() -> CleanStream:
    """Return standard output as a stream that can draw a screen."""
    return sys.stdout if isinstance(sys.stdout, CleanStream) else CleanStream(sys.stdout)


def one_line(text: str) -> str:
    r"""Return the text of an error on one line; a newline in a name stands as `\n`.

    The middle of a very long text is omitted: a value that the user gave can be of any length.
    """
    line = _LINE.sub(_escaped, text.strip("\n"))
    num_hidden = len(line) - MAX_LINE_CHARACTERS
    if num_hidden <= 0:
        return line
    begin, end = line[: MAX_LINE_CHARACTERS - _END_CHARACTERS], line[-_END_CHARACTERS:]
    return f"{begin} ... {num_hidden:,} more characters ... {end}"


def safe_json(text: str) -> str:
    r"""Return JSON of the same meaning without characters that a terminal would act on: they are written `\uXXXX`."""
    return _JSON.sub(_json_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    unsafe = match["unsafe"]
    return match[0] if unsafe is None else escaped(unsafe)


def _json_escaped(match: re.Match[str]) -> str:
    data = match[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{data[index]:02x}{data[index + 1]:02x}" for index in range(0, len(data), 2))
