"""Exposed communication: until when a rank waits, and what is unknown."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.attribute import oracle
from tests.attribute.strategies import group_traces
from tests.diagnose.jobs import attributed, blame_us, parts_us, step_parts_us, totals_ns

from flatout.records.diagnosis import Part
from flatout.testing import TraceBuilder

MANY = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
COMMUNICATION = ("transfer", "wait", "bubble", "communication_unsplit")


def collectives(
    operation: str, starts: list[float], end: float = 100, *, root: int | None = None
) -> list[TraceBuilder]:
    """One collective of all ranks, with each rank's arrival."""
    return [
        TraceBuilder(rank, len(starts)).step(1, 0, 1000).collective(operation, 1, start, end - start, root=root)
        for rank, start in enumerate(starts)
    ]


def split(*traces: TraceBuilder, part: str = "wait") -> list[float]:
    job = attributed(*traces)
    return [parts_us(job, trace.rank).get(part, 0) for trace in traces]


# --- who waits for whom


@pytest.mark.parametrize("operation", ["allreduce", "_allgather_base", "_reduce_scatter_base", "all_to_all", "barrier"])
def test_all_wait_for_the_last_and_then_transfer(operation: str) -> None:
    traces = collectives(operation, [10, 60, 30])
    assert split(*traces) == [50, 0, 30]
    assert split(*traces, part="transfer") == [40, 40, 40]


def test_the_root_of_a_broadcast_does_not_wait_and_the_others_wait_for_it_alone() -> None:
    traces = collectives("broadcast", [10, 60, 90], root=1)
    assert split(*traces) == [50, 0, 0]
    assert split(*traces, part="transfer") == [40, 40, 10]
    assert {(waiting, late) for waiting, late, _ in blame_us(attributed(*traces))} == {(0, 1)}


def test_an_early_root_of_a_broadcast_waits_for_nobody() -> None:
    assert split(*collectives("broadcast", [10, 60, 90], root=0)) == [0, 0, 0]


def test_only_the_root_of_a_reduce_waits_and_for_all() -> None:
    traces = collectives("reduce", [10, 30, 80], root=1)
    assert split(*traces) == [0, 50, 0]
    assert {(waiting, late) for waiting, late, _ in blame_us(attributed(*traces))} == {(1, 2)}


@pytest.mark.parametrize("operation", ["broadcast", "reduce"])
def test_without_a_recorded_root_the_split_is_unknown(operation: str) -> None:
    traces = collectives(operation, [10, 60])
    assert split(*traces, part="communication_unsplit") == [90, 40]
    assert split(*traces) == split(*traces, part="transfer") == [0, 0]


def test_a_root_counted_within_its_group_is_understood() -> None:
    traces = [TraceBuilder(rank, 4).step(1, 0, 200) for rank in (2, 3)]
    for trace, start in zip(traces, (10, 60), strict=True):
        trace.collective("broadcast", 1, start, 100 - start, root=1, group="2", group_ranks=(2, 3))
    assert split(*traces) == [50, 0], "the second of the group is rank 3"


def test_a_receiver_waits_for_the_sender_and_a_sender_for_the_receiver() -> None:
    sender, receiver = (TraceBuilder(rank).step(1, 0, 1000) for rank in (0, 1))
    sender.collective("send", 1, 60, 40, root=1).collective("send", 200, 210, 90, root=1)
    receiver.collective("recv", 1, 10, 90, root=0).collective("recv", 200, 270, 30, root=0)
    # One microbatch in two stages, twice a step: an ideal schedule has (2 - 1) / (2 + 2 - 1) of idle time, 333 of 1000.
    assert split(sender, receiver, part="bubble") == [60, 50]
    assert split(sender, receiver, part="transfer") == [40 + 30, 40 + 30]


# --- exposed or hidden


def test_a_wait_under_compute_is_hidden_and_no_part() -> None:
    early, late = collectives("allreduce", [10, 60])
    early.launch("gemm", 1, 1, 5, 40)
    assert split(early, late) == [15, 0]
    assert split(early, late, part="transfer") == [40, 40]
    assert blame_us(attributed(early, late)) != {}


