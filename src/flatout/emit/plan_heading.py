"""Write the heading of every emitted plan: the layout, its predictions, and what is left for the user to do."""

from __future__ import annotations

from collections.abc import Iterable

from flatout import __version__
from flatout.emit.heading import one_comment_line
from flatout.records.plan import Layout
from flatout.records.plan_details import PlannedJob
from flatout.units import num_bytes, percent, seconds


def heading(job: PlannedJob, target: str, notes: Iterable[str] = ()) -> list[str]:
    """Return the lines of the heading, without comment signs. `target` names the tool and its version."""
    layout, (low, high) = job.layout, job.step_time_interval_s
    micro_batches = f"micro-batch {layout.micro_batch} x {layout.num_micro_batches}"
    lines = [
        f"Written by flatout {__version__}: {job.workload.name} on {job.cluster.num_gpus} x {job.cluster.gpu}, "
        f"for {target}",
        f"Layout: {_degrees(layout)}; {micro_batches}, {layout.schedule}, "
        f"recompute {layout.recompute}, {job.precision}",
        f"Predicted, not measured: {seconds(job.step_time_s)} per step ({seconds(low)} to {seconds(high)}), "
        f"{num_bytes(job.memory_bytes)} per GPU, out of memory with a probability of "
        f"{percent(job.out_of_memory_probability)}",
        *(f"UP TO YOU: {note}" for note in notes),
    ]
    return [one_comment_line(line) for line in lines]


def _degrees(layout: Layout) -> str:
    """Return the degrees of parallelism above 1; `dp` and `zero` are always included."""
    degrees = {name: getattr(layout, name) for name in ("tp", "pp", "vpp", "cp", "ep", "dp", "zero", "shard")}
    shown = [f"{name} {degree}" for name, degree in degrees.items() if degree > 1 or name in ("dp", "zero")]
    return ", ".join(shown)


def commented(job: PlannedJob, target: str, notes: Iterable[str] = ()) -> str:
    """Return the heading as comments for shell or Python."""
    return "".join(f"# {line}\n" for line in heading(job, target, notes))


def num_nodes(job: PlannedJob) -> int:
    """Return the number of machines that the layout uses."""
    return max(1, -(-job.cluster.num_gpus // job.cluster.gpus_per_node))


def gpus_per_node(job: PlannedJob) -> int:
    """Return the number of ranks per machine."""
    return min(job.cluster.num_gpus, job.cluster.gpus_per_node)


def torchrun_words(job: PlannedJob) -> list[str]:
    """Return the command that launches all ranks. On several nodes, the variable `HEAD_NODE` names the first node."""
    per_node = [f"--nproc-per-node={gpus_per_node(job)}"]
    if num_nodes(job) == 1:
        return ["torchrun", "--standalone", *per_node]
    endpoint = '--rdzv-endpoint="$HEAD_NODE:${HEAD_PORT:-29500}"'
    return ["torchrun", f"--nnodes={num_nodes(job)}", *per_node, "--rdzv-backend=c10d", endpoint]


def script(
    job: PlannedJob,
    target: str,
    notes: Iterable[str],
    environment: dict[str, str],
    groups: list[str],
    *,
    runs_on_each_node: bool = True,
    after_arguments: tuple[str, ...] = (),
    remark: str = "",
) -> str:
    """Return a launch script. `groups` are the lines of its one command, quoted; the script's own arguments follow.

    `after_arguments` come last. A script that does not run on each node needs no `HEAD_NODE`. `remark` is a comment.
    """
    lines = ["#!/usr/bin/env bash", commented(job, target, notes).rstrip("\n"), "set -euo pipefail"]
    if remark:
        lines.append(f"# {one_comment_line(remark)}")
    if num_nodes(job) > 1 and runs_on_each_node:
        lines.append(': "${HEAD_NODE:?set HEAD_NODE to the first machine, and start this on each of them}"')
    lines += [f"export {name}={value}" for name, value in environment.items()]
    return "\n".join(lines) + "\n\nexec " + " \\\n  ".join([*groups, '"$@"', *after_arguments]) + "\n"
