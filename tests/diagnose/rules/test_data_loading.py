"""The rule `data-loading`."""

from __future__ import annotations

import pytest
from tests.diagnose.jobs import GEMM, STEP, costs_us, found, free_of_recorder_cost, names, times

from flatout.testing import TraceBuilder


def loading(*loads: float, num_steps: int = 3, workers: bool = True) -> list[TraceBuilder]:
    """Each rank loads data at the begin of each step, computes 2 ms, and meets the others in an all-reduce."""
    traces = [TraceBuilder(rank, len(loads)) for rank in range(len(loads))]
    for trace, load in zip(traces, loads, strict=True):
        for number, at in times(num_steps):
            trace.step(number, at, STEP)
            if workers:
                trace.data_loading(at, load)
            else:
                trace.annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at, load)
            trace.launch(GEMM, at + load, 5, at + load + 5, 2000)
            if len(loads) > 1:
                trace.collective("allreduce", at + load + 5, at + load + 2005, max(loads) - load + 20)
            end = max(loads) + 2025
            trace.launch(GEMM, at + load + 6, 5, at + end, STEP - end)
    return traces


def test_time_in_which_the_gpu_waits_for_a_batch_is_its_cost() -> None:
    diagnosis = free_of_recorder_cost(*loading(3000))
    finding = diagnosis.findings[0]
    assert (finding.name, finding.ranks) == ("data-loading", (0,))
    assert finding.cost_s_per_step == pytest.approx(3000e-6)
    assert finding.share_of_step == pytest.approx(0.3)
    assert finding.safety == "exact"
    assert finding.evidence["num_batches_per_step"] == 1


def test_waiting_for_the_slowest_loader_belongs_to_it_too() -> None:
    """Rank 1 loads for 3000 us and rank 0 for 1000, and so waits 2000: mending the loading saves 3000 on both."""
    diagnosis = free_of_recorder_cost(*loading(1000, 3000))
    finding = found(diagnosis, "data-loading")
    assert finding.cost_s_per_step == pytest.approx(3000e-6, rel=0.001)
    assert finding.ranks == (1,), "rank 0 loads less than half as long"
    assert finding.evidence["idle_in_loader_s"] == pytest.approx({"0": 1000e-6, "1": 3000e-6})
    assert finding.evidence["last_rank"] == 1
    assert finding.evidence["last_rank_late_by_s"]["data_loading"] == pytest.approx(2000e-6, rel=0.01)
    assert "straggler" not in names(diagnosis)


def test_ranks_that_load_at_least_half_as_long_are_named() -> None:
    assert found(free_of_recorder_cost(*loading(1600, 3000, 2900, 100)), "data-loading").ranks == (0, 1, 2)


def test_a_loader_without_workers_is_told_to_have_some() -> None:
    alone = found(free_of_recorder_cost(*loading(3000, workers=False)), "data-loading")
    assert alone.evidence["has_workers"] is False
    assert "no worker processes" in alone.title
    assert "num_workers" in alone.changes[0]
    assert found(free_of_recorder_cost(*loading(3000)), "data-loading").evidence["has_workers"] is True


@pytest.mark.parametrize(("load", "is_told"), [(190, False), (210, True)])
def test_below_two_percent_of_the_step_it_is_not_told(load: float, is_told: bool) -> None:
    assert ("data-loading" in names(free_of_recorder_cost(*loading(load)))) == is_told


def test_a_loader_that_the_gpu_does_not_wait_for_costs_nothing() -> None:
    """The batch is fetched while the GPU still computes the step before."""
    trace = TraceBuilder(0, 1)
    for number, at in times(2):
        trace.step(number, at, STEP).launch(GEMM, at, 5, at + 5, STEP - 5).data_loading(at + 10, 8000)
    assert costs_us(free_of_recorder_cost(trace)) == {}
