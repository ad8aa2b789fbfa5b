"""Read what the nodes of a Kubernetes cluster can allocate to pods: a JSON of `kubectl`, or a TOML by hand.

    kubectl get nodes -o json > nodes.json

    [[nodes]]
    count = 16
    allocatable = { cpu = "94", memory = "1900Gi", "nvidia.com/gpu" = 8, "rdma/hca" = 8 }
    labels = { "nvidia.com/gpu.product" = "NVIDIA-H100-80GB-HBM3" }
    daemonsets = { cpu = "1500m", memory = "6Gi" }    # requests of the pods that run on every node

In place of `allocatable`, a TOML can have `capacity` and `reserved`, what the system keeps for itself. Out: groups of
equal nodes. Nodes that take no new pods (cordoned, not ready) are skipped. Capacity alone is refused: a pod that asks
for all of it fits on no node.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any

import msgspec

from flatout.errors import InputError
from flatout.input_files import decode_json, read_bytes, read_toml
from flatout.input_records import FormError, converted
from flatout.records.pods import NodeGroup, Taint
from flatout.records.quantity import parse_quantity

_COMMAND = "kubectl get nodes -o json"
_LABELS = ("nvidia.com/gpu.", "amd.com/gpu.")  # labels by which jobs choose nodes
_BLOCKING = ("NoSchedule", "NoExecute")
_MAX_NODES = 1_000_000
_NOT_COUNTED = ("cpu", "memory", "pods", "ephemeral-storage")
_TABLE_HINT = '[[nodes]] with count = 16 and allocatable = { cpu = "94", memory = "1900Gi", "nvidia.com/gpu" = 8 }'
_QUANTITY = msgspec.Meta(extra_json_schema={"description": 'a quantity, such as 94, "94500m" or "1900Gi"'})
_Quantities = dict[str, Annotated[str | int | float, _QUANTITY]]


class _Metadata(msgspec.Struct, frozen=True):
    name: str = ""
    labels: dict[str, str] = {}


class _Taint(msgspec.Struct, frozen=True):
    key: str
    value: str = ""
    effect: str = "NoSchedule"


class _Spec(msgspec.Struct, frozen=True):
    unschedulable: bool = False
    taints: tuple[_Taint, ...] = ()


class _Condition(msgspec.Struct, frozen=True):
    type: str = ""
    status: str = ""


class _Status(msgspec.Struct, frozen=True):
    allocatable: _Quantities | None = None
    conditions: tuple[_Condition, ...] = ()


class _Node(msgspec.Struct, frozen=True):
    kind: str = "Node"
    metadata: _Metadata = _Metadata()
    spec: _Spec = _Spec()
    status: _Status = _Status()

    @property
    def takes_pods(self) -> bool:
        ready = [condition.status for condition in self.status.conditions if condition.type == "Ready"]
        return not self.spec.unschedulable and ready in ([], ["True"])


class _NodeList(msgspec.Struct, frozen=True):
    kind: str
    items: tuple[_Node, ...]


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A `[[nodes]]` of the TOML."""

    count: int = 1
    allocatable: _Quantities | None = None
    capacity: _Quantities | None = None
    reserved: _Quantities | None = None
    daemonsets: _Quantities = {}
    labels: dict[str, str] = {}
    taints: tuple[_Taint, ...] = ()


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    nodes: tuple[_Table, ...]


def read_kubernetes_nodes(path: Path, *, labels: Collection[str] = ()) -> tuple[NodeGroup, ...]:
    """Read the groups of equal nodes, with the labels that say the GPUs and those in `labels`.

    Raises a one-line InputError for a file that does not say what pods can have.
    """
    is_json = False
    try:
        content = read_bytes(path)
        is_json = content.lstrip().startswith(b"{")
        groups = _listed(path, content, labels) if is_json else _tables(path)
    except OSError as error:
        raise InputError(f"`{path}` cannot be read: {(error.strerror or str(error)).lower()}") from None
    except FormError as error:
        raise InputError(f"`{path}`: {error}", hint=f"{_COMMAND} > nodes.json" if is_json else _TABLE_HINT) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.DecodeError) as error:
        raise InputError(
            f"`{path}` is neither a TOML of nodes nor the output of `{_COMMAND}`: {error}",
            hint=f"{_COMMAND} > nodes.json",
        ) from None
    if not groups:
        raise InputError(f"`{path}` has no node that takes pods", hint=f"{_COMMAND} > nodes.json")
    return groups


