"""A batch script for `sbatch`: what was tuned, around an `srun` of the user's command.

Partition, account and time limit are the site's, so they are left to the command line of `sbatch`.
"""

from __future__ import annotations

from flatout.change.launchers import calls
from flatout.emit.command import script_lines, tuned_command, unplaced
from flatout.emit.heading import commented
from flatout.emit.torchrun import exported
from flatout.records.tuning import Emitted, Tuning


def emit(tuning: Tuning) -> Emitted:
    words = tuned_command(tuning)
    if not calls(tuning.command, "srun"):
        added = () if tuning.needs_patches else tuning.changes.launch.get("srun", ())
        words = ("srun", *added, *words)
    # torchrun starts a host's ranks itself: one task a node. Under srun alone each rank is a task.
    directives = ["#SBATCH --job-name=flatout-tuned"]
    if calls(tuning.command, "torchrun"):
        directives.append("#SBATCH --ntasks-per-node=1")
    exports = "" if tuning.needs_patches else exported(tuning)
    notes = tuple(note for note in unplaced(tuning) if " is for srun" not in note or tuning.needs_patches)
    text = "\n".join(("#!/usr/bin/env bash", *directives, "")) + (
        f"{commented(tuning)}set -euo pipefail\n{exports}{script_lines(words)}\n"
    )
    return Emitted(path="tuned.sbatch", text=text, notes=notes)
