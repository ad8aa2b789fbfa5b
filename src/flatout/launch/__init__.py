"""Start, watch and stop a job's processes: transparently (`local`), or detached and with a limit (`limited`).

`launcher` is the interface for starting a tuning's runs, either here or as Slurm jobs (`slurm`).
"""

from __future__ import annotations

from flatout.launch.guard import end_marked, with_environment
from flatout.launch.launcher import Launcher, LocalLauncher
from flatout.launch.limited import run_limited
from flatout.launch.loaded import with_inside
from flatout.launch.local import ExitStatus, end_like, pause, run_local
from flatout.launch.slurm import SlurmLauncher
from flatout.launch.standard_input import StandardInput

__all__ = [
    "ExitStatus",
    "Launcher",
    "LocalLauncher",
    "SlurmLauncher",
    "StandardInput",
    "end_like",
    "end_marked",
    "pause",
    "run_limited",
    "run_local",
    "with_environment",
    "with_inside",
]
