"""The rule `exposed-communication`."""

from __future__ import annotations

import numpy as np
import pytest
from tests.diagnose.jobs import GEMM, STEP, found, free_of_recorder_cost, names, times

from flatout.diagnose.rules.exposed_communication import follows_an_end
from flatout.testing import TraceBuilder

MIB = 2**20


def reducing(
    transfer: float, *, world_size: int = 2, num_elements: int = 2 * MIB, late: float = 0
) -> list[TraceBuilder]:
    """All ranks compute, then reduce in the open; the last rank arrives `late` us after the others."""
    traces = [TraceBuilder(rank, world_size) for rank in range(world_size)]
    for trace in traces:
        for number, at in times(2):
            mine = late if trace.rank == world_size - 1 else 0
            length = STEP - 5 - transfer - late + mine
            trace.step(number, at, STEP).launch(GEMM, at, 5, at + 5, length)
            trace.collective("allreduce", at + 5, at + 5 + length, at + STEP - (at + 5 + length),
                             num_elements=num_elements)  # fmt: skip
    return traces


def test_transfer_in_the_open_costs_its_time() -> None:
    finding = found(free_of_recorder_cost(*reducing(4000)), "exposed-communication")
    assert finding.cost_s_per_step == pytest.approx(4000e-6)
    assert finding.ranks == (0, 1)
    assert finding.confidence == "high"
    assert finding.evidence["exposed_by_operation_s"] == pytest.approx({"all_reduce": 4000e-6})
    assert finding.evidence["hidden_share"] == pytest.approx(0)
    assert finding.evidence["backend"] == "nccl"


def test_waiting_for_a_late_rank_is_not_transfer() -> None:
    diagnosis = free_of_recorder_cost(*reducing(1000, late=3000))
    assert found(diagnosis, "exposed-communication").cost_s_per_step == pytest.approx(1000e-6)
    assert found(diagnosis, "straggler").cost_s_per_step == pytest.approx(3000e-6)


@pytest.mark.parametrize(("world_size", "factor"), [(2, 1.0), (4, 1.5)])
def test_the_bandwidth_is_that_of_the_bus(world_size: int, factor: float) -> None:
    """8 MiB in 4 ms; an all-reduce moves 2 (n - 1) / n times its size over each link."""
    finding = found(free_of_recorder_cost(*reducing(4000, world_size=world_size)), "exposed-communication")
    expected = 8 * MIB / 4e-3 * factor
    assert finding.evidence["bus_bandwidth_bytes_per_s"] == pytest.approx(expected)
    assert f"{expected / 1e9:.3g} GB/s" in finding.title


def test_the_bandwidth_is_of_the_transfer_without_the_wait() -> None:
    finding = found(free_of_recorder_cost(*reducing(1000, late=3000)), "exposed-communication")
    assert finding.evidence["bus_bandwidth_bytes_per_s"] == pytest.approx(8 * MIB / 1e-3)