def test_a_wait_that_is_hidden_whole_is_charged_to_nobody() -> None:
    early, late = collectives("allreduce", [10, 60])
    early.launch("gemm", 1, 1, 5, 70)
    assert split(early, late) == [0, 0]
    assert blame_us(attributed(early, late)) == {}


def test_where_one_kernel_waits_and_another_transfers_it_is_transfer() -> None:
    """Rank 0 waits [10, 60) in the first, and from 30 on the second, whose partner is there already, moves data."""
    early, late = collectives("allreduce", [10, 60])
    early.collective("allreduce", 5, 30, 50, stream=27)
    late.collective("allreduce", 5, 20, 60, stream=27)
    assert split(early, late) == [20, 10]


def test_a_kernel_that_ended_before_the_last_arrival_waited_until_its_end() -> None:
    """Clocks and the recorder err by some microseconds."""
    early, late = TraceBuilder(0).step(1, 0, 100), TraceBuilder(1).step(1, 0, 100)
    early.collective("allreduce", 1, 10, 45)
    late.collective("allreduce", 1, 60, 40)
    assert split(early, late) == [45, 0]
    assert split(early, late, part="transfer") == [0, 40]
    assert attributed(early, late).arrivals[0].until_ns.tolist() == [55_000]


# --- what nobody can know


def test_without_the_other_ranks_wait_and_transfer_are_unknown_and_not_zero() -> None:
    traces = collectives("allreduce", [10, 60, 30])
    for present in (traces[:1], traces[:2], traces[1:]):
        job = attributed(*present)
        for trace, exposed in ((traces[0], 90), (traces[1], 40), (traces[2], 70)):
            if trace in present:
                spent = parts_us(job, trace.rank)
                assert spent["communication_unsplit"] == exposed
                assert not spent.keys() & {"wait", "transfer"}
        assert blame_us(job) == {}


def test_a_broadcast_is_known_where_its_root_is_here() -> None:
    traces = collectives("broadcast", [10, 60, 30], root=1)
    assert split(*traces[:2]) == [50, 0], "the missing third rank is not needed"
    assert split(traces[0], traces[2], part="communication_unsplit") == [90, 70], "the root is missing"


def test_a_group_that_is_whole_is_split_though_others_have_missing_ranks() -> None:
    a, b = (TraceBuilder(rank, 4).step(1, 0, 1000) for rank in (0, 1))
    for trace, start in ((a, 10), (b, 60)):
        trace.collective("allreduce", 1, start, 100 - start, group="1", group_ranks=(0, 1))
        trace.collective("allreduce", 190, 200 + start, 100 - start)
    job = attributed(a, b)
    assert parts_us(job, 0) == parts_us(job, 0) | {"wait": 50, "transfer": 40, "communication_unsplit": 90}


# --- pipelines


def pipeline(num_stages: int, num_microbatches: int, *, unit: float = 100, late_by: float = 0) -> list[TraceBuilder]:
    """Forward passes only: each stage receives, computes one unit and sends, `late_by` later on the last but one stage.

    A receive is posted as soon as the stage is free. Ideal for that shape: (p - 1) / (m + p - 1) idle on each stage.
    """
    traces = [TraceBuilder(rank, num_stages) for rank in range(num_stages)]
    done = [[0.0] * num_microbatches for _ in traces]
    for stage, trace in enumerate(traces):
        free = 0.0
        for batch in range(num_microbatches):
            begin = free
            if stage:
                arrived = done[stage - 1][batch]
                begin = max(free, arrived) + 2
                trace.collective("recv", 0, free, begin - free, root=stage - 1, launch_duration=0)
            length = unit + (late_by if stage == num_stages - 2 else 0)
            trace.launch("gemm", 0, 0, begin, length)
            done[stage][batch] = free = begin + length
            if stage < num_stages - 1:
                trace.collective("send", 0, free, 2, root=stage + 1, launch_duration=0, stream=27)
    for trace in traces:
        trace.step(1, 0, max(done[-1]))
    return traces


