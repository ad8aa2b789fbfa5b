"""The exception tree and the exit codes.

    FlatoutError            exit 2
    ├── InputError          the given input cannot be used: a missing path, a file that is not a trace
    │   └── InvalidTrialError   a trial read what an earlier trial wrote, so that nothing can be concluded from it
    ├── NotTracedError      a job ran well, but ended before any of its steps was traced
    │   └── TracedTooLateError  it was ended before that, because it took too long
    ├── UsageError          arguments that contradict each other
    └── OutputError         the output cannot be written: it already exists, the disk is full

The message states the rule and the values; `hint` is the line that says what to do next.
The command line prints both and exits with `exit_code`; a user never sees a traceback for bad input.
"""

from __future__ import annotations

import re

# C0 and C1 controls except newline and tab; soft hyphen, zero-width and bidirectional marks, separators of lines and
# paragraphs, interlinear annotations, tags, private use, and halves of surrogates.
UNSAFE = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u180e\u200b-\u200f\u2028-\u202e"
    "\u2060-\u206f\ud800-\uf8ff\ufeff\ufff9-\ufffb\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3"
    "\U0001d173-\U0001d17a\U000e0001\U000e0020-\U000e007f\U000f0000-\U0010ffff"
)
_PATTERN = re.compile(f"[{UNSAFE}]")
MAX_MESSAGE = 1200  # characters: values of a file are quoted in messages, and a file can hold a text of any length


def escaped(character: str) -> str:
    r"""Return a character as its escape, such as `\x1b`."""
    return character.encode("unicode_escape", "backslashreplace").decode("ascii")


def printable(text: str) -> str:
    r"""Return a text in which each character that a terminal would act on stands as its escape."""
    return _PATTERN.sub(lambda match: escaped(match[0]), text)


class FlatoutError(Exception):
    """Base class of all errors that a user can cause or fix.

    Names in a message can be of any file. Python itself prints the error of a function of `flatout.api`, so its text
    has no character that a terminal would act on.
    """

    exit_code = 2

    def __init__(self, message: str, *, hint: str = "") -> None:
        if len(message) > MAX_MESSAGE:
            message = f"{message[: MAX_MESSAGE // 2]} ... {message[-MAX_MESSAGE // 4 :]}"
        super().__init__(printable(message))
        self.hint = printable(hint)


class InputError(FlatoutError):
    """The given input cannot be read."""


class InvalidTrialError(InputError):
    """A trial did other work than the trials before it, because it read what they wrote."""


class NotTracedError(FlatoutError):
    """A job that did not fail ended before any of its steps was traced."""


class TracedTooLateError(NotTracedError):
    """A job took so long until its traced steps that it was ended."""


class UsageError(FlatoutError):
    """The arguments contradict each other or are out of range."""


class OutputError(FlatoutError):
    """The output cannot be written to its path."""
