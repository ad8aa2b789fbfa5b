"""Write a batch script for `sbatch`: an `srun` of the user's command with the tuned changes.

Partition, account and time limit depend on the site, so they are left to the command line of `sbatch`. If each trial
was a Slurm job, its options are in the script, except the time limit, which was that of a trial. On several nodes,
torchrun's agents meet on the first node that Slurm allocates.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

import msgspec

from flatout.change.launchers import calls
from flatout.emit.command import script_lines, tuned_command, unplaced
from flatout.emit.heading import commented
from flatout.emit.rendezvous import needs_rendezvous, num_nodes, with_own_rendezvous, with_rendezvous
from flatout.emit.torchrun import exported
from flatout.records.tuning import HEAD_NODE, Emitted, Tuning

SHELL_OPTIONS = "set -euo pipefail\n"
_HEAD_NODE = 'head_node=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)\n'
# The port depends on the job ID, so that another job on the same first node uses a different one.
_PORT = "rdzv_port=$((20000 + SLURM_JOB_ID % 10000))\n"
_RENDEZVOUS = (
    "--rdzv-backend=c10d",
    "--rdzv-endpoint=$head_node:$rdzv_port",
    "--rdzv-id=$SLURM_JOB_ID",
)


# One `flatout run` around `srun` for the whole job: it restarts all nodes together, so none can stay in a failed step.
_KEPT_SRUN = ("srun", "--kill-on-bad-exit=1")


def emit(tuning: Tuning, *, keeps_rendezvous: bool = False, setup: str = "") -> Emitted:
    """Return the script. `keeps_rendezvous`: torchrun's agents meet where the command says, else on the first node.

    `setup` is shell code that runs first.
    """
    if tuning.keep and not calls(tuning.command, "srun"):
        tuning = msgspec.structs.replace(tuning, command=(*_KEPT_SRUN, *tuning.command))
    meets_on_head_node = needs_rendezvous(tuning) and not keeps_rendezvous
    line = _command_line(tuning, meets_on_head_node=meets_on_head_node)
    options, notes = _without_time(tuning.sbatch_options)
    script = ["#!/usr/bin/env bash\n", *(f"#SBATCH {directive}\n" for directive in _directives(tuning, options))]
    script += [commented(tuning, has_command=True), SHELL_OPTIONS, setup]
    if not tuning.needs_run:
        script.append(exported(tuning))
    if "$head_node" in line:
        script.append(_HEAD_NODE)
    if meets_on_head_node:
        script.append(_PORT)
    script.append(f"{line}\n")
    notes += unplaced(tuning, placed=() if tuning.needs_run else ("srun",))
    return Emitted(path="tuned.sbatch", text="".join(script), notes=tuple(notes))


def _command_line(tuning: Tuning, *, meets_on_head_node: bool) -> str:
    """Return the command as shell code, under `srun`, in which variables are expanded."""
    words = tuned_command(tuning)
    if not calls(tuning.command, "srun"):
        added = () if tuning.needs_run else tuning.changes.launch.get("srun", ())
        words = ("srun", *added, *words)
    if meets_on_head_node:
        words = with_rendezvous(words, (f"--nnodes={num_nodes(tuning)}", *_RENDEZVOUS))
    elif needs_rendezvous(tuning):
        words = with_own_rendezvous(words, num_nodes(tuning))
    line = script_lines(words).replace(HEAD_NODE, "'\"$head_node\"'")  # a word with braces is quoted
    for word in _RENDEZVOUS:
        if "$" in word:
            line = line.replace(shlex.quote(word), word.replace("=$", '="$') + '"')
    return line


def _directives(tuning: Tuning, options: Sequence[str]) -> list[str]:
    directives = ["--job-name=flatout-tuned"]
    if num_nodes(tuning) > 1:
        directives.append(f"--nodes={num_nodes(tuning)}")
    if calls(tuning.command, "torchrun"):
        # torchrun starts the ranks of a host itself, so there is one task per node. Under plain srun, each rank is a
        # task.
        directives.append("--ntasks-per-node=1")
    if options:
        directives.append(shlex.join(options))  # if an option is given twice, the later one counts
    return directives


def _without_time(options: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the options without the time limit, and a note on that."""
    kept: list[str] = []
    dropped: list[str] = []
    is_value = False
    for word in options:
        if is_value or word == "--time" or word.startswith(("--time=", "-t")):
            dropped.append(word)
        else:
            kept.append(word)
        is_value = not is_value and word in ("--time", "-t")
    if not dropped:
        return kept, []
    return kept, [f"not in the script: {shlex.join(dropped)}, which was only for a trial"]
