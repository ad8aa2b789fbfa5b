"""A batch script for `sbatch`: what was tuned, around an `srun` of the user's command.

Partition, account and time limit are the site's, so they are left to the command line of `sbatch`. The agents of
torchrun on several nodes meet on the first one, whichever Slurm gives.
"""

from __future__ import annotations

import shlex

import msgspec

from flatout.change.launchers import calls
from flatout.emit.command import script_lines, tuned_command, unplaced
from flatout.emit.heading import commented
from flatout.emit.rendezvous import meets, num_nodes, with_rendezvous
from flatout.emit.torchrun import exported
from flatout.records.tuning import Emitted, Tuning

# Another job on the first node has another port.
_MEETING = """\
head_node=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
rdzv_port=$((20000 + SLURM_JOB_ID % 10000))
"""
_RENDEZVOUS = (
    "--rdzv-backend=c10d",
    "--rdzv-endpoint=$head_node:$rdzv_port",
    "--rdzv-id=$SLURM_JOB_ID",
)


# One `flatout run` for the job, around `srun`: it starts all nodes again together, so none may linger in a lost step.
_KEPT_SRUN = ("srun", "--kill-on-bad-exit=1")


def emit(tuning: Tuning) -> Emitted:
    if tuning.keep and not calls(tuning.command, "srun"):
        tuning = msgspec.structs.replace(tuning, command=(*_KEPT_SRUN, *tuning.command))
    words = tuned_command(tuning)
    if not calls(tuning.command, "srun"):
        added = () if tuning.needs_run else tuning.changes.launch.get("srun", ())
        words = ("srun", *added, *words)
    # torchrun starts a host's ranks itself: one task a node. Under srun alone each rank is a task.
    directives = ["#SBATCH --job-name=flatout-tuned"]
    if num_nodes(tuning) > 1:
        directives.append(f"#SBATCH --nodes={num_nodes(tuning)}")
    if calls(tuning.command, "torchrun"):
        directives.append("#SBATCH --ntasks-per-node=1")
    if meets(tuning):
        words = with_rendezvous(words, (f"--nnodes={num_nodes(tuning)}", *_RENDEZVOUS))
    line = script_lines(words)
    for word in _RENDEZVOUS:
        line = line.replace(shlex.quote(word), word.replace("=$", '="$') + '"' if "$" in word else word)
    exports = "" if tuning.needs_run else exported(tuning)
    notes = tuple(note for note in unplaced(tuning) if " is for srun" not in note or tuning.needs_run)
    text = "\n".join(("#!/usr/bin/env bash", *directives, "")) + (
        f"{commented(tuning)}set -euo pipefail\n{exports}{_MEETING if meets(tuning) else ''}{line}\n"
    )
    return Emitted(path="tuned.sbatch", text=text, notes=notes)
