"""The errors of checkpoints.

CheckpointError       a checkpoint cannot be saved or resumed from; one line, with a hint ├── DamagedError      the data
read differ from the data written └── LockedError       another job writes to the folder
"""

from __future__ import annotations

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
