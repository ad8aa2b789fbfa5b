"""All ranks together: sums that hold for any job, and what must not matter."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from tests.attribute.strategies import group_traces
from tests.diagnose.jobs import attributed, blame_us, parts_us, totals_ns
from tests.diagnose.simulate import Program, programs, simulated

from flatout.attribute.job import attribute_job
from flatout.attribute.rank import attribute_rank
from flatout.records.diagnosis import Part
from flatout.records.job import JobAttribution
from flatout.testing import TraceBuilder

MANY = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
jobs = st.one_of(programs().map(simulated), group_traces())


def sums_of(job: JobAttribution) -> dict[int, float]:
    """Rank -> all that its waits in whole steps were charged to, in ns."""
    sums: dict[int, float] = {timeline.rank: 0.0 for timeline in job.timelines}
    for piece in job.slices:
        if piece.step is not None:
            sums[piece.waiting_rank] += piece.wait_ns
    return sums


def exact(job: JobAttribution) -> tuple[object, ...]:
    """All of the result that is printed, without rounding."""
    segments = {
        rank: [column.tolist() for column in (s.start_ns, s.end_ns, s.part)] for rank, s in job.segments.items()
    }
    blame = {(b.waiting_rank, b.blamed_rank, b.part): b.wait_s for b in job.blame}
    return segments, blame, job.world_size, job.missing_ranks, job.clock_offset_ns


@MANY
@given(jobs)
def test_the_blame_of_a_rank_is_its_exposed_wait_in_whole_steps(traces: list[TraceBuilder]) -> None:
    job = attributed(*traces)
    sums = sums_of(job)
    for timeline in job.timelines:
        spent = job.segments[timeline.rank].between_ns(timeline.first_step_ns, timeline.window_end_ns)
        assert sums[timeline.rank] == pytest.approx(spent[Part.WAIT], abs=1)
        kernels, until = timeline.communication, job.arrivals[timeline.rank].until_ns
        assert (kernels.start_ns <= until).all()
        assert (until <= kernels.end_ns).all()
    assert all(piece.wait_ns >= 0 for piece in job.slices)


@MANY
@given(jobs)
def test_parts_of_each_step_and_of_the_lead_in_sum_to_its_length(traces: list[TraceBuilder]) -> None:
    job = attributed(*traces)
    for timeline in job.timelines:
        segments = job.segments[timeline.rank]
        assert totals_ns(segments).sum() == timeline.window_end_ns - timeline.window_start_ns
        for step in timeline.steps:
            assert segments.between_ns(step.start_ns, step.end_ns).sum() == step.end_ns - step.start_ns


@MANY
@given(jobs, st.randoms(use_true_random=False))
def test_the_order_of_the_inputs_does_not_matter(traces: list[TraceBuilder], shuffle: object) -> None:
    timelines = [attribute_rank(trace.to_table()) for trace in traces]
    expected = exact(attribute_job(timelines))
    shuffle.shuffle(timelines)  # type: ignore[attr-defined]
    assert exact(attribute_job(timelines)) == expected


@MANY
@given(programs(), st.data())
def test_renumbering_the_ranks_permutes_the_result(program: tuple[int, Program], data: st.DataObject) -> None:
    numbers = data.draw(st.sampled_from(list(permutations(range(program[0])))))
    job, renumbered = attributed(*simulated(program)), attributed(*simulated(program, numbers=numbers))
    # Which of two ranks that arrive in the same nanosecond is the last, nobody can say.
    by_rank = {t.rank: t.communication for t in job.timelines}
    starts = [[int(by_rank[r].start_ns[k]) for r, k in match.kernels.items()] for match in job.matches]
    assume(all(len(set(times)) == len(times) for times in starts))
    for i, number in enumerate(numbers):
        assert parts_us(renumbered, number) == parts_us(job, i)
    expected = {(numbers[w], numbers[b], part): us for (w, b, part), us in blame_us(job).items()}
    assert blame_us(renumbered) == pytest.approx(expected, abs=0.002)


@MANY
@given(programs(), st.data())
def test_a_job_of_fewer_ranks_says_less_but_nothing_else(program: tuple[int, Program], data: st.DataObject) -> None:
    """Parts that need no other rank are the same; a wait is either the same or unknown."""
    traces = simulated(program)
    present = data.draw(st.sets(st.sampled_from(range(len(traces))), min_size=1))
    whole, some = attributed(*traces), attributed(*(traces[i] for i in sorted(present)))
    across = {"wait", "transfer", "communication_unsplit"}
    for rank in present:
        expected, got = parts_us(whole, rank), parts_us(some, rank)
        assert {k: v for k, v in got.items() if k not in across} == {
            k: v for k, v in expected.items() if k not in across
        }
        assert got.get("wait", 0) <= expected.get("wait", 0)
        assert got.get("transfer", 0) <= expected.get("transfer", 0)
    assert some.missing_ranks == tuple(sorted(set(range(len(traces))) - present))


def test_ranks_are_those_of_the_traces_and_missing_ones_are_named() -> None:
    traces = [TraceBuilder(rank, 6).step(1, 0, 100) for rank in (4, 0, 3)]
    job = attributed(*traces)
    assert [timeline.rank for timeline in job.timelines] == [0, 3, 4]
    assert (job.world_size, job.missing_ranks) == (6, (1, 2, 5))


def test_exposed_times_of_the_kernels_sum_to_the_parts() -> None:
    traces = [
        TraceBuilder(0).step(1, 0, 300).collective("allreduce", 1, 10, 90).collective("allreduce", 5, 150, 50),
        TraceBuilder(1).step(1, 0, 300).collective("allreduce", 1, 40, 60).collective("allreduce", 5, 120, 80),
    ]
    traces[0].launch("gemm", 120, 1, 180, 10)
    job = attributed(*traces)
    assert job.exposed_transfer_ns[0].tolist() == [60_000, 40_000]
    assert job.exposed_transfer_ns[1].tolist() == [60_000, 50_000]
    assert parts_us(job, 1)["wait"] == 30
    assert np.array([job.exposed_unsplit_ns[rank] for rank in (0, 1)]).sum() == 0


def test_time_in_calls_beyond_the_recorded_transfers_is_described_as_such() -> None:
    """The call lasts 400 us and the transfer in it 100: no kernel lacks its partner."""
    traces = []
    for rank in (0, 1):
        trace = TraceBuilder(rank).step(1, 0, 1000).op("aten::mm", 0, 500)
        trace.op("c10d::broadcast_", 500, 400).annotation("gloo:broadcast", 600, 100)
        traces.append(trace)
    (note,) = [note for note in attributed(*traces).quality if "cannot be split" in note.effect]
    assert note.problem.startswith("calls of collectives last longer than the transfers")
    assert "0 of" not in note.problem


def test_blame_counts_whole_steps_only_and_the_window_where_there_are_none() -> None:
    """The first collective is in the lead-in: the kernel launched before the step ends at 200."""
    traces = [TraceBuilder(rank) for rank in (0, 1)]
    for trace, late in zip(traces, (0, 60), strict=True):
        trace.launch("gemm", -100, 5, -90, 290)
        trace.collective("allreduce", -60, 210 + late, 90 - late)
        trace.collective("allreduce", 5, 400 + late, 100 - late)
    without = attributed(*traces)
    assert sum(blame_us(without).values()) == 120
    job = attributed(*(trace.step(1, 0, 600) for trace in traces))
    assert {t.first_step_ns for t in job.timelines} == {300_000}
    assert parts_us(job, 0)["wait"] == 120
    assert sum(blame_us(job).values()) == 60
