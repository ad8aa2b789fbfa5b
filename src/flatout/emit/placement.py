"""Write an order of ranks for the launchers that can follow one.

In: a placement. Out: files. Slurm can put each rank on any node; torchrun and pods give each node consecutive ranks,
so they get the best order of nodes. What this will not do: choose the GPU of a rank within its node, which launchers
number in ascending order.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping

from flatout.records.placement import Placement
from flatout.records.tuning import Emitted

HOST_FILE, TORCHRUN_FILE, PODS_FILE = "placed_hosts", "placed_torchrun.sh", "placed_pods.yaml"


def slurm(placement: Placement) -> tuple[Emitted, ...]:
    """Return a host file with a line for each rank: its node."""
    node_of = {rank: node for node, ranks in placement.ranks_of_nodes.items() for rank in ranks}
    lines = [node_of[rank] for rank in range(placement.num_ranks)]
    use = f"SLURM_HOSTFILE={HOST_FILE} srun --ntasks={placement.num_ranks} --distribution=arbitrary COMMAND"
    return (Emitted(path=HOST_FILE, text="".join(f"{line}\n" for line in lines), notes=(f"start it with: {use}",)),)


def torchrun(placement: Placement) -> tuple[Emitted, ...]:
    """Return a script that starts torchrun with the node's rank; a rendezvous of c10d would give ranks by arrival."""
    cases = [f"    {shlex.quote(node)}) node_rank={rank} ;;" for rank, node in enumerate(placement.node_order)]
    first = shlex.quote(placement.node_order[0])
    lines = [
        "#!/bin/sh",
        "# Start this on each node: sh placed_torchrun.sh train.py ...",
        "# The ranks of nodes are static: with --rdzv-backend c10d, torchrun numbers nodes by their arrival.",
        'case "${SLURMD_NODENAME:-${NODE_NAME:-$(hostname -s)}}" in',
        *cases,
        "    *) echo 'this node has no rank in the placement' >&2; exit 2 ;;",
        "esac",
        f"exec torchrun --nnodes {len(placement.node_order)} --nproc-per-node {placement.gpus_per_node} \\",
        '    --node-rank "$node_rank" --rdzv-backend static \\',
        f'    --master-addr "${{MASTER_ADDR:-{first}}}" --master-port "${{MASTER_PORT:-29500}}" "$@"',
    ]
    return (Emitted(path=TORCHRUN_FILE, text="\n".join(lines) + "\n"),)


def kubernetes(placement: Placement) -> tuple[Emitted, ...]:
    """Return the node of each pod, as jobs of a JobSet whose global index is the node's rank."""
    lines = [
        "# Merge into a JobSet: the job at each place of this list has that global index, which is its node's rank."
    ]
    lines += ["spec:", "  replicatedJobs:"]
    for rank, node in enumerate(placement.node_order):
        lines += [
            f"  - name: node-{rank}",
            "    replicas: 1",
            "    template:",
            "      spec:",
            "        template:",
            "          spec:",
            "            nodeSelector:",
            f'              kubernetes.io/hostname: "{node}"',
        ]
    return (Emitted(path=PODS_FILE, text="\n".join(lines) + "\n"),)


PLACEMENT_TARGETS: Mapping[str, Callable[[Placement], tuple[Emitted, ...]]] = {
    "slurm": slurm,
    "torchrun": torchrun,
    "kubernetes": kubernetes,
}