def _listed(path: Path, content: bytes, labels: Collection[str]) -> tuple[NodeGroup, ...]:
    nodes = converted(decode_json(content, dict[str, Any]), _NodeList).items
    others = sorted({node.kind for node in nodes} - {"Node"})
    if others:
        raise InputError(f"`{path}` has objects of kind {others[0]}, not nodes", hint=f"{_COMMAND} > nodes.json")
    groups = [_of_node(path, node, labels) for node in nodes if node.takes_pods]
    counts = Counter(msgspec.json.encode(group, order="deterministic") for group in groups)
    return tuple(
        msgspec.structs.replace(msgspec.json.decode(encoded, type=NodeGroup), count=count)
        for encoded, count in counts.items()
    )


def _of_node(path: Path, node: _Node, wanted: Collection[str]) -> NodeGroup:
    where = f"`{path}`: node {node.metadata.name or '(without a name)'}"
    if node.status.allocatable is None:
        raise InputError(f"{where}: status.allocatable is missing", hint=f"{_COMMAND} > nodes.json")
    has = node.metadata.labels
    labels = {name: value for name, value in has.items() if name.startswith(_LABELS) or name in wanted}
    return _group(where, 1, _numbers(where, "allocatable", node.status.allocatable), labels, node.spec.taints)


def _tables(path: Path) -> tuple[NodeGroup, ...]:
    tables = converted(read_toml(path), _File).nodes
    return tuple(_of_table(f"`{path}`: [[nodes]] number {number}", table) for number, table in enumerate(tables, 1))


def _of_table(where: str, table: _Table) -> NodeGroup:
    if not 1 <= table.count <= _MAX_NODES:
        raise InputError(f"{where}: `count` must be from 1 to {_MAX_NODES:,}, but is {table.count}")
    daemonsets = _numbers(where, "daemonsets", table.daemonsets)
    group = _group(where, table.count, _allocatable(where, table), table.labels, table.taints)
    return msgspec.structs.replace(
        group,
        daemonsets_cpu_m=_milli(daemonsets.get("cpu")),
        daemonsets_memory_bytes=_whole(daemonsets.get("memory")),
    )


def _allocatable(where: str, table: _Table) -> dict[str, Fraction]:
    """Return the allocatable resources, as given or as the capacity less what is reserved."""
    if table.allocatable is not None:
        if table.capacity is not None or table.reserved is not None:
            raise InputError(f"{where}: it must have `allocatable`, or `capacity` and `reserved`, but has both")
        return _numbers(where, "allocatable", table.allocatable)
    if table.capacity is None or table.reserved is None:
        raise InputError(
            f"{where}: it must have `allocatable`, or `capacity` and `reserved`, what the system keeps of it",
            hint="the Allocatable block of `kubectl describe node NAME`",
        )
    capacity = _numbers(where, "capacity", table.capacity)
    reserved = _numbers(where, "reserved", table.reserved)
    for name, number in reserved.items():
        if number >= capacity.get(name, Fraction(0)):
            raise InputError(f"{where}: `reserved` {name} must be less than its capacity")
    return {name: number - reserved.get(name, Fraction(0)) for name, number in capacity.items()}


def _group(
    where: str, count: int, allocatable: Mapping[str, Fraction], labels: Mapping[str, str], taints: Sequence[_Taint]
) -> NodeGroup:
    for name in ("cpu", "memory"):
        if not allocatable.get(name):
            raise InputError(f"{where}: allocatable `{name}` must be more than 0")
    devices = {name: int(number) for name, number in allocatable.items() if _is_device(name) and number >= 1}
    return NodeGroup(
        count=count,
        cpu_m=int(allocatable["cpu"] * 1000),
        memory_bytes=int(allocatable["memory"]),
        resources=dict(sorted(devices.items())),
        labels=dict(sorted(labels.items())),
        taints=tuple(
            Taint(key=taint.key, value=taint.value, effect=taint.effect)
            for taint in taints
            if taint.effect in _BLOCKING
        ),
    )


def _is_device(name: str) -> bool:
    return name not in _NOT_COUNTED and not name.startswith(("hugepages-", "attachable-volumes-"))


def _numbers(where: str, field: str, quantities: Mapping[str, Any]) -> dict[str, Fraction]:
    numbers: dict[str, Fraction] = {}
    for name, quantity in quantities.items():
        try:
            numbers[name] = parse_quantity(str(quantity))
        except ValueError:
            raise InputError(
                f"{where}: `{field}` {name} must be a quantity, e.g. 94, 94500m or 1900Gi, but is `{quantity}`"
            ) from None
    return numbers


def _milli(number: Fraction | None) -> int | None:
    return None if number is None else int(number * 1000)


def _whole(number: Fraction | None) -> int | None:
    return None if number is None else int(number)
