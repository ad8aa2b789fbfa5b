"""A start transient is not the regular step: it is reported, and not counted."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.diagnose.jobs import attributed, diagnosed, free_of_recorder_cost, names

from flatout.attribute.rank import attribute_rank
from flatout.diagnosis_pipeline import diagnose_paths
from flatout.records.timeline import RankTimeline
from flatout.testing import TraceBuilder, write_traces


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


def evaluating(
    *lengths_us: float, rank: int = 0, num_batches: int = 8, num_backward: int = 1, has_layers: bool = True
) -> TraceBuilder:
    """Steps from 40 on; the first runs `num_batches` batches forward, and rank 0 alone spends its excess in them."""
    trace, at = TraceBuilder(rank, 2), 0.0
    for number, length in enumerate(lengths_us, 40):
        is_first = number == 40
        trace.step(number, at, length)
        for batch in range(num_batches if is_first else 2):
            if has_layers:
                trace.op("aten::linear", at + 10 + 10 * batch, 5)
        for node in range(num_backward if is_first else 1):
            trace.op("autograd::engine::evaluate_function: AddmmBackward0", at + 500 + 10 * node, 5)
        busy = length - 200 if rank == 0 else 500
        trace.launch("gemm", at + 1, 5, at + 100, busy)
        trace.collective("allreduce", at + busy, at + 100 + busy, length - 150 - busy)
        at += length
    return trace


@pytest.mark.parametrize(
    ("num_batches", "num_backward", "counted"),
    [
        (8, 1, [40, 41, 42]),
        (4, 1, [40, 41, 42]),
        (3, 1, [41, 42]),  # less than twice as many as in each step
        (2, 1, [41, 42]),  # as many as in each step: something else took the time
        (8, 2, [41, 42]),  # more backward, too: not an evaluation
    ],
)
def test_an_evaluation_in_the_first_traced_step_is_counted(
    num_batches: int, num_backward: int, counted: list[int]
) -> None:
    trace = evaluating(9000, 1000, 1000, num_batches=num_batches, num_backward=num_backward)
    assert numbers(attribute_rank(trace.to_table())) == counted


def test_a_model_without_layers_in_the_trace_shows_no_evaluation() -> None:
    trace = evaluating(9000, 1000, 1000, has_layers=False)
    assert numbers(attribute_rank(trace.to_table())) == [41, 42]


def test_a_step_that_the_step_log_shows_to_stall_is_counted() -> None:
    table = steps(9000, 1000, 1000).to_table()
    assert numbers(attribute_rank(table)) == [6, 7]
    assert numbers(attribute_rank(table, recurring_steps={6})) == [6, 7]
    assert numbers(attribute_rank(table, recurring_steps={5})) == [5, 6, 7]


def test_ranks_that_waited_for_an_evaluation_count_it_too(tmp_path: Path) -> None:
    ranks = [evaluating(9000, 1000, 1000, rank=rank, num_batches=8 if rank == 0 else 2) for rank in (0, 1)]
    assert numbers(attribute_rank(ranks[1].to_table())) == [41, 42]
    write_traces(ranks, tmp_path)
    diagnosis = diagnose_paths([tmp_path], engine="serial").diagnosis
    assert [rank.num_steps for rank in diagnosis.ranks] == [3, 3]
    assert diagnosis.job.step_s == pytest.approx(11_000e-6 / 3, rel=0.02)
    assert not [note for note in diagnosis.data_quality if "regular step" in note.problem]


def test_ranks_that_waited_for_a_start_up_leave_it_out_as_the_others_do(tmp_path: Path) -> None:
    ranks = [evaluating(9000, 1000, 1000, rank=rank, num_batches=2) for rank in (0, 1)]
    write_traces(ranks, tmp_path)
    diagnosis = diagnose_paths([tmp_path], engine="serial").diagnosis
    assert [rank.num_steps for rank in diagnosis.ranks] == [2, 2]