def test_waiting_for_the_stage_before_is_bubble() -> None:
    num_stages, num_microbatches = 4, 4
    traces = pipeline(num_stages, num_microbatches)
    job = attributed(*traces)
    (shape,) = job.pipelines
    assert (shape.stages, shape.num_microbatches) == ((0, 1, 2, 3), 4)
    assert shape.ideal_bubble_share == pytest.approx(3 / 7)
    step = job.timelines[3].steps[0]
    length = (step.end_ns - step.start_ns) / 1e3
    spent = parts_us(job, 3)
    assert spent["bubble"] == pytest.approx(3 / 7 * length, abs=10), "filled after three units, of seven"
    assert spent["compute"] == 400


def test_waiting_beyond_the_ideal_bubble_is_wait_for_the_slow_stage() -> None:
    traces = pipeline(4, 4, late_by=100)
    job = attributed(*traces)
    step = job.timelines[3].steps[0]
    length = (step.end_ns - step.start_ns) / 1e3
    spent = step_parts_us(job, 3, 1)
    assert spent["bubble"] == pytest.approx(3 / 7 * length, abs=0.001)
    assert spent["wait"] == pytest.approx(length - 400 - spent["bubble"] - spent["transfer"], abs=0.001)
    assert {key[1:] for key in blame_us(job) if key[0] == 3} == {(2, "compute")}


def test_the_bubble_of_each_step_has_its_own_limit() -> None:
    """Two steps of one microbatch through two stages: half of each may be bubble, whatever the other has."""
    first, last = (TraceBuilder(rank).step(1, 0, 1000).step(2, 1000, 1000) for rank in (0, 1))
    first.collective("send", 0, 300, 10, root=1, launch_duration=0)
    last.collective("recv", 0, 0, 310, root=0, launch_duration=0)
    first.collective("send", 1000, 1900, 10, root=1, launch_duration=0)
    last.collective("recv", 1000, 1000, 910, root=0, launch_duration=0)
    job = attributed(first, last)
    assert step_parts_us(job, 1, 1) == {"bubble": 300, "transfer": 10, "host_launch": 690}
    assert step_parts_us(job, 1, 2) == {"bubble": 500, "wait": 400, "transfer": 10, "host_launch": 90}


def test_separate_pipelines_have_separate_shapes() -> None:
    traces = [TraceBuilder(rank, 4).step(1, 0, 1000) for rank in range(4)]
    for source, target, times in ((0, 2, 1), (1, 3, 3)):
        for start in range(0, 100 * times, 100):
            traces[source].collective("send", start, start + 10, 20, root=target)
            traces[target].collective("recv", start, start + 10, 20, root=source)
    shapes = {shape.stages: shape.num_microbatches for shape in attributed(*traces).pipelines}
    assert shapes == {(0, 2): 1, (1, 3): 3}


# --- against the slow oracle, and the sums


@MANY
@given(group_traces())
def test_wait_and_transfer_are_those_of_the_oracle(traces: list[TraceBuilder]) -> None:
    job = attributed(*traces)
    for rank, expected in oracle.split_communication([trace.to_table() for trace in traces]).items():
        total = totals_ns(job.segments[rank])
        assert (total[Part.TRANSFER], total[Part.WAIT]) == (expected.transfer_ns, expected.wait_ns)


@MANY
@given(group_traces(), st.data())
def test_split_parts_sum_to_the_exposed_communication_and_nothing_else_changes(
    traces: list[TraceBuilder], data: st.DataObject
) -> None:
    present = data.draw(st.sets(st.sampled_from(range(len(traces))), min_size=1))
    traces = [trace for trace in traces if trace.rank in present]
    job = attributed(*traces)
    for timeline in job.timelines:
        before, after = totals_ns(timeline.segments), totals_ns(job.segments[timeline.rank])
        parts = [Part[name.upper()] for name in COMMUNICATION]
        assert after[parts].sum() == before[Part.COMMUNICATION_UNSPLIT]
        others = [part for part in Part if part not in parts]
        assert (after[others] == before[others]).all()
        segments = job.segments[timeline.rank]
        assert (segments.start_ns[1:] == segments.end_ns[:-1]).all()
        assert (segments.end_ns > segments.start_ns).all()
