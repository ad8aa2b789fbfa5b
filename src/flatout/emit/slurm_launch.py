"""Give the user's command what its launcher needs to form one job out of the nodes that Slurm allocates.

In: the command, the number of nodes, their GPUs and CPUs. Out: the tasks per node and their CPUs, lines for the batch
script, and the words that `srun` starts. torchrun, accelerate and deepspeed are started once per node and start the
ranks themselves; a Python program without a launcher is started once per GPU; mpirun is started once, because it finds
the allocation itself. No launcher uses ssh here.

Nodes differ only in what Slurm's variables say on each, so `srun` starts a line of shell that fills them in.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from flatout.change.launchers import (
    calls,
    first_launcher,
    launch_value,
    launch_word,
    launched_program,
    with_launch_words,
)
from flatout.emit.pod_launch import ACCELERATE_KINDS, DEEPSPEED_HOSTS

# Filled in on each node; no shell expands them before.
_NODE_RANK, _HOST_FILE = "@NODE_RANK@", "@HOSTFILE@"
_FILL_IN_RANK = 'exec "${@/' + _NODE_RANK + '/$SLURM_NODEID}"'
# Variables of the batch script: shell code that each task starts first, and the number of ranks of accelerate.
_ON_NODE, _ON_RANK, _COUNTED_RANKS = "$on_node", "$on_rank", "--num_processes=$num_ranks"
# The GPUs that Slurm gives the batch script's node; all nodes of these jobs have as many.
_GPUS_OF_NODE = "${SLURM_GPUS_ON_NODE:?allocate GPUs, e.g. with flatout submit --gpus 8}"
_SHELLS = ("sh", "bash", "dash", "zsh", "ksh")
_MPIRUN_COUNTS = ("-np", "-n", "--np", "--n", "-c")
_RANK_OF_TASK = (
    'export RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS LOCAL_RANK=$SLURM_LOCALID NODE_RANK=$SLURM_NODEID; exec "$@"'
)
# Open MPI's variables, or those of a launcher that follows PMI (MPICH, Intel MPI).
_RANK_OF_MPI = (
    "export RANK=${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-}} WORLD_SIZE=${OMPI_COMM_WORLD_SIZE:-${PMI_SIZE:-}} "
    "LOCAL_RANK=${OMPI_COMM_WORLD_LOCAL_RANK:-${MPI_LOCALRANKID:-}}; "
    'exec "$@"'
)


class SlurmNodes(msgspec.Struct, frozen=True, kw_only=True):
    """The nodes of one job, each with as many GPUs and CPUs; None: unknown, so Slurm's variables are asked."""

    num_nodes: int
    num_gpus: int | None = None
    num_cpus: int | None = None


class SlurmLaunch(msgspec.Struct, frozen=True, kw_only=True):
    """How Slurm starts the command."""

    words: tuple[str, ...]  # the command with the arguments that its launcher needs
    wrapper: tuple[str, ...] = ()  # what each task starts before the command, to fill in its own variables
    expanded: tuple[str, ...] = ()  # words in which the batch script expands a variable
    needs_head_node: bool = False  # whether MASTER_ADDR and MASTER_PORT must be set
    lines: tuple[str, ...] = ()  # of the batch script, before the command
    tasks_per_node: int | None = None  # None: as the command or the user's options say
    cpus_per_task: int | None = None
    has_srun: bool = True
    notes: tuple[str, ...] = ()


def slurm_launch(words: Sequence[str], nodes: SlurmNodes) -> SlurmLaunch:
    """Return the launch of a command on all nodes. torchrun's own arguments are those of its rendezvous."""
    launcher = first_launcher(words)
    if launcher == "mpirun":
        return _mpirun(tuple(words), nodes)
    if launcher == "torchrun":
        return _torchrun(tuple(words), nodes)
    if launcher == "srun":  # the user's own, with its own tasks; a launcher under it is started once per node
        is_once_per_node = any(calls(words, each) for each in ("torchrun", "accelerate", "deepspeed"))
        return SlurmLaunch(
            words=tuple(words),
            tasks_per_node=1 if is_once_per_node else None,
            cpus_per_task=nodes.num_cpus if is_once_per_node else None,
        )
    if nodes.num_nodes == 1:
        return SlurmLaunch(words=tuple(words), cpus_per_task=nodes.num_cpus)
    if launcher == "accelerate":
        return _accelerate(tuple(words), nodes)
    if launcher == "deepspeed":
        return _deepspeed(tuple(words), nodes)
    return _without_launcher(tuple(words), nodes)


def _torchrun(words: tuple[str, ...], nodes: SlurmNodes) -> SlurmLaunch:
    """Return the launch of one agent per node; without a number of ranks, torchrun would start one."""
    if nodes.num_gpus and launch_value(words, "torchrun", "--nproc-per-node") is None:
        words = with_launch_words(words, "torchrun", (f"--nproc-per-node={nodes.num_gpus}",))
    return SlurmLaunch(words=words, tasks_per_node=1, cpus_per_task=nodes.num_cpus)