def test_the_bandwidth_is_the_median_of_collectives_of_at_least_a_quarter_of_the_largest() -> None:
    """16 MiB in 160 us, 4 MiB in 80 us, and 3.9 MiB in 400 us, which is not counted: the mean of 105 and 52 GB/s."""
    sizes = {16 * MIB: 160, 4 * MIB: 80, int(3.9 * MIB): 400}
    traces = [TraceBuilder(rank) for rank in (0, 1)]
    for trace in traces:
        for number, at in times(2):
            trace.step(number, at, STEP).launch(GEMM, at, 5, at + 5, STEP - 1005)
            begin = at + STEP - 1000
            for place, (size, length) in enumerate(sizes.items()):
                trace.collective("allreduce", at + 10 + place, begin, length, num_elements=size // 4)
                begin += length
    finding = found(free_of_recorder_cost(*traces), "exposed-communication")
    expected = (16 * MIB / 160e-6 + 4 * MIB / 80e-6) / 2
    assert finding.evidence["bus_bandwidth_bytes_per_s"] == pytest.approx(expected, rel=0.001)


@pytest.mark.parametrize(("transfer", "is_known"), [(700, True), (300, False)])
def test_where_most_of_it_cannot_be_split_it_is_inconclusive(transfer: float, is_known: bool) -> None:
    """The rest of the 1000 us of exposed communication is in groups with a missing rank."""
    traces = [TraceBuilder(rank, 3) for rank in (0, 1)]
    for trace in traces:
        for number, at in times(2):
            trace.step(number, at, STEP).launch(GEMM, at, 5, at + 5, STEP - 1005)
            both, other = {"group": "1", "group_ranks": (0, 1)}, {"group": "2", "group_ranks": (trace.rank, 2)}
            trace.collective("allreduce", at + 10, at + STEP - 1000, transfer, **both)
            trace.collective("allreduce", at + 11, at + STEP - 1000 + transfer, 1000 - transfer, **other)
    finding = found(free_of_recorder_cost(*traces), "exposed-communication")
    assert finding.cost_s_per_step == pytest.approx(1000e-6, rel=0.001)
    assert finding.confidence == ("high" if is_known else "inconclusive")


def test_small_messages_show_no_bandwidth() -> None:
    finding = found(free_of_recorder_cost(*reducing(4000, num_elements=1024)), "exposed-communication")
    assert finding.evidence["bus_bandwidth_bytes_per_s"] is None
    assert "GB/s" not in finding.title


def test_what_is_hidden_costs_nothing_and_is_told() -> None:
    """Half of 4000 us runs under a kernel of another stream."""
    traces = reducing(4000)
    for trace in traces:
        for _, at in times(2):
            trace.launch(GEMM, at + 6, 1, at + STEP - 4000, 2000, stream=20)
    finding = found(free_of_recorder_cost(*traces), "exposed-communication")
    assert finding.cost_s_per_step == pytest.approx(2000e-6)
    assert finding.evidence["total_transfer_s"] == pytest.approx(4000e-6)
    assert finding.evidence["hidden_share"] == pytest.approx(0.5)


def test_without_the_other_ranks_it_is_inconclusive() -> None:
    """Rank 0 of two: its 4000 us may be waiting as well."""
    finding = found(free_of_recorder_cost(reducing(1000, late=3000)[0]), "exposed-communication")
    assert finding.cost_s_per_step == pytest.approx(4000e-6)
    assert finding.confidence == "inconclusive"
    assert "waiting or transfer" in finding.title
    assert finding.evidence["exposed_unsplit_s"] == pytest.approx(4000e-6)
    assert finding.evidence["bus_bandwidth_bytes_per_s"] is None
    assert finding.evidence["hidden_share"] is None


@pytest.mark.parametrize(("transfer", "is_told"), [(190, False), (210, True)])
def test_below_two_percent_of_the_step_it_is_not_told(transfer: float, is_told: bool) -> None:
    assert ("exposed-communication" in names(free_of_recorder_cost(*reducing(transfer)))) == is_told


def test_the_last_step_may_not_be_matched_by_a_truncated_recording_and_the_rest_is_known() -> None:
    """A third of the communication is unsplit: the finding is still conclusive."""
    traces = reducing(3000)
    traces[0].collective("allreduce", STEP + 10, 2 * STEP, 1000)
    assert found(free_of_recorder_cost(*traces), "exposed-communication").confidence == "high"


def test_exposed_times_by_operation_sum_to_the_exposed_time_on_the_cpu_too() -> None:
    """Functional collectives of gloo have operators and no annotation of the kind that DDP's have."""
    trace = TraceBuilder(0, 2).step(1, 0, STEP)
    trace.op("aten::mm", 0, 5000).op("c10d::allreduce_", 5000, 2000).annotation("gloo:all_reduce", 7000, 3000)
    finding = found(free_of_recorder_cost(trace), "exposed-communication")
    assert finding.cost_s_per_step == pytest.approx(5000e-6)
    assert sum(finding.evidence["exposed_by_operation_s"].values()) == pytest.approx(5000e-6)


@pytest.mark.parametrize(
    ("after_us", "exposed_us", "follows"), [(49, 100, True), (51, 100, False), (499, 2000, True), (501, 2000, False)]
)
def test_a_launch_soon_after_a_transfer_may_have_waited_for_it(after_us: int, exposed_us: int, follows: bool) -> None:
    end_ns = np.array([1_000_000, 9_000_000])
    launch_ns = end_ns[:1] + after_us * 1000
    assert follows_an_end(launch_ns, end_ns, np.array([exposed_us * 1000])).tolist() == [follows]
