"""The cluster that a replay runs on: nodes with GPUs of a type, in topology domains, with power and price."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import msgspec

from flatout.errors import InputError


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """One machine."""

    name: str
    num_gpus: int
    gpu_type: str = "gpu"
    domain: str = ""  # rack, leaf switch or NVLink domain: a wide job prefers to stay within one
    num_cpus: float | None = None  # None: not a limit
    memory_bytes: float | None = None


class GpuType(msgspec.Struct, frozen=True, kw_only=True):
    """What a type of GPU costs and draws; None where it isn't known, and then no kWh or money is reported."""

    busy_w: float | None = None
    idle_w: float | None = None
    dollars_per_hour: float | None = None


class Cluster(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes in a fixed order, and the facts of their types."""

    nodes: tuple[Node, ...]
    types: dict[str, GpuType] = {}
    quotas: dict[str, int] = {}  # team -> GPUs that it owns

    @property
    def num_gpus(self) -> int:
        return sum(node.num_gpus for node in self.nodes)


def uniform(num_nodes: int, gpus_per_node: int, *, gpu_type: str = "gpu", facts: GpuType | None = None) -> Cluster:
    """Nodes that are all alike, in one domain."""
    nodes = tuple(Node(name=f"n{i}", num_gpus=gpus_per_node, gpu_type=gpu_type) for i in range(num_nodes))
    return Cluster(nodes=nodes, types={gpu_type: facts} if facts else {})


MOST_NODES = 100_000  # masks of nodes take time with the square of their number
_EXAMPLE = '[[nodes]]\ncount = 64\ngpus = 8\ntype = "H100"'
_NODE_KEYS = {"count", "gpus", "type", "domain", "nodes_per_domain", "cpus", "memory_gib"}
_TYPE_KEYS = {"busy_w", "idle_w", "dollars_per_hour"}


def read_cluster(path: Path) -> Cluster:
    """A cluster file: `[[nodes]]` tables with count, gpus, type, domain; `[types.NAME]` and `[quotas]` may follow."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(
            f"{path}: not a TOML file: {error}", hint=f"a cluster file is, for example: {_EXAMPLE!r}"
        ) from None
    nodes: list[Node] = []
    for place, table in enumerate(_tables(path, content), 1):
        nodes += _nodes(path, place, table, len(nodes))
        if len(nodes) > MOST_NODES:
            raise InputError(f"{path}: a cluster must have at most {MOST_NODES:,} nodes, but has {len(nodes):,}")
    return Cluster(nodes=tuple(nodes), types=_types(path, content), quotas=_quotas(path, content))


def _tables(path: Path, content: dict[str, Any]) -> list[dict[str, Any]]:
    unknown = sorted(set(content) - {"nodes", "types", "quotas"})
    if unknown:
        raise InputError(f"{path}: a cluster file has [[nodes]], [types] and [quotas], but also `{unknown[0]}`")
    tables = content.get("nodes")
    if not isinstance(tables, list) or not tables or not all(isinstance(table, dict) for table in tables):
        raise InputError(
            f"{path}: a cluster file needs at least one [[nodes]] table", hint=f"for example: {_EXAMPLE!r}"
        )
    return tables


def _nodes(path: Path, place: int, table: dict[str, Any], before: int) -> list[Node]:
    unknown = sorted(set(table) - _NODE_KEYS)
    if unknown:
        raise InputError(f"{path}: [[nodes]] number {place}: `{unknown[0]}` is none of {', '.join(sorted(_NODE_KEYS))}")
    count, gpus = (
        _positive(path, f"[[nodes]] number {place}: {key}", table.get(key, 1 if key == "count" else None))
        for key in ("count", "gpus")
    )
    per_domain = table.get("nodes_per_domain")
    size = _positive(path, f"[[nodes]] number {place}: nodes_per_domain", per_domain) if per_domain is not None else 0
    cpus, memory = (_amount(path, f"[[nodes]] number {place}: {key}", table.get(key)) for key in ("cpus", "memory_gib"))
    return [
        Node(
            name=f"n{before + i}",
            num_gpus=gpus,
            gpu_type=str(table.get("type", "gpu")),
            domain=str(table.get("domain", "")) + (f"{place}.{i // size}" if size else ""),
            num_cpus=cpus,
            memory_bytes=None if memory is None else memory * 2**30,
        )
        for i in range(count)
    ]


def _types(path: Path, content: dict[str, Any]) -> dict[str, GpuType]:
    found = {}
    tables = content.get("types", {})
    if not isinstance(tables, dict):
        raise InputError(f"{path}: [types] must hold a table for each type, but is {tables!r}")
    for name, table in tables.items():
        unknown = sorted(set(table) - _TYPE_KEYS) if isinstance(table, dict) else [str(table)]
        if unknown:
            raise InputError(f"{path}: [types.{name}]: `{unknown[0]}` is none of {', '.join(sorted(_TYPE_KEYS))}")
        found[name] = GpuType(**{key: _amount(path, f"[types.{name}]: {key}", value) for key, value in table.items()})
    return found


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
        raise InputError(f"{path}: {what} must be a number of 0 or more, but is {value!r}")
    return float(value)
