"""The bytes of each link: worked out by hand, and compared with a computation transfer by transfer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from tests.placement.fabrics import ADAPTER, EIGHT, LAYOUTS_OF_EIGHT, LAYOUTS_OF_SIX, SIX, exchanges, fabric
from tests.placement.scalar import scalar_seconds

from flatout.placement.cost import costs
from flatout.placement.groups import LayoutDegrees
from flatout.placement.loads import link_bytes
from flatout.placement.network import Network
from flatout.records.placement import Fabric, GroupExchange, LinkKind, Pattern


def exchange(pattern: Pattern, *groups: Sequence[int], num_bytes: float = 100.0) -> GroupExchange:
    return GroupExchange(
        name="data", pattern=pattern, groups=tuple(tuple(group) for group in groups), bytes_to_neighbour=num_bytes
    )


def loads(
    network: Fabric, one: GroupExchange, order: Sequence[int] | None = None
) -> dict[tuple[str, LinkKind], list[float]]:
    """Return the bytes of each link that carries any, by direction."""
    links = Network(network)
    slots = np.arange(network.num_gpus) if order is None else np.array(order)
    row = link_bytes(links, one, slots[None])[0]
    named = [((name, kind), row[list(numbers)].tolist()) for name, kind, numbers in links.names()]
    return {key: values for key, values in named if any(values)}


def test_a_ring_of_four_nodes_sends_once_over_each_adapter_and_crosses_each_leaf_once() -> None:
    network = fabric("fat-tree", 4, 1, leaves=(0, 0, 1, 1))
    assert loads(network, exchange(Pattern.COLLECTIVE_RING, range(4))) == {
        **{(f"node-{node} GPU 0", LinkKind.ADAPTER): [100.0, 100.0] for node in range(4)},
        ("leaf 0", LinkKind.CORE): [100.0, 100.0],
        ("leaf 1", LinkKind.CORE): [100.0, 100.0],
    }


def test_nccl_visits_nodes_by_their_lowest_ranks_so_that_alternating_leaves_cost_two_crossings_more() -> None:
    network = fabric("fat-tree", 4, 1, leaves=(0, 1, 0, 1))
    found = loads(network, exchange(Pattern.COLLECTIVE_RING, range(4)))
    assert found["leaf 0", LinkKind.CORE] == [200.0, 200.0]
    sorted_by_leaf = loads(network, exchange(Pattern.COLLECTIVE_RING, range(4)), order=[0, 2, 1, 3])
    assert sorted_by_leaf["leaf 0", LinkKind.CORE] == [100.0, 100.0]


def test_a_group_with_two_ranks_a_node_shares_its_ring_between_two_adapters() -> None:
    network = fabric("fat-tree", 2, 2)
    found = loads(network, exchange(Pattern.COLLECTIVE_RING, range(4)))
    assert {values[0] for (_, kind), values in found.items() if kind is LinkKind.ADAPTER} == {50.0}
    assert {values[0] for (_, kind), values in found.items() if kind is LinkKind.NVLINK} == {100.0}


def test_a_group_within_a_node_uses_nvlink_only() -> None:
    network = fabric("fat-tree", 2, 2)
    found = loads(network, exchange(Pattern.COLLECTIVE_RING, [0, 1], [2, 3]))
    assert {kind for _, kind in found} == {LinkKind.NVLINK}
    assert list(found.values()) == [[100.0, 100.0]] * 4


def test_gpus_of_a_node_without_nvlink_between_them_use_pcie() -> None:
    network = fabric("fat-tree", 1, 4, nvlink_gpus=2)
    found = loads(network, exchange(Pattern.COLLECTIVE_RING, range(4)))
    assert found["node-0 GPU 0", LinkKind.NVLINK] == [100.0, 0.0]
    assert found["node-0 GPU 1", LinkKind.HOST] == [100.0, 0.0]


def test_an_nvlink_domain_of_two_nodes_needs_no_network() -> None:
    network = fabric("fat-tree", 4, 2, leaves=(0, 0, 1, 1), nvlink_gpus=4)
    found = loads(network, exchange(Pattern.COLLECTIVE_RING, range(4), range(4, 8)))
    assert {kind for _, kind in found} == {LinkKind.NVLINK}


def test_equal_local_ranks_of_a_rail_need_no_uplink_and_others_do() -> None:
    network = fabric("rail", 2, 2, oversubscription=4)
    on_rails = loads(network, exchange(Pattern.COLLECTIVE_RING, [0, 2], [1, 3]))
    assert {kind for _, kind in on_rails} == {LinkKind.ADAPTER}
    across = loads(network, exchange(Pattern.COLLECTIVE_RING, [0, 3]))
    assert across["leaf 0 rail 0", LinkKind.CORE] == [100.0, 100.0]


def test_tokens_for_another_rail_go_over_nvlink_to_the_gpu_on_that_rail() -> None:
    network = fabric("rail", 2, 2)
    found = loads(network, exchange(Pattern.ALL_TO_ALL, [0, 3]))
    assert found == {
        ("node-0 GPU 0", LinkKind.NVLINK): [100.0, 0.0],
        ("node-0 GPU 1", LinkKind.NVLINK): [0.0, 100.0],
        ("node-0 GPU 1", LinkKind.ADAPTER): [100.0, 0.0],
        ("node-1 GPU 1", LinkKind.ADAPTER): [0.0, 100.0],
        ("node-1 GPU 1", LinkKind.NVLINK): [100.0, 0.0],
        ("node-1 GPU 0", LinkKind.NVLINK): [0.0, 100.0],
        ("node-1 GPU 0", LinkKind.ADAPTER): [100.0, 0.0],
        ("node-0 GPU 0", LinkKind.ADAPTER): [0.0, 100.0],
    }


def test_a_chain_sends_both_ways_between_neighbours_and_a_closed_one_also_between_its_ends() -> None:
    network = fabric("fat-tree", 3, 1)
    ends = ("node-0 GPU 0", LinkKind.ADAPTER)
    assert loads(network, exchange(Pattern.CHAIN, range(3)))[ends] == [100.0, 100.0]
    assert loads(network, exchange(Pattern.CHAIN, range(3)))["node-1 GPU 0", LinkKind.ADAPTER] == [200.0, 200.0]
    assert loads(network, exchange(Pattern.CLOSED_CHAIN, range(3)))[ends] == [200.0, 200.0]


def test_in_a_ring_of_nodes_a_transfer_takes_the_shortest_way_and_two_equal_ways_share_it() -> None:
    network = fabric("ring", 5, 1, shape=(5,))
    assert loads(network, exchange(Pattern.CHAIN, [0, 3])) == {
        ("node-0 to node-4", LinkKind.CABLE): [100.0],
        ("node-4 to node-3", LinkKind.CABLE): [100.0],
        ("node-3 to node-4", LinkKind.CABLE): [100.0],
        ("node-4 to node-0", LinkKind.CABLE): [100.0],
    }
    halves = loads(fabric("ring", 4, 1, shape=(4,)), exchange(Pattern.CHAIN, [0, 2]))
    assert len(halves) == 8
    assert set(map(tuple, halves.values())) == {(50.0,)}


def test_in_a_torus_a_transfer_goes_along_one_dimension_after_the_other() -> None:
    network = fabric("torus", 9, 1, shape=(3, 3))
    found = loads(network, exchange(Pattern.CHAIN, [0, 4]))
    assert set(found) == {
        ("node-0 to node-3", LinkKind.CABLE),
        ("node-3 to node-4", LinkKind.CABLE),
        ("node-4 to node-1", LinkKind.CABLE),
        ("node-1 to node-0", LinkKind.CABLE),
    }


def test_uplinks_are_slower_by_the_oversubscription() -> None:
    one = [exchange(Pattern.COLLECTIVE_RING, range(4), num_bytes=ADAPTER)]
    order = np.arange(4)[None]
    for ratio, seconds in ((1.0, 1.0), (2.0, 1.0), (4.0, 2.0)):
        network = fabric("fat-tree", 4, 1, leaves=(0, 0, 1, 1), oversubscription=ratio)
        # A leaf switch of two adapters has 2 / ratio adapters' worth of uplinks.
        assert costs(Network(network), one, order).seconds == pytest.approx([seconds])


@pytest.mark.parametrize("name", EIGHT)
@pytest.mark.parametrize("degrees", LAYOUTS_OF_EIGHT, ids=str)
def test_costs_of_many_orders_equal_those_of_a_computation_transfer_by_transfer(
    name: str, degrees: LayoutDegrees
) -> None:
    _compare(EIGHT[name], degrees)


@pytest.mark.parametrize("name", SIX)
@pytest.mark.parametrize("degrees", LAYOUTS_OF_SIX, ids=str)
def test_costs_equal_those_of_a_computation_transfer_by_transfer_on_six_gpus(name: str, degrees: LayoutDegrees) -> None:
    _compare(SIX[name], degrees)


def _compare(network: Fabric, degrees: LayoutDegrees) -> None:
    random = np.random.default_rng(7)
    orders = np.stack([random.permutation(network.num_gpus) for _ in range(20)])
    found = costs(Network(network), exchanges(degrees), orders).seconds
    expected = [scalar_seconds(network, exchanges(degrees), order.tolist()) for order in orders]
    assert found == pytest.approx(expected, rel=1e-12)
