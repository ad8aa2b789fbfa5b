"""The exception tree and the exit codes.

    FlatoutError            exit 2
    ├── InputError          the given input cannot be used: a missing path, a file that is not a trace
    │   └── InvalidTrialError   a trial read what an earlier trial wrote, so that nothing can be concluded from it
    ├── NotTracedError      a job ran well, but ended before any of its steps was traced
    ├── UsageError          arguments that contradict each other
    └── OutputError         the output cannot be written: it already exists, the disk is full

The message states the rule and the values; `hint` is the line that says what to do next.
The command line prints both and exits with `exit_code`; a user never sees a traceback for bad input.
"""

from __future__ import annotations

MAX_MESSAGE = 1200  # characters: values of a file are quoted in messages, and a file can hold a text of any length


class FlatoutError(Exception):
    """Base class of all errors that a user can cause or fix."""

    exit_code = 2

    def __init__(self, message: str, *, hint: str = "") -> None:
        if len(message) > MAX_MESSAGE:
            message = f"{message[: MAX_MESSAGE // 2]} ... {message[-MAX_MESSAGE // 4 :]}"
        super().__init__(message)
        self.hint = hint


class InputError(FlatoutError):
    """The given input cannot be read."""


class InvalidTrialError(InputError):
    """A trial did other work than the trials before it, because it read what they wrote."""


class NotTracedError(FlatoutError):
    """A job that did not fail ended before any of its steps was traced."""


class UsageError(FlatoutError):
    """The arguments contradict each other or are out of range."""


class OutputError(FlatoutError):
    """The output cannot be written to its path."""
