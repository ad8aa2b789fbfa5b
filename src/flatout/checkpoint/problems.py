"""The errors of checkpoints.

CheckpointError       a checkpoint cannot be saved or resumed from; one line, with a hint
├── DamagedError      the data read differ from the data written
└── LockedError       another job writes to the folder
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from flatout.errors import FlatoutError


class CheckpointError(FlatoutError):
    """A checkpoint cannot be saved, or this job cannot resume from it."""

    def __str__(self) -> str:
        text = super().__str__()
        return f"{text}; {self.hint}" if self.hint else text


class DamagedError(CheckpointError):
    """A file of a checkpoint is missing, torn or altered."""


class LockedError(CheckpointError):
    """The folder belongs to another job."""


@contextmanager
def as_damage(what: str) -> Iterator[None]:
    """Raise DamagedError for an error that only content which Flatout did not write can cause.

    A checksum shows data that were changed by accident. A file that was edited, or written by another program, can have
    a valid one, and anything in it.
    """
    try:
        yield
    except (CheckpointError, OSError):
        raise
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, StopIteration, TypeError, ValueError) as error:
        reason = f"{type(error).__name__}: {error}".partition("\n")[0][:200]
        raise DamagedError(f"{what} is not as Flatout writes it ({reason})") from error
