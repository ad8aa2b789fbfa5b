"""Start the runs of a tuning: the interface, and its implementation on this machine.

`slurm` has the other implementation. A launcher runs a command until it ends or reaches its limit, writes its output to
a file, and does not leave any of its processes running, even if the launcher itself is interrupted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from flatout.launch.limited import run_limited
from flatout.launch.local import ExitStatus
from flatout.launch.standard_input import StandardInput


class Launcher(Protocol):
    @property
    def waited_s(self) -> float:
        """Return the seconds that commands have waited for machines so far; these count toward no limit or budget."""

    def run(
        self, command: Sequence[str], environment: Mapping[str, str], *, output: Path, limit_s: float
    ) -> ExitStatus:
        """Run a command. `limit_s` starts when the command has machines. Raise InputError if it can't be started."""


class LocalLauncher:
    """Runs commands on this machine; within a Slurm allocation, `srun` in the command reaches the others."""

    waited_s = 0.0

    def __init__(self, standard_input: StandardInput | None = None, folder: Path | None = None) -> None:
        """Give each run this standard input from its beginning; None: an empty one. Start it in `folder`."""
        self._standard_input = standard_input
        self._folder = folder  # None: our working folder

    def run(
        self, command: Sequence[str], environment: Mapping[str, str], *, output: Path, limit_s: float
    ) -> ExitStatus:
        if self._standard_input is None:
            return run_limited(command, environment, output=output, limit_s=limit_s, folder=self._folder)
        with self._standard_input.for_run() as descriptor:
            return run_limited(
                command, environment, output=output, limit_s=limit_s, stdin=descriptor, folder=self._folder
            )
