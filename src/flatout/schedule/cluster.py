"""The cluster for a replay: nodes with GPUs of some type, their topology domains, and the GPUs' power and price.

In: a cluster file (TOML), or a number of equal nodes. Out: a `Cluster`. It does not check that a history fits on it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection
from pathlib import Path
from typing import Any

import msgspec

from flatout.errors import InputError
from flatout.input_files import read_toml


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
_EXAMPLE = '[[nodes]]\ncount = 64\ngpus = 8\ntype = "H100"'
_TABLES = {"nodes", "types", "quotas"}
_NODE_KEYS = {
    *("count", "gpus", "type", "domain", "nodes_per_domain"),
    *("cpus", "memory_gib", "gpu_memory_gib", "network_gbit_per_s"),
}
_TYPE_KEYS = {"busy_w", "idle_w", "dollars_per_hour"}


def read_cluster(path: Path) -> Cluster:
    """Read a cluster file: `[[nodes]]` with count, gpus, type, domain; `[types.NAME]` and `[quotas]` are optional."""
    try:
        content = read_toml(path)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(
            f"{path}: not a TOML file: {error}", hint=f"a cluster file is, for example: {_EXAMPLE!r}"
        ) from None
    nodes: list[Node] = []
    for number, table in enumerate(_node_tables(path, content), 1):
        nodes += _nodes(path, number, table, len(nodes))
        if len(nodes) > MOST_NODES:
            raise InputError(f"{path}: a cluster must have at most {MOST_NODES:,} nodes, but has {len(nodes):,}")
    return Cluster(nodes=tuple(nodes), types=_types(path, content), quotas=_quotas(path, content))


def _node_tables(path: Path, content: dict[str, Any]) -> list[dict[str, Any]]:
    unknown = sorted(set(content) - _TABLES)
    if unknown:
        raise InputError(f"{path}: a cluster file has [[nodes]], [types] and [quotas], but also `{unknown[0]}`")
    tables = content.get("nodes")
    is_list_of_tables = isinstance(tables, list) and all(isinstance(table, dict) for table in tables)
    if not tables or not is_list_of_tables:
        raise InputError(
            f"{path}: a cluster file needs at least one [[nodes]] table", hint=f"for example: {_EXAMPLE!r}"
        )
    return list(tables)


def _nodes(path: Path, table_number: int, table: dict[str, Any], num_before: int) -> list[Node]:
    """Return the nodes of one `[[nodes]]` table; their names continue after those of the tables before it."""
    where = f"[[nodes]] number {table_number}"
    unknown = sorted(set(table) - _NODE_KEYS)
    if unknown:
        raise InputError(f"{path}: {where}: `{unknown[0]}` is not one of {', '.join(sorted(_NODE_KEYS))}")
    count = _positive(path, f"{where}: count", table.get("count", 1))
    gpus = _positive(path, f"{where}: gpus", table.get("gpus"))
    domain = str(table.get("domain", ""))
    nodes_per_domain = 0  # all nodes in one domain
    if table.get("nodes_per_domain") is not None:
        nodes_per_domain = _positive(path, f"{where}: nodes_per_domain", table["nodes_per_domain"])
    cpus = _amount(path, f"{where}: cpus", table.get("cpus"))
    memory_gib = _amount(path, f"{where}: memory_gib", table.get("memory_gib"))
    gpu_memory_gib = _amount(path, f"{where}: gpu_memory_gib", table.get("gpu_memory_gib"))
    network_gbit_per_s = _amount(path, f"{where}: network_gbit_per_s", table.get("network_gbit_per_s"))
    nodes = []
    for number in range(count):
        subdomain = f"{table_number}.{number // nodes_per_domain}" if nodes_per_domain else ""
        node = Node(
            name=f"n{num_before + number}",
            num_gpus=gpus,
            gpu_type=str(table.get("type", "gpu")),
            domain=domain + subdomain,
            num_cpus=cpus,
            memory_bytes=_times(memory_gib, 2.0**30),
            gpu_memory_bytes=_times(gpu_memory_gib, 2.0**30),
            network_bits_per_s=_times(network_gbit_per_s, 1e9),
        )
        nodes.append(node)
    return nodes


def _times(amount: float | None, unit: float) -> float | None:
    return None if amount is None else amount * unit


def _types(path: Path, content: dict[str, Any]) -> dict[str, GpuType]:
    tables = content.get("types", {})
    if not isinstance(tables, dict):
        raise InputError(f"{path}: [types] must hold a table for each type, but is {tables!r}")
    types = {}
    for name, table in tables.items():
        unknown = sorted(set(table) - _TYPE_KEYS) if isinstance(table, dict) else [str(table)]
        if unknown:
            raise InputError(f"{path}: [types.{name}]: `{unknown[0]}` is not one of {', '.join(sorted(_TYPE_KEYS))}")
        amounts = {key: _amount(path, f"[types.{name}]: {key}", value) for key, value in table.items()}
        types[name] = GpuType(**amounts)
    return types


def _quotas(path: Path, content: dict[str, Any]) -> dict[str, int]:
    table = content.get("quotas", {})
    if not isinstance(table, dict):
        raise InputError(f"{path}: [quotas] must give a number of GPUs for each team, but is {table!r}")
    return {team: _positive(path, f"[quotas]: {team}", value) for team, value in table.items()}


def _positive(path: Path, what: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 1_000_000:
        raise InputError(f"{path}: {what} must be a whole number from 1 to 1,000,000, but is {value!r}")
    return value


def _amount(path: Path, what: str, value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e15:
        raise InputError(f"{path}: {what} must be a number of at least 0, but is {value!r}")
    return float(value)
