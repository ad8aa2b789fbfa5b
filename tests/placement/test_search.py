"""The order that the search finds is as good as the best of all orders."""

from __future__ import annotations

from functools import cache
from itertools import permutations

import msgspec
import numpy as np
import pytest
from tests.placement.fabrics import EIGHT, LAYOUTS_OF_EIGHT, LAYOUTS_OF_SIX, SIX, exchanges, fabric

from flatout.placement.cost import costs
from flatout.placement.fabrics import fabric_of
from flatout.placement.groups import LayoutDegrees
from flatout.placement.network import Network, Slots
from flatout.placement.place import place
from flatout.placement.search import best_node_order, best_order, keeps_nodes_whole, quick_node_order, quick_order
from flatout.plan.clusters import cluster
from flatout.records.placement import Fabric, LinkKind


@cache
def every_order(number: int) -> Slots:
    return np.array(list(permutations(range(number))))


def dimensions(degrees: LayoutDegrees) -> tuple[int, ...]:
    return degrees.tp, degrees.cp, degrees.dp, degrees.pp


def seconds_of(network: Fabric, degrees: LayoutDegrees, order: Slots) -> float:
    return float(costs(Network(network), exchanges(degrees), order[None]).seconds[0])


def least_seconds(network: Fabric, degrees: LayoutDegrees) -> float:
    return float(costs(Network(network), exchanges(degrees), every_order(network.num_gpus)).seconds.min())


@pytest.mark.parametrize("name", EIGHT)
@pytest.mark.parametrize("degrees", LAYOUTS_OF_EIGHT[:2], ids=str)
def test_the_order_of_eight_ranks_is_the_best_of_all_40320(name: str, degrees: LayoutDegrees) -> None:
    network = EIGHT[name]
    least = least_seconds(network, degrees)
    for tries_all in (True, False):
        order = best_order(Network(network), exchanges(degrees), dimensions(degrees), tries_all=tries_all)
        assert sorted(order) == list(range(8))
        assert seconds_of(network, degrees, order) == pytest.approx(least, rel=1e-9)


@pytest.mark.parametrize("name", SIX)
@pytest.mark.parametrize("degrees", LAYOUTS_OF_SIX, ids=str)
def test_the_order_of_six_ranks_is_the_best_of_all_720(name: str, degrees: LayoutDegrees) -> None:
    network = SIX[name]
    least = least_seconds(network, degrees)
    for tries_all in (True, False):
        order = best_order(Network(network), exchanges(degrees), dimensions(degrees), tries_all=tries_all)
        assert seconds_of(network, degrees, order) == pytest.approx(least, rel=1e-9)


@pytest.mark.parametrize("name", [name for name, network in EIGHT.items() if network.gpus_per_node == 2])
def test_the_order_of_nodes_is_the_best_in_which_each_node_has_consecutive_ranks(name: str) -> None:
    network, degrees = EIGHT[name], LayoutDegrees(tp=2, dp=2, pp=2)
    links = Network(network)
    whole = np.stack([order for order in every_order(8) if keeps_nodes_whole(links, order)])
    assert len(whole) == 24
    least = costs(links, exchanges(degrees), whole).seconds.min()
    for tries_all in (True, False):
        order = best_node_order(links, exchanges(degrees), np.array([0, 2, 1, 3, 4, 5, 6, 7]), tries_all=tries_all)
        assert keeps_nodes_whole(links, order)
        assert seconds_of(network, degrees, order) == pytest.approx(float(least), rel=1e-9)


