"""The rule `late-in-turn`, and that ranks which take turns are not stragglers."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from tests.diagnose.jobs import GEMM, STEP, costs_us, diagnosed, found, free_of_recorder_cost, names, times

from flatout.testing import TraceBuilder


def in_turn(*extra_by_step: tuple[float, ...], busy_shares: Mapping[int, float] | None = None) -> list[TraceBuilder]:
    """Each rank computes 2000 us and, in each step, its extra of that step; then they meet.

    Afterwards it computes until the end of the step, or for its share of that time.
    """
    traces = [TraceBuilder(rank, len(extra_by_step[0])) for rank in range(len(extra_by_step[0]))]
    for trace in traces:
        for number, at in times(len(extra_by_step)):
            extra = extra_by_step[number - 1]
            more, most = extra[trace.rank], max(extra)
            trace.step(number, at, STEP).launch(GEMM, at, 5, at + 5, 2000 + more)
            trace.collective("allreduce", at + 5, at + 2005 + more, most - more + 20)
            rest = STEP - 2025 - most
            trace.launch(GEMM, at + 6, 1, at + 2025 + most, rest * (busy_shares or {}).get(trace.rank, 1.0))
    return traces


def test_of_two_ranks_that_are_late_in_turn_none_is_a_straggler() -> None:
    """2000 us in every second step each: someone waits for 2000 us in each step."""
    diagnosis = free_of_recorder_cost(*in_turn((2000, 0), (0, 2000), (2000, 0), (0, 2000)))
    finding = found(diagnosis, "late-in-turn")
    assert "straggler" not in names(diagnosis)
    assert finding.ranks == (0, 1)
    assert finding.cost_s_per_step == pytest.approx(2000e-6)
    assert finding.evidence["num_steps_late"] == {"0": 2, "1": 2}


def test_four_ranks_in_turn_are_one_group() -> None:
    steps = [tuple(2000.0 if rank == late else 0.0 for rank in range(4)) for late in range(4)]
    finding = found(free_of_recorder_cost(*in_turn(*steps)), "late-in-turn")
    assert finding.ranks == (0, 1, 2, 3)
    assert finding.cost_s_per_step == pytest.approx(2000e-6)


@pytest.mark.parametrize(("other", "is_in_turn"), [(1900, False), (2100, True)])
def test_a_rank_that_is_late_more_than_twice_as_long_is_the_straggler(other: float, is_in_turn: bool) -> None:
    """Rank 0 is 2 x 2000 us late, rank 1 once by `other`, i.e. by less or more than half."""
    diagnosis = free_of_recorder_cost(*in_turn((2000, 0), (0, other), (2000, 0)))
    assert ("late-in-turn" in names(diagnosis)) == is_in_turn
    assert [f.ranks for f in diagnosis.findings if f.name == "straggler" and f.confidence != "inconclusive"] == (
        [] if is_in_turn else [(0,)]
    )


def test_each_of_two_ranks_late_in_a_collective_of_each_step_takes_turns_too() -> None:
    """Rank 0 is late in the first half of each step and rank 1 in the second half."""
    traces = [TraceBuilder(rank) for rank in (0, 1)]
    for trace in traces:
        for number, at in times(3):
            trace.step(number, at, STEP)
            for half, late in ((0, 0), (1, 1)):
                more = 1500 if trace.rank == late else 0
                begin = at + half * 4000
                trace.launch(GEMM, begin, 5, begin + 5, 2000 + more)
                trace.collective("allreduce", begin + 5, begin + 2005 + more, 1500 - more + 20)
                trace.launch(GEMM, begin + 6, 1, begin + 3525, 475)
            trace.launch(GEMM, at + 8000, 1, at + 8001, STEP - 8001)
    diagnosis = free_of_recorder_cost(*traces)
    assert "straggler" not in names(diagnosis)
    assert found(diagnosis, "late-in-turn").ranks == (0, 1)


@pytest.mark.parametrize(("more", "is_told"), [(95, False), (105, True)])
def test_below_two_percent_of_the_step_it_is_not_told(more: float, is_told: bool) -> None:
    """One of the ranks is late by twice `more` in every step: `more` per step and rank, 2 x `more` in total."""
    costs = costs_us(free_of_recorder_cost(*in_turn((2 * more, 0), (0, 2 * more))))
    assert ("late-in-turn" in costs) == is_told


def test_one_rank_late_in_one_of_three_steps_is_inconclusive() -> None:
    finding = found(free_of_recorder_cost(*in_turn((0, 3000), (0, 0), (0, 0))), "straggler")
    assert finding.confidence == "inconclusive"
    assert "late in 1 of 3 steps" in finding.title
    assert finding.changes[0] == "record more steps: is rank 1 late again?"


@pytest.mark.parametrize(("num_late", "confidence"), [(1, "inconclusive"), (2, "medium"), (3, "high")])
def test_the_more_steps_a_rank_is_late_in_the_surer_it_is(num_late: int, confidence: str) -> None:
    """The trace has six steps: one late step is not a recurrence, and three are enough."""
    steps = [(0, 3000 if number < num_late else 0) for number in range(6)]
    assert found(free_of_recorder_cost(*in_turn(*steps)), "straggler").confidence == confidence


@pytest.mark.parametrize(("often", "confidence"), [(190, "inconclusive"), (210, "high")])
def test_a_step_counts_as_late_from_two_percent_of_it(often: float, confidence: str) -> None:
    steps = [(0, 3000.0), (0, often), (0, often)]
    assert found(free_of_recorder_cost(*in_turn(*steps)), "straggler").confidence == confidence


def test_the_advice_for_a_job_on_the_cpu_names_no_gpu() -> None:
    traces = [TraceBuilder(0), TraceBuilder(1)]
    for trace, more in zip(traces, (0, 3000), strict=True):
        for number, at in times(2):
            trace.step(number, at, STEP).op("aten::mm", at, 5000 + more)
            trace.annotation("gloo:all_reduce", at + 5000 + more, 3020 - more).op("aten::add_", at + 8020, 1980)
    for finding in diagnosed(*traces).findings:
        assert "GPU" not in " ".join((finding.title, *finding.changes))


@pytest.mark.parametrize(("busy_share", "ratio"), [(0.8217, None), (0.7066, 1.275), (0.3166, 2.0)])
def test_ranks_that_compute_longer_are_told_although_they_take_turns(busy_share: float, ratio: float | None) -> None:
    """Each rank is late once in four steps. Afterwards 0 and 1 compute for a share of the time that 2 and 3 do.

    By hand: 2 and 3 compute 4 x (2000 + 6475) + 1500 = 35,400 us, and the others 1.15, 1.275 or 2 times less.
    """
    steps = [tuple(1500.0 if rank == late else 0.0 for rank in range(4)) for late in range(4)]
    finding = found(free_of_recorder_cost(*in_turn(*steps, busy_shares={0: busy_share, 1: busy_share})), "late-in-turn")
    assert finding.ranks == (0, 1, 2, 3)
    assert ("none of them is slower" in finding.title) == (ratio is None)
    if ratio is None:
        assert finding.evidence["slower_ranks"] == []
        return
    assert finding.evidence["slower_ranks"] == [2, 3]
    assert finding.evidence["slower_compute_ratio"] == pytest.approx(ratio, rel=0.01)
    assert f"ranks 2 and 3 compute {ratio:.1f} times as long as the faster ones" in finding.title
    assert "compute longer" in finding.changes[0]
