"""Write a batch script for `sbatch`: an `srun` of the user's command with the tuned changes.

Partition, account and time limit depend on the site, so they are left to the command line of `sbatch`. If each trial
was a Slurm job, its options are in the script, except the time limit, which was that of a trial. On several nodes,
torchrun's agents meet on the first node that Slurm allocates; `slurm_launch` says what other launchers need.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

import msgspec

from flatout.change.launchers import calls
from flatout.emit.command import script_lines, tuned_command, unplaced
from flatout.emit.heading import commented
from flatout.emit.rendezvous import needs_rendezvous, num_nodes, with_own_rendezvous, with_rendezvous
from flatout.emit.slurm_launch import SlurmLaunch, SlurmNodes, slurm_launch
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


# All processes of a job that no launcher connects meet there, as torch.distributed expects.
_MASTER = 'export MASTER_ADDR="$head_node" MASTER_PORT="$rdzv_port"\n'
# One `flatout run` around `srun` for the whole job: it restarts all nodes together, so none can stay in a failed step.
_KEPT_SRUN = ("srun", "--kill-on-bad-exit=1")


def emit(
    tuning: Tuning,
    *,
    keeps_rendezvous: bool = False,
    setup: str = "",
    gpus_per_node: int | None = None,
    cpus_per_node: int | None = None,
) -> Emitted:
    """Return the script. `keeps_rendezvous`: torchrun's agents meet where the command says, else on the first node.

    `setup` is shell code that runs first. The GPUs and CPUs per node are None if they are unknown.
    """
    nodes = SlurmNodes(num_nodes=num_nodes(tuning), num_gpus=gpus_per_node, num_cpus=cpus_per_node)
    launch = slurm_launch(tuning.command, nodes)
    meets_on_head_node = needs_rendezvous(tuning) and not keeps_rendezvous
    line = _command_line(tuning, launch, meets_on_head_node=meets_on_head_node)
    options, notes = _without_time(tuning.sbatch_options)
    directives = _directives(tuning, launch, options)
    script = ["#!/usr/bin/env bash\n", *(f"#SBATCH {directive}\n" for directive in directives)]
    script += [commented(tuning, has_command=True), SHELL_OPTIONS, setup]
    if not tuning.needs_run:
        script.append(exported(tuning))
    if launch.needs_head_node or "$head_node" in line:
        script.append(_HEAD_NODE)
    if launch.needs_head_node or meets_on_head_node:
        script.append(_PORT)
    if launch.needs_head_node:
        script.append(_MASTER)
    script += [f"{code}\n" for code in launch.lines]
    script.append(f"{line}\n")
    notes += [*launch.notes, *unplaced(tuning, placed=() if tuning.needs_run else ("srun",))]
    return Emitted(path="tuned.sbatch", text="".join(script), notes=tuple(notes))


def _command_line(tuning: Tuning, launch: SlurmLaunch, *, meets_on_head_node: bool) -> str:
    """Return the command as shell code, under `srun` if the launch needs it, in which variables are expanded."""
    words = _words(tuning, launch)
    if meets_on_head_node:
        words = with_rendezvous(words, (f"--nnodes={num_nodes(tuning)}", *_RENDEZVOUS))
    elif needs_rendezvous(tuning):
        words = with_own_rendezvous(words, num_nodes(tuning))
    line = script_lines(words).replace(HEAD_NODE, "'\"$head_node\"'")  # a word with braces is quoted
    for word in (*_RENDEZVOUS, *launch.expanded):
        if "$" in word:
            name, dollar, variable = word.partition("$")
            # Arguments of the user, which may look the same, come later.
            line = line.replace(shlex.quote(word), f'{name}"{dollar}{variable}"', 1)
    return line


def _words(tuning: Tuning, launch: SlurmLaunch) -> tuple[str, ...]:
    """Return the command that the batch script runs."""
    if calls(tuning.command, "srun"):
        return tuned_command(tuning)
    if tuning.keep:
        srun = _KEPT_SRUN if launch.has_srun else ()
        kept = (*srun, *launch.wrapper, *launch.words)
        return tuned_command(msgspec.structs.replace(tuning, command=kept))
    words = (*launch.wrapper, *tuned_command(msgspec.structs.replace(tuning, command=launch.words)))
    if not launch.has_srun:
        return words
    added = () if tuning.needs_run else tuning.changes.launch.get("srun", ())
    return ("srun", *added, *words)


def _directives(tuning: Tuning, launch: SlurmLaunch, options: Sequence[str]) -> list[str]:
    directives = ["--job-name=flatout-tuned"]
    if num_nodes(tuning) > 1:
        directives.append(f"--nodes={num_nodes(tuning)}")
    if launch.tasks_per_node is not None:
        directives.append(f"--ntasks-per-node={launch.tasks_per_node}")
    if launch.cpus_per_task is not None:
        directives.append(f"--cpus-per-task={launch.cpus_per_task}")
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