def test_ranks_are_ascending_within_each_node_as_launchers_number_them() -> None:
    for network in (*EIGHT.values(), *SIX.values()):
        degrees = LayoutDegrees(tp=2, dp=network.num_gpus // 2)
        placement = place(network, exchanges(degrees), dimensions(degrees))
        assert all(list(ranks) == sorted(ranks) for ranks in placement.ranks_of_nodes.values())


def test_tensor_groups_that_span_nodes_are_moved_into_nodes() -> None:
    # Four nodes of 4 GPUs, with groups numbered so that the ranks of each tensor group are on four nodes.
    network = fabric("fat-tree", 4, 4, leaves=(0, 0, 1, 1))
    scattered = [
        msgspec.structs.replace(
            exchange, groups=tuple(tuple((rank * 4 + rank // 4) % 16 for rank in group) for group in exchange.groups)
        )
        for exchange in exchanges(LayoutDegrees(tp=4, dp=4))
    ]
    placement = place(network, scattered, (4, 4))
    tensor = next(exchange for exchange in placement.exchanges if exchange.name == "tensor")
    assert (tensor.groups_across_nodes_before, tensor.groups_across_nodes_after) == (4, 0)
    assert tensor.busiest_after is LinkKind.NVLINK
    # Before, 40 GB over adapters of 50 GB/s and 8 GB over NVLink of 450 GB/s; after, the other way round.
    assert placement.seconds_before == pytest.approx(40 / 50 + 8 / 450)
    assert placement.seconds_after == pytest.approx(40 / 450 + 8 / 50)


def test_an_order_that_cannot_be_improved_stays() -> None:
    network = fabric("fat-tree", 2, 4)
    placement = place(network, exchanges(LayoutDegrees(tp=4, dp=2)), (4, 1, 2, 1))
    assert not placement.is_changed
    assert list(placement.ranks_of_nodes.values()) == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert placement.seconds_after == placement.seconds_before


def test_nodes_of_one_leaf_follow_one_another_in_a_large_job() -> None:
    # 16 nodes whose names alternate between two leaf switches: pipeline neighbours cross the core for nothing.
    network = fabric("fat-tree", 16, 4, leaves=[node % 2 for node in range(16)], oversubscription=4)
    degrees = LayoutDegrees(tp=4, dp=2, pp=8)
    placement = place(network, exchanges(degrees), dimensions(degrees))
    assert placement.is_changed
    assert placement.seconds_after < placement.seconds_before
    before = sum(link.bytes_before for link in placement.links if link.kind is LinkKind.CORE)
    after = sum(link.bytes_after for link in placement.links if link.kind is LinkKind.CORE)
    assert after < before / 2


def test_a_job_without_communication_keeps_its_order() -> None:
    placement = place(fabric("fat-tree", 1, 1), [], (1, 1, 1, 1))
    assert (placement.is_changed, placement.seconds_before, placement.links) == (False, 0.0, ())


@pytest.mark.parametrize("name", EIGHT)
@pytest.mark.parametrize("degrees", LAYOUTS_OF_EIGHT, ids=str)
def test_a_quick_search_is_never_worse_than_the_given_order(name: str, degrees: LayoutDegrees) -> None:
    network, given = EIGHT[name], np.arange(8)
    order = quick_order(Network(network), exchanges(degrees), dimensions(degrees))
    of_nodes = quick_node_order(Network(network), exchanges(degrees), order)
    assert sorted(order) == sorted(of_nodes) == list(range(8))
    assert seconds_of(network, degrees, order) <= seconds_of(network, degrees, given) * (1 + 1e-9)
    assert keeps_nodes_whole(Network(network), of_nodes)
    assert seconds_of(network, degrees, of_nodes) <= seconds_of(network, degrees, given) * (1 + 1e-9)


@pytest.mark.parametrize(
    ("num_gpus", "nvlink_gpus"),
    [(256, 64), (144, 72), (72, 72), (68, 68), (76, 4)],  # domains of 72 GPUs, and nodes of 4
)
def test_a_job_has_as_many_nodes_of_one_nvlink_domain_as_of_another(num_gpus: int, nvlink_gpus: int) -> None:
    assert fabric_of(cluster(f"gb200x{num_gpus}")[0]).nvlink_gpus == nvlink_gpus
