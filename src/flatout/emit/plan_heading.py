"""What every emitted plan says first: the layout, what is predicted of it, and what the target cannot express."""

from __future__ import annotations

from collections.abc import Iterable

from flatout import __version__
from flatout.records.plan_details import PlannedJob
from flatout.units import num_bytes, percent, seconds


def heading(job: PlannedJob, target: str, notes: Iterable[str] = ()) -> list[str]:
    """Lines without a comment sign. `target` names the tool and the version whose names are used."""
    layout = job.layout
    low, high = job.step_time_interval_s
    degrees = ", ".join(
        f"{name} {value}"
        for name, value in (
            ("tp", layout.tp),
            ("pp", layout.pp),
            ("vpp", layout.vpp),
            ("cp", layout.cp),
            ("ep", layout.ep),
            ("dp", layout.dp),
            ("zero", layout.zero),
            ("shard", layout.shard),
        )
        if value > 1 or name in ("dp", "zero")
    )
    lines = [
        f"Written by flatout {__version__}: {job.workload.name} on {job.cluster.num_gpus} x {job.cluster.gpu}, "
        f"for {target}",
        f"Layout: {degrees}; micro-batch {layout.micro_batch} x {layout.num_micro_batches}, {layout.schedule}, "
        f"recompute {layout.recompute}, {job.precision}",
        f"Predicted, not measured: {seconds(job.step_time_s)} a step ({seconds(low)} to {seconds(high)}), "
        f"{num_bytes(job.memory_bytes)} a GPU, out of memory with a probability of "
        f"{percent(job.out_of_memory_probability)}",
        *(f"NOT EXPRESSED: {note}" for note in notes),
    ]
    # One line each, and nothing that could end a comment: names come from other people's files.
    return ["".join(c for c in " ".join(line.split()) if c.isprintable()) for line in lines]


def commented(job: PlannedJob, target: str, notes: Iterable[str] = ()) -> str:
    """The heading for shell and Python."""
    return "".join(f"# {line}\n" for line in heading(job, target, notes))


def num_nodes(job: PlannedJob) -> int:
    """Machines of the cluster that the layout fills."""
    return max(1, -(-job.cluster.num_gpus // job.cluster.gpus_per_node))


def gpus_per_node(job: PlannedJob) -> int:
    """Ranks that one machine starts."""
    return min(job.cluster.num_gpus, job.cluster.gpus_per_node)


def torchrun_words(job: PlannedJob) -> list[str]:
    """The launch of every rank. On several nodes, `HEAD_NODE` names the first one."""
    per_node = [f"--nproc-per-node={gpus_per_node(job)}"]
    if num_nodes(job) == 1:
        return ["torchrun", "--standalone", *per_node]
    endpoint = '--rdzv-endpoint="$HEAD_NODE:${HEAD_PORT:-29500}"'
    return ["torchrun", f"--nnodes={num_nodes(job)}", *per_node, "--rdzv-backend=c10d", endpoint]


def script(job: PlannedJob, target: str, notes: Iterable[str], environment: dict[str, str], groups: list[str]) -> str:
    """A launch script: `groups` are the lines of the one command, each already quoted; further arguments follow."""
    lines = ["#!/usr/bin/env bash", commented(job, target, notes).rstrip("\n"), "set -euo pipefail"]
    if num_nodes(job) > 1:
        lines.append(': "${HEAD_NODE:?set HEAD_NODE to the first machine, and start this on each of them}"')
    lines += [f"export {name}={value}" for name, value in environment.items()]
    return "\n".join(lines) + "\n\nexec " + " \\\n  ".join([*groups, '"$@"']) + "\n"
