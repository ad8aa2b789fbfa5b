"""The exception tree and the exit codes.

    FlatoutError            exit 2
    ├── InputError          what the user gave cannot be used: a missing path, a file that is no trace
    ├── UsageError          arguments that contradict each other
    └── OutputError         what should be written cannot be: it exists already, the disk is full

A message states the rule, the values and the way out; `hint` is the line that says what to do next.
The command line prints both and exits with `exit_code`; a user never sees a traceback for bad input.
"""

from __future__ import annotations


class FlatoutError(Exception):
    """Base of all errors that a user can cause or mend."""

    exit_code = 2

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class InputError(FlatoutError):
    """What the user gave to read cannot be read."""


class UsageError(FlatoutError):
    """The arguments contradict each other or are out of range."""


class OutputError(FlatoutError):
    """What should be written cannot be written there."""
