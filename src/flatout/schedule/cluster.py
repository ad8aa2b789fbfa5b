"""The cluster for a replay: nodes with GPUs of some type, their topology domains, and the GPUs' power and price.

In: a cluster file (TOML), or a number of equal nodes. Out: a `Cluster`. It does not check that a history fits on it.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Annotated

import msgspec

from flatout.errors import InputError
from flatout.input_records import read_record


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """One machine."""

    name: str
    num_gpus: int
    gpu_type: str = "gpu"
    domain: str = ""  # rack, leaf switch or NVLink domain: a wide job is placed within one domain if possible
    # None: unknown, assumed to be enough.
    num_cpus: float | None = None
    memory_bytes: float | None = None
    gpu_memory_bytes: float | None = None  # of each GPU
    network_bits_per_s: float | None = None


class GpuType(msgspec.Struct, frozen=True, kw_only=True):
    """Power and price of a GPU type; if a value is None, energy or cost is not reported."""

    busy_w: float | None = None
    idle_w: float | None = None
    dollars_per_hour: float | None = None


class Cluster(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes in a fixed order, with power and price of their GPU types, and the teams' quotas."""

    nodes: tuple[Node, ...]
    types: dict[str, GpuType] = {}
    quotas: dict[str, int] = {}  # team -> GPUs that it owns

    @property
    def num_gpus(self) -> int:
        return sum(node.num_gpus for node in self.nodes)

    def mask_of_types(self, gpu_types: Collection[str]) -> int:
        """Return the mask of the nodes with GPUs of these types; all nodes if no type is named."""
        if not gpu_types:
            return -1
        return sum(1 << number for number, node in enumerate(self.nodes) if node.gpu_type in gpu_types)


def uniform(num_nodes: int, gpus_per_node: int, *, gpu_type: str = "gpu", facts: GpuType | None = None) -> Cluster:
    """Return a cluster of equal nodes in one domain."""
    nodes = tuple(Node(name=f"n{i}", num_gpus=gpus_per_node, gpu_type=gpu_type) for i in range(num_nodes))
    return Cluster(nodes=nodes, types={gpu_type: facts} if facts else {})


MOST_NODES = 100_000  # computing time for node masks grows with the square of the number of nodes
_EXAMPLE = 'for example: [[nodes]] with count = 64, gpus = 8 and type = "H100"; see docs/how-to/replay-a-cluster.md'
_Count = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
_Amount = Annotated[float, msgspec.Meta(ge=0, lt=1e15)]


class _NodesTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Equal nodes in a cluster file."""

    gpus: _Count
    count: _Count = 1
    type: str = "gpu"
    domain: str = ""
    nodes_per_domain: _Count | None = None  # None: all nodes are in one domain
    cpus: _Amount | None = None
    memory_gib: _Amount | None = None
    gpu_memory_gib: _Amount | None = None
    network_gbit_per_s: _Amount | None = None


class _TypeTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    busy_w: _Amount | None = None
    idle_w: _Amount | None = None
    dollars_per_hour: _Amount | None = None


class _ClusterFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    nodes: Annotated[tuple[_NodesTable, ...], msgspec.Meta(min_length=1)]
    types: dict[str, _TypeTable] = {}
    quotas: dict[str, _Count] = {}


def read_cluster(path: Path) -> Cluster:
    """Read a cluster file: `[[nodes]]` with count, gpus, type, domain; `[types.NAME]` and `[quotas]` are optional."""
    file = read_record(path, _ClusterFile, hint=_EXAMPLE)
    nodes: list[Node] = []
    for number, table in enumerate(file.nodes, 1):
        nodes += _nodes(number, table, len(nodes))
        if len(nodes) > MOST_NODES:
            raise InputError(
                f"`{path}`: a cluster must have at most {MOST_NODES:,} nodes, but has {len(nodes):,}", hint=_EXAMPLE
            )
    types = {
        name: GpuType(busy_w=table.busy_w, idle_w=table.idle_w, dollars_per_hour=table.dollars_per_hour)
        for name, table in file.types.items()
    }
    return Cluster(nodes=tuple(nodes), types=types, quotas=file.quotas)


def _nodes(table_number: int, table: _NodesTable, num_before: int) -> list[Node]:
    """Return the nodes of one `[[nodes]]` table; their names continue after those of the tables before it."""
    nodes = []
    for number in range(table.count):
        subdomain = f"{table_number}.{number // table.nodes_per_domain}" if table.nodes_per_domain else ""
        node = Node(
            name=f"n{num_before + number}",
            num_gpus=table.gpus,
            gpu_type=table.type,
            domain=table.domain + subdomain,
            num_cpus=table.cpus,
            memory_bytes=_times(table.memory_gib, 2.0**30),
            gpu_memory_bytes=_times(table.gpu_memory_gib, 2.0**30),
            network_bits_per_s=_times(table.network_gbit_per_s, 1e9),
        )
        nodes.append(node)
    return nodes


def _times(amount: float | None, unit: float) -> float | None:
    return None if amount is None else amount * unit
