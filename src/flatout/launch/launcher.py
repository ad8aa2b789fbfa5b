"""Where the runs of a tuning are started: one interface, and this machine behind it; `slurm` is the other.

A launcher runs a command to its end or to its limit, with its output in a file, and leaves nothing of it running,
also where it is interrupted itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from flatout.launch.limited import run_limited
from flatout.launch.local import Ended


class Launcher(Protocol):
    @property
    def waited_s(self) -> float:
        """Seconds that commands have waited for machines so far: no limit or budget counts them."""

    def run(self, command: Sequence[str], environment: Mapping[str, str], *, output: Path, limit_s: float) -> Ended:
        """Raises InputError where the command cannot be started. `limit_s` counts from when it has its machines."""


class LocalLauncher:
    """On this machine; within a Slurm allocation, `srun` in the command takes it to the others."""

    waited_s = 0.0

    def run(self, command: Sequence[str], environment: Mapping[str, str], *, output: Path, limit_s: float) -> Ended:
        return run_limited(command, environment, output=output, limit_s=limit_s)
