"""A batch script for `sbatch`: what was tuned, around an `srun` of the user's command.

Partition, account and time limit are the site's, so they are left to the command line of `sbatch`; where each trial was
a Slurm job, its options are here, but for its time limit, which is that of a trial. The agents of torchrun on several
nodes meet on the first one, whichever Slurm gives.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

import msgspec

from flatout.change.launchers import calls
from flatout.emit.command import script_lines, tuned_command, unplaced
from flatout.emit.heading import commented
from flatout.emit.rendezvous import meets, num_nodes, with_own_meeting, with_rendezvous
from flatout.emit.torchrun import exported
from flatout.records.tuning import HEAD_NODE, Emitted, Tuning

_HEAD_NODE = 'head_node=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)\n'
# Another job on the first node has another port.
_PORT = "rdzv_port=$((20000 + SLURM_JOB_ID % 10000))\n"
_RENDEZVOUS = (
    "--rdzv-backend=c10d",
    "--rdzv-endpoint=$head_node:$rdzv_port",
    "--rdzv-id=$SLURM_JOB_ID",
)


# One `flatout run` for the job, around `srun`: it starts all nodes again together, so none may linger in a lost step.
_KEPT_SRUN = ("srun", "--kill-on-bad-exit=1")


def emit(tuning: Tuning, *, keeps_meeting: bool = False) -> Emitted:
    """`keeps_meeting`: where torchrun's agents meet is as the command says, else on the first node."""
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
    is_met = meets(tuning) and not keeps_meeting
    if meets(tuning) and keeps_meeting:
        words = with_own_meeting(words, num_nodes(tuning))
    if is_met:
        words = with_rendezvous(words, (f"--nnodes={num_nodes(tuning)}", *_RENDEZVOUS))
    options, notes = _without_time(tuning.sbatch_options)
    if options:
        directives.append(f"#SBATCH {shlex.join(options)}")  # of two the later one counts
    line = script_lines(words).replace(HEAD_NODE, "'\"$head_node\"'")  # a word with braces is quoted
    for word in _RENDEZVOUS:
        line = line.replace(shlex.quote(word), word.replace("=$", '="$') + '"' if "$" in word else word)
    exports = "" if tuning.needs_run else exported(tuning)
    notes += unplaced(tuning, placed=() if tuning.needs_run else ("srun",))
    meeting = f"{_HEAD_NODE if '$head_node' in line else ''}{_PORT if is_met else ''}"
    text = "\n".join(("#!/usr/bin/env bash", *directives, "")) + (
        f"{commented(tuning)}set -euo pipefail\n{exports}{meeting}{line}\n"
    )
    return Emitted(path="tuned.sbatch", text=text, notes=tuple(notes))


def _without_time(options: Sequence[str]) -> tuple[list[str], list[str]]:
    """The options but for the time limit, and what to say of that."""
    kept: list[str] = []
    dropped: list[str] = []
    is_value = False
    for word in options:
        if is_value or word == "--time" or word.startswith(("--time=", "-t")):
            dropped.append(word)
        else:
            kept.append(word)
        is_value = not is_value and word in ("--time", "-t")
    return kept, [f"left out of it: {shlex.join(dropped)}, which was for a trial"] if dropped else []