def _accelerate(words: tuple[str, ...], nodes: SlurmNodes) -> SlurmLaunch:
    meeting = ("--main_process_ip=$MASTER_ADDR", "--main_process_port=$MASTER_PORT")
    added = [
        f"--num_machines={nodes.num_nodes}",
        f"--machine_rank={_NODE_RANK}",
        *meeting,
        "--same_network",
        "--rdzv_backend=static",
    ]
    lines = [f"on_node='{_FILL_IN_RANK}'"]
    kinds = [kind for kind in ACCELERATE_KINDS if launch_word(words, "accelerate", kind) is not None]
    if nodes.num_gpus:
        added.append(f"--num_processes={nodes.num_nodes * nodes.num_gpus}")  # of all nodes
    elif launch_word(words, "accelerate", "--num-processes") is None:
        lines.append(f"num_ranks=$(({_GPUS_OF_NODE} * SLURM_NNODES))")
        added.append(_COUNTED_RANKS)
    if not kinds:
        added.append("--multi_gpu")
    if "--use-deepspeed" in kinds:
        added.append("--deepspeed_multinode_launcher=standard")  # its own default needs ssh
    changed = with_launch_words(words, "accelerate", added)
    return _on_each_node(changed, nodes, lines, expanded=(*meeting, _COUNTED_RANKS))


def _deepspeed(words: tuple[str, ...], nodes: SlurmNodes) -> SlurmLaunch:
    own_slots = launch_word(words, "deepspeed", "--num-gpus")
    slots = str(nodes.num_gpus or own_slots or f"{_GPUS_OF_NODE}")
    meeting = ("--master_addr=$MASTER_ADDR", "--master_port=$MASTER_PORT")
    added = (f"--hostfile={_HOST_FILE}", "--no_ssh", f"--node_rank={_NODE_RANK}", *meeting)
    notes = [
        f"deepspeed's {flag} names other hosts: removed"
        for flag in ("--include", "-i", "--exclude", "-e")
        if launch_word(words, "deepspeed", flag) is not None
    ]
    lines = [
        f'export JOB_SLOTS="{slots}" JOB_HOSTS="$(scontrol show hostnames "$SLURM_JOB_NODELIST")"',
        # Each node writes the file for itself: no folder need be shared.
        'on_node=\'file=$(mktemp) && printf "%s slots=$JOB_SLOTS\\n" $JOB_HOSTS > "$file"'
        f' && set -- "${{@/{_HOST_FILE}/$file}}" && {_FILL_IN_RANK}\'',
    ]
    changed = with_launch_words(words, "deepspeed", added, dropped=(*DEEPSPEED_HOSTS, "--num-gpus"))
    return _on_each_node(changed, nodes, lines, notes, expanded=meeting)


def _on_each_node(
    words: tuple[str, ...],
    nodes: SlurmNodes,
    lines: Sequence[str],
    notes: Sequence[str] = (),
    *,
    expanded: tuple[str, ...],
) -> SlurmLaunch:
    """Return the launch of one task per node, which gets all CPUs of the node."""
    return SlurmLaunch(
        words=words,
        wrapper=("bash", "-c", _ON_NODE, "bash"),
        expanded=(_ON_NODE, *expanded),
        needs_head_node=True,
        lines=tuple(lines),
        tasks_per_node=1,
        cpus_per_task=nodes.num_cpus,
        notes=tuple(notes),
    )


def _without_launcher(words: tuple[str, ...], nodes: SlurmNodes) -> SlurmLaunch:
    """Return the launch of a program: Python with one task per GPU and torch's variables, others as they are."""
    tasks = nodes.num_gpus or None
    cpus = max(nodes.num_cpus // (tasks or 1), 1) if nodes.num_cpus else None
    if not _is_python(words):
        return SlurmLaunch(words=words, cpus_per_task=nodes.num_cpus)
    notes: tuple[str, ...] = ()
    if tasks is not None and tasks > 1:
        notes = (
            f"the program is started once per GPU, {tasks} times per node; if it starts a process per GPU itself, pass "
            "--sbatch-options --ntasks-per-node=1",
        )
    return SlurmLaunch(
        words=words,
        wrapper=("bash", "-c", _ON_RANK, "bash"),
        expanded=(_ON_RANK,),
        needs_head_node=True,
        lines=(f"on_rank='{_RANK_OF_TASK}'",),
        tasks_per_node=tasks,
        cpus_per_task=cpus,
        notes=notes,
    )


def _mpirun(words: tuple[str, ...], nodes: SlurmNodes) -> SlurmLaunch:
    """Return the launch by mpirun alone: under `srun`, each node would start a separate job."""
    counts = [launch_word(words, "mpirun", flag) for flag in _MPIRUN_COUNTS]
    own_count = next((int(count) for count in counts if count is not None and count.isdecimal()), None)
    tasks = nodes.num_gpus or (-(-own_count // nodes.num_nodes) if own_count else None)
    position = next(index for index, _ in enumerate(words) if first_launcher(words[: index + 1]) == "mpirun")
    if own_count is None and tasks:
        words = (*words[: position + 1], "-n", str(nodes.num_nodes * tasks), *words[position + 1 :])
    program = launched_program(words)
    before = words[: len(words) - len(program)]
    is_python = program != words and _is_python(program)
    if is_python:
        words = (*before, "bash", "-c", _ON_RANK, "bash", *program)
    return SlurmLaunch(
        words=words,
        expanded=(_ON_RANK,),
        needs_head_node=is_python,
        lines=(f"on_rank='{_RANK_OF_MPI}'",) if is_python else (),
        tasks_per_node=tasks,
        cpus_per_task=max(nodes.num_cpus // (tasks or 1), 1) if nodes.num_cpus else None,
        has_srun=False,
    )


def _is_python(words: Sequence[str]) -> bool:
    """Whether the command starts Python, also through a program such as `env`; a shell's script may start anything."""
    first = Path(words[0]).name
    if first in _SHELLS or first.endswith(".sh"):
        return False
    return any(Path(word).name.startswith("python") or word.endswith(".py") for word in words)
