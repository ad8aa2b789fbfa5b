"""Compare the flavors of teams with the nodes of a cluster, so that no job asks for more than a node can allocate.

In: `Teams` and groups of nodes. Out: the first flavor that has more than its nodes have, as a sentence.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from flatout.errors import InputError
from flatout.read.kubernetes_nodes import read_kubernetes_nodes
from flatout.records.pods import GIB, NodeGroup
from flatout.records.quantity import cpu_text, memory_text
from flatout.schedule.live.teams import FlavorTable, Teams


def check_flavors(teams: Teams, path: Path) -> None:
    """Raise InputError if a flavor has more, or larger, nodes than the file."""
    labels = {label for flavor in teams.flavors for label in flavor.node_labels}
    groups = read_kubernetes_nodes(path, labels=labels)
    for flavor in teams.flavors:
        for problem in _problems(flavor, groups):
            raise InputError(f"flavor {flavor.name}: {problem}", hint=f"the nodes in `{path}` with its node_labels")


def _problems(flavor: FlavorTable, groups: Sequence[NodeGroup]) -> Iterator[str]:
    own = [group for group in groups if flavor.node_labels.items() <= group.labels.items()]
    count = sum(group.count for group in own)
    if count < flavor.nodes:
        yield f"it has {flavor.nodes} nodes, but the cluster has {count} with its labels that take pods"
        return
    cpu_m = min(group.cpu_m for group in own)
    if flavor.cpus_per_node * 1000 > cpu_m:
        yield f"cpus_per_node is {flavor.cpus_per_node}, but a node can allocate {cpu_text(cpu_m)}"
    memory = min(group.memory_bytes for group in own)
    if flavor.memory_gib_per_node * GIB > memory:
        yield f"memory_gib_per_node is {flavor.memory_gib_per_node}, but a node can allocate {memory_text(memory)}"
    num_gpus = min(group.num_gpus for group in own)
    if flavor.gpus_per_node > num_gpus:
        yield f"gpus_per_node is {flavor.gpus_per_node}, but a node can allocate {num_gpus}"
    for name, number in flavor.network_per_node.items():
        there = min(group.resources.get(name, 0) for group in own)
        if number > there:
            yield f"network_per_node has {number} {name}, but a node can allocate {there}"
