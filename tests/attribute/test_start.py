"""A start transient is not the regular step: it is reported, and not counted."""

from __future__ import annotations

import pytest
from tests.diagnose.jobs import attributed, diagnosed, free_of_recorder_cost, names

from flatout.attribute.rank import attribute_rank
from flatout.records.timeline import RankTimeline
from flatout.testing import TraceBuilder


def steps(*lengths_us: float, first: int = 5, rank: int = 0, loading: bool = False) -> TraceBuilder:
    """Steps of which 900 us are compute; what is longer is the host's, or the loader's, before the first launch."""
    trace, at = TraceBuilder(rank, 2), 0.0
    for number, length in enumerate(lengths_us, first):
        trace.step(number, at, length)
        if loading and length > 1000:
            trace.data_loading(at, length - 1000)
        trace.launch("gemm", at + length - 990, 5, at + length - 980, 900)
        trace.collective("allreduce", at + length - 60, at + length - 50, 50)
        at += length
    return trace


def numbers(timeline: RankTimeline) -> list[int]:
    return [step.number for step in timeline.steps]


@pytest.mark.parametrize(
    ("lengths", "counted"),
    [
        ((9000, 1000, 1000, 1000), [6, 7, 8]),
        ((9000, 1000, 1000), [6, 7]),
        ((2000, 1000, 1000), [5, 6, 7]),  # up to twice as long
        ((2001, 1000, 1000), [6, 7]),
        ((9000, 1000), [5, 6]),  # nothing shows which of two is regular
        ((9000, 1000, 1000, 5000), [5, 6, 7, 8]),  # long steps come again
        ((9000, 5000, 1000, 1000, 1000), [7, 8, 9]),
        ((9000, 5000, 1000, 1000), [5, 6, 7, 8]),  # half of them are no start
        ((1000, 9000, 1000, 1000), [5, 6, 7, 8]),  # not at the start
    ],
)
def test_the_first_steps_are_left_out_where_all_later_ones_are_alike(
    lengths: tuple[float, ...], counted: list[int]
) -> None:
    timeline = attribute_rank(steps(*lengths).to_table())
    assert numbers(timeline) == counted
    notes = [note.problem for note in timeline.quality if "not the regular step" in note.problem]
    assert len(notes) == (len(counted) < len(lengths))


def test_the_step_time_and_the_findings_are_those_of_the_regular_step() -> None:
    diagnosis = free_of_recorder_cost(*(steps(90_000, 1000, 1000, 1000, rank=rank) for rank in (0, 1)))
    assert diagnosis.job.step_s == pytest.approx(1000e-6, rel=0.02)
    assert diagnosis.job.num_steps == 3
    assert "host-bound" not in [finding.name for finding in diagnosis.findings if finding.share_of_step > 0.1]
    (note,) = [note for note in diagnosis.data_quality if "regular step" in note.problem]
    assert note.problem.startswith("step 5 took 90.0 ms, mostly more host launch, and no later step took more than 1.0")


def test_a_stall_of_the_loader_in_the_middle_of_a_job_is_counted() -> None:
    """An epoch begins with step 500: it will again."""
    middle = diagnosed(*(steps(9000, 1000, 1000, first=500, loading=True, rank=rank) for rank in (0, 1)))
    assert "data-loading" in names(middle)
    assert middle.job.num_steps == 3
    start = diagnosed(*(steps(9000, 1000, 1000, first=0, loading=True, rank=rank) for rank in (0, 1)))
    assert "data-loading" not in names(start)
    assert start.job.num_steps == 2


def test_all_ranks_leave_out_the_same_steps() -> None:
    job = attributed(*(steps(9000, 1000, 1000, rank=rank) for rank in (0, 1)))
    assert [numbers(timeline) for timeline in job.timelines] == [[6, 7], [6, 7]]
    assert not [note for note in job.quality if "different numbers of steps" in note.problem]
