"""Networks between nodes: options that fit together, shares of the adapters' rate, the bill, and the answer."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from flatout.catalog.fabrics import network_prices, nodes_per_leaf, ports_down
from flatout.cost.networks import network_bill
from flatout.errors import InputError, UsageError
from flatout.plan.cables import exchange_share, neighbour_share
from flatout.plan.clusters import cluster as named_cluster
from flatout.plan.details import inputs_of
from flatout.plan.fabrics import FabricRequest, with_fabric
from flatout.plan.inputs import CostModelInputs
from flatout.plan.search import plan as search
from flatout.plan_pipeline import PlanRequest, search_context, with_network
from flatout.records.plan import ClusterSpec, Layout, Plan
from flatout.report.network_text import network_sentences


def cluster(name: str = "h100x512", **options: object) -> ClusterSpec:
    return with_fabric(named_cluster(name)[0], msgspec.convert(options, FabricRequest))


def test_without_options_the_cluster_stays() -> None:
    assert cluster() == named_cluster("h100x512")[0]


@pytest.mark.parametrize(("oversubscription", "down"), [(1, 32), (3, 48), (4, 51), (7, 56)])
def test_the_ports_of_a_leaf_switch_are_shared_by_the_oversubscription(oversubscription: float, down: int) -> None:
    assert ports_down(oversubscription) == down


def test_a_leaf_serves_four_nodes_of_eight_adapters_or_with_rails_one_adapter_of_32_nodes() -> None:
    assert nodes_per_leaf("fat-tree", 1, 8) == 4
    assert nodes_per_leaf("rail", 1, 8) == 32
    assert nodes_per_leaf("fat-tree", 1, 64) == 1
    assert cluster(fabric="rail").pod_gpus == 32 * 8
    assert cluster(oversubscription=3.0, leaf_nodes=2).pod_gpus == 2 * 8


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fabric": "mesh"}, "must be one of fat-tree, rail, ring, torus"),
        ({"fabric": "ring", "oversubscription": 2.0}, "`--oversubscription` is for switches"),
        ({"fabric": "torus", "leaf_nodes": 2}, "`--leaf-nodes` is for switches"),
        ({"fabric": "rail", "torus": "8x8"}, "`--torus` is for a torus"),
        ({"torus": "8"}, "two or three dimensions"),
        ({"torus": "8x-8"}, "two or three dimensions"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        cluster(**options)


def test_a_torus_must_have_as_many_nodes_as_the_cluster() -> None:
    assert cluster(torus="4x16").torus == (4, 16)
    assert cluster(torus="4x4x4").torus == (4, 4, 4)
    assert cluster(fabric="torus").torus == (8, 8)
    assert cluster(fabric="ring").torus == (64,)
    with pytest.raises(InputError, match="a torus of 8x9 has 72 nodes, but the cluster has 64"):
        cluster(torus="8x9")


# The bill, counted by hand.


def parts(made: ClusterSpec) -> tuple[int, int]:
    bill = network_bill(made)
    return bill.num_switches, bill.num_links


def test_a_fat_tree_of_64_nodes_has_16_leaves_and_8_spines() -> None:
    # 512 adapters, 32 below each of 16 leaves, 512 uplinks to 8 spines of 64 ports.
    assert parts(cluster(fabric="fat-tree", oversubscription=1.0)) == (16 + 8, 512 + 512)


def test_oversubscription_leaves_out_uplinks_and_spines() -> None:
    # Six nodes, 48 adapters, below each of 11 leaves; a quarter of 512 adapters leads up.
    assert parts(cluster(oversubscription=4.0)) == (11 + 2, 512 + 128)


def test_rails_need_as_many_switches_as_a_fat_tree() -> None:
    # Two groups of 32 nodes, with eight leaves each.
    assert parts(cluster(fabric="rail")) == (16 + 8, 512 + 512)


def test_a_few_nodes_need_one_switch_and_one_node_none() -> None:
    assert parts(cluster("h100x32", fabric="fat-tree")) == (1, 32)
    assert parts(cluster("h100x8", fabric="fat-tree")) == (0, 0)


def test_more_leaves_than_a_spine_has_ports_need_a_third_level() -> None:
    # 8,192 GPUs: 256 leaves with 8,192 uplinks to 256 middle switches, and 8,192 more links to 128 top switches.
    assert parts(cluster("h100x8192", fabric="fat-tree")) == (256 + 256 + 128, 3 * 8192)
    assert parts(cluster("h100x2048", fabric="fat-tree")) == (64 + 32, 2 * 2048)
    assert parts(cluster("h100x2080", fabric="fat-tree"))[1] == 3 * 2080


def test_a_torus_has_a_cable_for_two_adapters_and_no_switch() -> None:
    assert parts(cluster(fabric="torus")) == (0, 256)


def test_the_price_is_that_of_the_parts() -> None:
    bill = network_bill(cluster(oversubscription=4.0))
    switch, link = network_prices().switch[0], network_prices().link[0]
    assert bill.typical_usd == 13 * switch.typical + 640 * link.typical
    assert bill.low_usd < bill.typical_usd < bill.high_usd
    assert switch.source
    assert link.date
    assert bill.note == ""


def test_adapters_of_another_rate_than_the_priced_parts_are_told() -> None:
    slower = msgspec.structs.replace(cluster(fabric="rail"), nic_bytes_per_s=25e9)
    assert "an adapter here has 200 Gbit/s" in network_bill(slower).note
    within = msgspec.structs.replace(cluster(fabric="rail"), nic_bytes_per_s=50e9 * 1.09)
    assert network_bill(within).note == ""
    beyond = msgspec.structs.replace(cluster(fabric="rail"), nic_bytes_per_s=50e9 * 1.11)
    assert network_bill(beyond).note != ""


# Cables.


def inputs(**options: object) -> CostModelInputs:
    fabric = msgspec.convert(options, FabricRequest)
    request = PlanRequest(model="llama3-8b", cluster="h100x512", global_batch=512, seq=2048, fabric=fabric)
    return inputs_of(search_context(request, lambda _: None), Layout(dp=512))


def share(made: CostModelInputs, stride: float) -> float:
    return float(np.ravel(neighbour_share(made, stride))[0])


def test_with_switches_all_of_the_adapters_rate_is_left() -> None:
    assert share(inputs(fabric="rail"), 64) == 1.0
    assert float(exchange_share(inputs(), 512)) == 1.0


def test_a_neighbour_has_one_of_the_nodes_cables() -> None:
    assert share(inputs(fabric="ring"), 8) == pytest.approx(1 / 2)
    assert share(inputs(torus="8x8"), 8) == pytest.approx(1 / 4)
    assert share(inputs(torus="4x4x4"), 8) == pytest.approx(1 / 6)


def test_transfers_of_several_hops_share_cables() -> None:
    ring = inputs(fabric="ring")
    assert share(ring, 8 * 3) == pytest.approx(1 / 2 / 3)
    assert share(ring, 8 * 61) == pytest.approx(1 / 2 / 3)  # three hops the other way round
    torus = inputs(torus="8x8")
    assert share(torus, 8 * 8) == pytest.approx(1 / 4)  # the next row is one hop away
    assert share(torus, 8 * 8 * 2) == pytest.approx(1 / 4 / 2)


def test_an_exchange_among_all_nodes_of_a_ring_goes_a_quarter_of_it_in_the_mean() -> None:
    assert float(np.ravel(exchange_share(inputs(fabric="ring"), 512))[0]) == pytest.approx(1 / 16)
    assert float(np.ravel(exchange_share(inputs(torus="8x8"), 512))[0]) == pytest.approx(1 / 4)


# The answer.


def answered(**options: object) -> Plan:
    fabric = msgspec.convert(options, FabricRequest)
    request = PlanRequest(model="llama3-70b", cluster="h100x512", global_batch=1024, seq=8192, fabric=fabric)
    context = search_context(request, lambda _: None)
    fixed = ("tp=1", "pp=1", "zero=3")
    return with_network(search(context, num_layouts=1, fixed=fixed), context, request.fabric, fixed)


def test_an_oversubscribed_network_saves_money_and_costs_time() -> None:
    answer = answered(oversubscription=8.0, leaf_nodes=4).network
    assert answer is not None
    assert answer.step_time_s > answer.full_step_time_s
    assert answer.bill.typical_usd < answer.full_bill.typical_usd
    assert answer.usd_per_gpu_hour is not None
    assert answer.slower_usd_per_year is not None
    lost = 1 - answer.full_step_time_s / answer.step_time_s
    assert answer.slower_usd_per_year == pytest.approx(512 * answer.usd_per_gpu_hour * 8766 * lost)
    text = " ".join(network_sentences(answer))
    assert "oversubscribed 8 to 1" in text
    assert "longer than" in text
    assert "less than the fat-tree" in text
    assert "of GPU time" in text


def test_the_same_network_is_as_fast_and_costs_as_much() -> None:
    answer = answered(fabric="fat-tree", oversubscription=1.0).network
    assert answer is not None
    assert answer.step_time_s == answer.full_step_time_s
    text = " ".join(network_sentences(answer))
    assert "as long as" in text
    assert "costs as much as" in text
    assert "GPU time" not in text


def test_a_difference_of_half_a_per_cent_counts() -> None:
    answer = answered(fabric="fat-tree", oversubscription=1.0).network
    assert answer is not None
    for more, words in ((0.0051, "longer than"), (0.0049, "as long as")):
        slower = msgspec.structs.replace(answer, step_time_s=answer.full_step_time_s * (1 + more))
        assert words in network_sentences(slower)[1]


def test_without_options_there_is_no_answer() -> None:
    assert answered().network is None
