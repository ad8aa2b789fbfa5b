"""What nodes can allocate to pods: as kubectl says it, and as an operator writes it."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import pytest

from flatout.errors import InputError
from flatout.read.kubernetes_nodes import read_kubernetes_nodes
from flatout.records.pods import GIB, Taint
from flatout.records.quantity import cpu_text, memory_text, parse_quantity

DATA = Path(__file__).parents[1] / "data" / "readers"


def test_nodes_are_read_by_what_they_can_allocate_and_not_by_their_capacity() -> None:
    gpus, cpus = read_kubernetes_nodes(DATA / "kubernetes_nodes.json")
    assert (gpus.count, gpus.cpu_m, gpus.memory_bytes) == (2, 200_000, 2000 * GIB)
    assert gpus.resources == {"nvidia.com/gpu": 8, "rdma/hca": 4}
    assert gpus.labels == {"nvidia.com/gpu.memory": "81559", "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
    assert gpus.taints == (Taint(key="nvidia.com/gpu", value="present"),)
    assert (cpus.count, cpus.cpu_m, cpus.num_gpus) == (1, 3920, 0), "cordoned and lost nodes take no pods"


def test_a_table_has_what_is_allocatable_or_the_capacity_less_what_is_reserved() -> None:
    first, second = read_kubernetes_nodes(DATA / "kubernetes_nodes.toml")
    assert (first.count, first.cpu_m, first.memory_bytes) == (16, 94_000, 1900 * GIB)
    assert (first.daemonsets_cpu_m, first.daemonsets_memory_bytes) == (1500, 6 * GIB)
    assert (second.count, second.cpu_m, second.memory_bytes, second.num_gpus) == (4, 62_000, 480 * GIB, 4)
    assert second.daemonsets_cpu_m is None


def test_one_node_of_kubectl_is_no_list(tmp_path: Path) -> None:
    path = tmp_path / "n.json"
    path.write_text(json.dumps({"kind": "List", "items": [{"kind": "Pod"}]}))
    with pytest.raises(InputError, match="has objects of kind Pod, not nodes"):
        read_kubernetes_nodes(path)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('[[nodes]]\ncapacity = { cpu = 8, memory = "1Gi" }', "must have `allocatable`, or `capacity` and `reserved`"),
        (
            '[[nodes]]\ncapacity = { cpu = 8, memory = "8Gi" }\nreserved = { cpu = 8 }',
            "`reserved` cpu must be less than its capacity",
        ),
        ('[[nodes]]\nallocatable = { cpu = 8 }', "allocatable `memory` must be more than 0"),
        (
            "[[nodes]]\nallocatable = { cpu = \"8 cores\", memory = \"1Gi\" }",
            "must be a quantity, e.g. 94, 94500m or 1900Gi",
        ),
        ('[[nodes]]\nallocatable = { cpu = -8, memory = "1Gi" }', "must be a quantity"),
        ('[[nodes]]\nallocatable = { cpu = inf, memory = "1Gi" }', "must be a quantity"),
        ('[[nodes]]\nallocatable = { cpu = 8, memory = "9e99" }', "must be a quantity"),
        ('[[nodes]]\ncount = 0\nallocatable = { cpu = 8, memory = "1Gi" }', "`count` must be from 1"),
        ('[[nodes]]\ncpus = 8', "`cpus` in `nodes[1]` is not a known name; these are: count, allocatable"),
        ('[[nodes]]\ncount = "16"', '`nodes[1].count` must be a whole number, but is "16"'),
        ('[[nodes]]\nallocatable = { cpu = [8] }', "`nodes[1].allocatable.cpu` must be a quantity, such as 94"),
        ('[[nodes]]\ntaints = [{ value = "a" }]', "`nodes[1].taints[1].key` is missing"),
        ('[nodes]\ncount = 16', "`nodes` must be a list, each item a table with some of count, allocatable"),
        ('{"kind": "List", "items": 3}', "`items` must be a list"),
        ('{"kind": "List", "items": [{"status": {"allocatable": {"cpu": null}}}]}', "a quantity, such as 94"),
        ("nodes = []", "has no node that takes pods"),
        ('{"kind": "List", "items": []}', "has no node that takes pods"),
        ('{"kind": "List", "items": [{"metadata": {"name": "a"}}]}', "node a: status.allocatable is missing"),
        ("{", "is neither a TOML of nodes nor the output of"),
        ("[[nodes", "is neither a TOML of nodes nor the output of"),
    ],
)  # fmt: skip
def test_a_file_that_does_not_say_what_pods_can_have_is_refused_in_one_line(
    tmp_path: Path, text: str, why: str
) -> None:
    path = tmp_path / "nodes"
    path.write_text(text)
    with pytest.raises(InputError) as error:
        read_kubernetes_nodes(path)
    assert why in str(error.value) and "\n" not in str(error.value)
    assert "Expected `" not in str(error.value), "the words of the decoder"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("94", 94),
        ("94500m", Fraction(189, 2)),
        ("1900Gi", 1900 * GIB),
        ("2113521Mi", 2113521 * 2**20),
        ("129e6", 129_000_000),
        ("1.5Gi", GIB * 3 // 2),
        ("123Ki", 123 * 1024),
        ("1E", 10**18),
        ("0", 0),
        (".5", Fraction(1, 2)),
        ("9223372036854775807", 2**63 - 1),
    ],
)
def test_quantities_are_those_of_kubernetes(text: str, value: int | Fraction) -> None:
    assert parse_quantity(text) == value


@pytest.mark.parametrize(
    "text", ["", "-1", "1gi", "1 Gi x", "0x10", "1e", "inf", "nan", "9223372036854775808", "1E9Gi"]
)
def test_what_kubernetes_would_refuse_is_no_quantity(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the text is the whole message
        parse_quantity(text)


def test_quantities_are_written_without_losing_or_adding() -> None:
    assert [cpu_text(number) for number in (1, 1500, 48_000)] == ["1m", "1500m", "48"]
    assert [memory_text(number) for number in (GIB, GIB * 3 // 2, GIB - 1)] == ["1Gi", "1536Mi", "1023Mi"]
