"""The rule `pipeline-bubble`."""

from __future__ import annotations

import pytest
from tests.diagnose.jobs import GEMM, STEP, costs_us, found, free_of_recorder_cost, names, times

from flatout.testing import TraceBuilder


def two_stages(first: float, *, num_steps: int = 2, first_rank: int = 0) -> list[TraceBuilder]:
    """Stage 0 computes for `first` us and sends to stage 1, which computes for the rest of the step.

    One microbatch in two stages: half of the step is idle at best.
    """
    stages = [TraceBuilder(first_rank), TraceBuilder(1 - first_rank)]
    for number, at in times(num_steps):
        for stage in stages:
            stage.step(number, at, STEP)
        stages[0].launch(GEMM, at, 0, at, first)
        stages[0].collective("send", at, at + first, 10, root=stages[1].rank, launch_duration=0)
        stages[0].launch("adam", at, 0, at + first + 10, STEP - first - 10)
        stages[1].collective("recv", at, at, first + 10, root=stages[0].rank, launch_duration=0)
        stages[1].launch(GEMM, at, 0, at + first + 10, STEP - first - 10)
    return stages


def test_waiting_within_the_ideal_bubble_is_its_cost() -> None:
    """Stage 1 waits for 4000 of 10,000 us, stage 0 never: 2000 on average."""
    diagnosis = free_of_recorder_cost(*two_stages(4000))
    finding = diagnosis.findings[0]
    assert (finding.name, finding.ranks) == ("pipeline-bubble", (0, 1))
    assert finding.cost_s_per_step == pytest.approx(2000e-6)
    assert finding.evidence["num_stages"] == 2
    assert finding.evidence["num_microbatches"] == 1
    assert finding.evidence["ideal_bubble_share"] == pytest.approx(0.5)
    assert finding.evidence["measured_bubble_share"] == pytest.approx(0.2)
    assert finding.evidence["wait_beyond_bubble_s"] == 0
    assert "with 4 the ideal bubble is 20 %" in finding.changes[0]


def test_waiting_beyond_it_is_the_slow_stages() -> None:
    """Stage 0 computes for 8000 us: 5000 of them are bubble, and 3000 waiting for the stage with too much work."""
    traces = two_stages(8000)
    for trace in traces[:1]:
        for number, at in times(2):
            assert number
            trace.memset(num_bytes=1, launch_at=at, launch_duration=0, start=at + 9990, duration=0)
    costs = costs_us(free_of_recorder_cost(*traces))
    assert costs["pipeline-bubble"] == pytest.approx(2500)
    assert found(free_of_recorder_cost(*traces), "straggler").ranks == (0,)


def test_stages_need_not_be_in_the_order_of_the_ranks() -> None:
    finding = found(free_of_recorder_cost(*two_stages(4000, first_rank=1)), "pipeline-bubble")
    assert finding.ranks == (0, 1)
    assert finding.cost_s_per_step == pytest.approx(2000e-6)


@pytest.mark.parametrize(("first", "is_told"), [(380, False), (420, True)])
def test_below_two_percent_of_the_step_it_is_not_told(first: float, is_told: bool) -> None:
    """Half of it on average."""
    assert ("pipeline-bubble" in names(free_of_recorder_cost(*two_stages(first)))) == is_told


def test_one_of_two_stages_alone_shows_no_bubble() -> None:
    """Whether its waiting is one, the other's trace would tell."""
    assert names(free_of_recorder_cost(two_stages(4000)[1])) == ["exposed-communication"]
