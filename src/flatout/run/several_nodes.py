"""Decide from a command and its environment whether it is one of several, on the nodes or in the tasks of one job.

In: the command and the environment. Out: whether other nodes belong to it, where they meet, and the job's identity. A
command that says one node is a separate job, whatever its name: tasks of a Slurm step may each start one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flatout.change.launchers import calls, launch_value, launched_program
from flatout.inside.protocol import Variable
from flatout.keep.hosts import num_nodes
from flatout.keep.job_identity import JobIdentity, job_identity
from flatout.keep.previous_runs import JobStart, start_of

_NODES_OPTIONS = (("torchrun", "--nnodes"), ("accelerate", "--num-machines"))
_MEETING_OPTIONS = (
    ("torchrun", "--rdzv-endpoint", None),
    ("torchrun", "--master-addr", "--master-port"),
    ("accelerate", "--main-process-ip", "--main-process-port"),
)


def count_nodes(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Return the number of nodes in the launchers' arguments, the most of a range; 1 if they have none."""
    return max(
        num_nodes(command, launch_value(command, launcher, option, environment), environment)
        for launcher, option in _NODES_OPTIONS
    )


def spans_nodes(command: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Whether other `flatout` commands, on other nodes or in other tasks, belong to the same job."""
    if count_nodes(command, environment) > 1:
        return True
    if any(calls(command, launcher) for launcher, _ in _NODES_OPTIONS):
        return False  # this launcher starts all ranks of its job
    has_other_tasks = _is_several(environment.get("SLURM_NTASKS"))
    is_one_of_the_ranks = "RANK" in environment and _is_several(environment.get("WORLD_SIZE"))
    has_name = bool(environment.get(Variable.JOB))
    return has_other_tasks or is_one_of_the_ranks or has_name


def identify(
    command: Sequence[str], environment: Mapping[str, str], start: JobStart | None, *, spans: bool
) -> JobIdentity:
    """Return the identity of the job that the command belongs to. `spans`: whether it is one of several commands."""
    return job_identity(
        start,
        launched_program(command),
        meeting=_meeting(command, environment),
        spans_nodes=spans,
        awaits_nodes=calls(command, "torchrun") and count_nodes(command, environment) > 1,
    )


def key_of_nodes(command: Sequence[str], environment: Mapping[str, str]) -> str | None:
    """Return a text that is equal on all nodes of the command's job; None if the command says one node."""
    if not spans_nodes(command, environment):
        return None
    start = start_of(environment, launch_value(command, "torchrun", "--rdzv-id", environment))
    return identify(command, environment, start, spans=True).node_key


def _meeting(command: Sequence[str], environment: Mapping[str, str]) -> str | None:
    """Return where the ranks of the job meet; None if neither a launcher's argument nor the environment says it."""
    for launcher, host_option, port_option in _MEETING_OPTIONS:
        host = launch_value(command, launcher, host_option, environment)
        if host is None:
            continue
        port = launch_value(command, launcher, port_option, environment) if port_option is not None else None
        return host if port is None else f"{host}:{port}"
    host, port = environment.get("MASTER_ADDR"), environment.get("MASTER_PORT")
    return host if host is None or port is None else f"{host}:{port}"


def _is_several(text: str | None) -> bool:
    return text is not None and text.isdecimal() and int(text) > 1
