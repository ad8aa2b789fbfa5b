"""One setting that can be switched while the job trains.

`apply` and `undo` are called between two steps, at the same step on all ranks. `problem` says why the setting does not
fit this job; its arm then measures the baseline.
"""

from __future__ import annotations


class Switcher:
    """One setting that can be switched; subclasses say how."""

    def __init__(self) -> None:
        self.problem: str | None = None

    def prepare(self) -> None:
        """Install hooks that must exist before the script makes its model and loaders."""

    def apply(self) -> None:
        raise NotImplementedError

    def undo(self) -> None:
        raise NotImplementedError

    def step_ended(self) -> None:
        """Do what the setting requires after each step while it is on."""

    def block_ended(self) -> None:
        """Set `problem` if the setting turned out not to fit during a block with it."""
