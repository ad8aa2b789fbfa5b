"""The rule `straggler`."""

from __future__ import annotations

import pytest
from tests.diagnose.jobs import GEMM, STEP, costs_us, diagnosed, found, free_of_recorder_cost, names, times

from flatout.testing import TraceBuilder


def computing(*extra: float, num_steps: int = 3, begin: tuple[float, ...] | None = None) -> list[TraceBuilder]:
    """Each rank computes 2000 us and its extra, and meets the others; then all compute the rest of the step alike.

    `begin` moves the start of all of a rank's steps, its clock staying right.
    """
    begins = begin or (0.0,) * len(extra)
    traces = [TraceBuilder(rank, len(extra)) for rank in range(len(extra))]
    met = max(2005 + more + late for more, late in zip(extra, begins, strict=True))
    for trace, more, late in zip(traces, extra, begins, strict=True):
        for number, at in times(num_steps):
            trace.step(number, at + late, STEP - (late if number == num_steps else 0))
            trace.launch(GEMM, at + late, 5, at + late + 5, 2000 + more)
            trace.collective("allreduce", at + late + 5, at + late + 2005 + more, met - late - 2005 - more + 20)
            trace.launch(GEMM, at + late + 6, 1, at + met + 20, STEP - met - 20)
    return traces


def test_a_rank_late_by_its_compute_costs_what_the_others_wait_for_it() -> None:
    diagnosis = free_of_recorder_cost(*computing(0, 0, 3000, 0))
    finding = diagnosis.findings[0]
    assert (finding.name, finding.ranks) == ("straggler", (2,))
    assert finding.cost_s_per_step == pytest.approx(3000e-6)
    assert finding.evidence["cause"] == "compute"
    assert finding.evidence["waiting_s"] == pytest.approx({"0": 3000e-6, "1": 3000e-6, "3": 3000e-6})
    assert finding.evidence["last_in_collectives"] == finding.evidence["num_collectives"] == 3
    assert finding.evidence["late_in_steps"] == [1, 2, 3]
    assert finding.confidence == "high"
    assert "rank 2 is slower in compute" in finding.title


def test_two_late_ranks_are_told_apart() -> None:
    """Rank 1 is 3000 us late in one group and rank 3 is 1500 us late in the other."""
    traces = [TraceBuilder(rank, 4) for rank in range(4)]
    for trace, more in zip(traces, (0, 3000, 0, 1500), strict=True):
        members, last = ((0, 1), 3000) if trace.rank < 2 else ((2, 3), 1500)
        for number, at in times(2):
            trace.step(number, at, STEP).launch(GEMM, at, 5, at + 5, 2000 + more)
            trace.collective("allreduce", at + 5, at + 2005 + more, last - more + 20, group="1", group_ranks=members)
            trace.launch(GEMM, at + 6, 1, at + 2025 + last, STEP - 2025 - last)
    stragglers = [f for f in free_of_recorder_cost(*traces).findings if f.name == "straggler"]
    assert [(f.ranks, round(f.cost_s_per_step * 1e6)) for f in stragglers] == [((1,), 3000), ((3,), 1500)]


def test_a_rank_late_by_a_part_with_a_finding_of_its_own_is_no_straggler() -> None:
    traces = computing(0, 0, num_steps=2)
    for number, at in times(2):
        assert number
        traces[1].step(10 + number, at, 0)
    loading = [TraceBuilder(0), TraceBuilder(1)]
    for trace, load in zip(loading, (0, 3000), strict=True):
        for number, at in times(2):
            trace.step(number, at, STEP).data_loading(at, load)
            trace.launch(GEMM, at + load, 5, at + load + 5, 2000)
            trace.collective("allreduce", at + load + 5, at + load + 2005, 3020 - load)
            trace.launch(GEMM, at + load + 6, 1, at + 5025, STEP - 5025)
    diagnosis = free_of_recorder_cost(*loading)
    assert names(diagnosis) == ["data-loading"]


def test_the_same_lateness_in_a_single_step_is_less_sure() -> None:
    finding = found(free_of_recorder_cost(*computing(0, 3000, num_steps=1)), "straggler")
    assert finding.confidence == "medium"
    assert finding.evidence["cause"] == "compute"


def test_lateness_that_equals_the_spread_of_the_starts_of_a_single_step_is_inconclusive() -> None:
    """Rank 1 begins to record 3000 us later and does the same: whether it was late before, nobody can say."""
    finding = found(free_of_recorder_cost(*computing(0, 0, num_steps=1, begin=(0.0, 3000.0))), "straggler")
    assert finding.ranks == (1,)
    assert finding.confidence == "inconclusive"
    assert finding.evidence["cause"] == "unknown"
    assert finding.evidence["step_start_spread_s"] == pytest.approx(3000e-6)
    assert "inconclusive" in finding.title


def test_lateness_of_which_a_third_is_the_spread_of_the_starts_keeps_its_cause() -> None:
    """Rank 1 begins to record 1000 us later and computes 2000 us longer: that is in its trace."""
    finding = found(free_of_recorder_cost(*computing(0, 2000, num_steps=1, begin=(0.0, 1000.0))), "straggler")
    assert (finding.evidence["cause"], finding.confidence) == ("compute", "medium")
    assert finding.cost_s_per_step == pytest.approx(3000e-6)


def test_lateness_from_before_several_steps_came_once_and_is_none_of_them() -> None:
    """Rank 1's recording begins 3000 us later; from the first collective on both are level."""
    traces = [TraceBuilder(0), TraceBuilder(1)]
    for trace, late in zip(traces, (0, 3000), strict=True):
        for number, at in times(4):
            first = late if number == 1 else 0
            trace.step(number, at + first, STEP - first)
            trace.launch(GEMM, at + first, 5, at + first + 5, 2000)
            last = 3000 if number == 1 else 0
            trace.collective("allreduce", at + first + 5, at + first + 2005, last - first + 20)
            trace.launch(GEMM, at + first + 6, 1, at + 2025 + last, STEP - 2025 - last)
    assert "straggler" not in names(free_of_recorder_cost(*traces))


@pytest.mark.parametrize(("more", "is_told"), [(190, False), (210, True)])
def test_below_two_percent_of_the_step_it_is_not_told(more: float, is_told: bool) -> None:
    assert ("straggler" in names(free_of_recorder_cost(*computing(0, more)))) == is_told


def test_ranks_that_are_late_in_turn_are_not_told_where_neither_costs_enough() -> None:
    """150 us in every second step each."""
    traces = [TraceBuilder(0), TraceBuilder(1)]
    for trace in traces:
        for number, at in times(4):
            more = 150 if number % 2 == trace.rank else 0
            trace.step(number, at, STEP).launch(GEMM, at, 5, at + 5, 2000 + more)
            trace.collective("allreduce", at + 5, at + 2005 + more, 170 - more)
            trace.launch(GEMM, at + 6, 1, at + 2175, STEP - 2175)
    assert costs_us(free_of_recorder_cost(*traces)) == {}


def test_the_late_rank_is_none_of_those_that_wait_for_it() -> None:
    for trace_set in (computing(0, 3000), computing(1000, 0, 3000)):
        finding = found(free_of_recorder_cost(*trace_set), "straggler")
        assert str(finding.ranks[0]) not in finding.evidence["waiting_s"]


def test_compute_that_is_slower_beside_communication_makes_no_straggler() -> None:
    """Rank 0 waits under its own backward, which takes 15 % longer for it; rank 1 loads data.

    Equal work, and rank 1 is late by its loading alone.
    """
    traces = [TraceBuilder(0), TraceBuilder(1)]
    for trace, load, backward in zip(traces, (0, 3000), (4600, 4000), strict=True):
        for number, at in times(2):
            trace.step(number, at, STEP).data_loading(at, load)
            trace.launch(GEMM, at + load, 5, at + load + 5, backward)
            first, last = at + load + 1000, at + load + 5 + backward
            trace.collective("allreduce", at + load + 5, first, at + 4030 - first)
            trace.collective("allreduce", at + load + 6, last, at + 7035 - last)
            trace.launch(GEMM, at + load + 7, 1, at + 7035, STEP - 7035)
    diagnosis = free_of_recorder_cost(*traces)
    assert names(diagnosis)[0] == "data-loading"
    assert "straggler" not in names(diagnosis)


def test_a_job_on_the_cpu_has_stragglers_too() -> None:
    traces = [TraceBuilder(0), TraceBuilder(1)]
    for trace, more in zip(traces, (0, 3000), strict=True):
        for number, at in times(2):
            trace.step(number, at, STEP).op("aten::mm", at, 5000 + more)
            trace.annotation("gloo:all_reduce", at + 5000 + more, 3020 - more).op("aten::add_", at + 8020, 1980)
    finding = found(diagnosed(*traces), "straggler")
    assert finding.ranks == (1,)
    assert finding.cost_s_per_step == pytest.approx(3000e-6)
    assert "GPU" not in finding.title
